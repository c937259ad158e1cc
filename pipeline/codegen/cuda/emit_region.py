"""Regions as `__global__` functions: the grid, the threads of a block, shared memory and parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.codegen.cuda.barriers import barriers
from pipeline.codegen.cuda.block_memory import ALIGNMENTS, plan_shared, shared_buffers
from pipeline.codegen.cuda.cpp import MEMORY, Cpp, Lines, Names
from pipeline.codegen.cuda.emit import WARP
from pipeline.codegen.cuda.emit_copy import ASYNC_CAPABILITY
from pipeline.codegen.cuda.emit_state import Place, Threads
from pipeline.codegen.cuda.emit_warp import WarpEmitter
from pipeline.codegen.cuda.fragment_layout import fragment_layouts
from pipeline.codegen.cuda.kernel import Launch
from pipeline.codegen.cuda.pipelines import pipelines
from pipeline.errors import CodegenError
from pipeline.ir.lockstep import GRID, THREADS, thread_extents
from pipeline.ir.program import Alloc, Block, Buffer, Loop, Stmt, walk
from pipeline.ir.target import Gpu
from pipeline.schedule.nest import loads_of

STAGES = {True: 16, False: 2}  # of a pipeline at most: more help only where copies are asynchronous
GRID_LIMITS = {"x": (1 << 31) - 1, "y": 65535, "z": 65535}


@dataclass(frozen=True, slots=True)
class Function:
    """The text of one function, and how it is launched."""

    text: str
    launch: Launch


def emit_region(region: Stmt, symbol: str, buffers: Mapping[str, Buffer], gpu: Gpu) -> Function | None:
    """A region of the program; None where it has no iterations.

    buffers   the global ones, by name
    """
    grid: list[Loop] = []
    body = region
    while isinstance(body, Loop) and body.kind in GRID:
        grid.append(body)
        body = body.body
    if any(axis.extent.value == 0 for loop in grid for axis in loop.axes):
        return None
    threads = block_threads(body)
    if threads.count > gpu.threads_per_block:
        raise CodegenError(f"{threads.count} threads in a block", where=symbol,
                           why=f"{gpu.arch} has at most {gpu.threads_per_block}")  # fmt: skip
    for alignment in ALIGNMENTS:
        pipelined = pipelines(body, most=STAGES[gpu.capability >= ASYNC_CAPABILITY], alignment=alignment)
        staged = {buffer.name: step * parts.stages for parts in pipelined.values() for buffer, step in parts.buffers}
        ranges, shared_bytes = plan_shared(body, staged, alignment)
        if shared_bytes <= gpu.shared_per_block:
            break
    if shared_bytes > gpu.shared_per_block:
        raise CodegenError(f"{shared_bytes} bytes of shared memory in a block", where=symbol,
                           why=f"{gpu.arch} has at most {gpu.shared_per_block}")  # fmt: skip
    emitter = WarpEmitter(gpu, threads, names=Names(), lines=Lines(), pipelines=pipelined,
                          layouts=fragment_layouts(body, buffers))  # fmt: skip
    emitter.meetings = barriers(body, ranges, pipelined, warps=threads.x == WARP, alone=threads.count <= WARP)
    arguments = _arguments(region, buffers)
    parameters = []
    for name, (reads, writes) in arguments.items():
        place = Place(buffers[name], emitter.names.new(name))
        emitter.places[name] = place
        kind = "MS_INOUT" if reads and writes else "MS_OUT" if writes else "MS_IN"
        parameters.append(f"{kind}({MEMORY[place.buffer.dtype]}) {place.name}")
    emitter.names.stem = _stem(region)
    for buffer in shared_buffers(body):
        place = Place(buffer, emitter.names.new(buffer.name))
        emitter.places[buffer.name] = place
        count = staged.get(buffer.name, place.count)
        emitter.lines.add(f"MS_SHARED({MEMORY[buffer.dtype]}, {place.name}, {ranges[buffer.name][0]}, {count});")
    sizes = _grid(grid, emitter)
    head, emitter.lines.text = emitter.lines.text, []
    emitter.statement(body)
    head += _threads(emitter)
    signature = Lines(depth=0)
    signature.add(f'extern "C" MS_KERNEL({threads.count}) {symbol}({", ".join(parameters)}) {{')
    text = "\n".join([
        *signature.text,
        *head, *([""] if head else []), *emitter.lines.text, "}",
    ])  # fmt: skip
    return Function(text, Launch(symbol, sizes, threads.count, shared_bytes, tuple(arguments)))


def block_threads(body: Stmt) -> Threads:
    """The threads of a block. Where warps work as one, or hold fragments, x counts the lanes."""
    extents = thread_extents(body)
    x, y, z = (extents.get(kind, 1) for kind in THREADS)
    if _has_warps(body):
        if x > WARP:
            raise CodegenError(f"{x} threads along x", where="codegen.cuda", why="Where warps work as one, x counts "
                               f"their {WARP} lanes")  # fmt: skip
        x = WARP
    return Threads(x, y, z)


def _has_warps(body: Stmt) -> bool:
    for stmt in walk(body):
        if isinstance(stmt, Alloc) and stmt.buffer.scope == "fragment":
            return True
        if isinstance(stmt, Loop) and stmt.kind in ("threadIdx.y", "threadIdx.z"):
            inside = {inner.kind for inner in walk(stmt) if isinstance(inner, Loop)}
            if "threadIdx.x" not in inside and not _inside_x(body, stmt):
                return True
    return False


def _inside_x(body: Stmt, wanted: Loop) -> bool:
    return any(
        isinstance(stmt, Loop) and stmt.kind == "threadIdx.x" and any(inner is wanted for inner in walk(stmt))
        for stmt in walk(body)
    )


def _stem(region: Stmt) -> str:
    """The name of a block that is in the names of all loops and allocated buffers of a region."""
    names = [axis.var for stmt in walk(region) if isinstance(stmt, Loop) for axis in stmt.axes]
    names += [stmt.buffer.name for stmt in walk(region) if isinstance(stmt, Alloc)]
    stems = (stmt.name for stmt in walk(region) if isinstance(stmt, Block))
    return min((stem for stem in stems if all(f"{stem}_" in name for name in names)), key=len, default="")


def _arguments(region: Stmt, buffers: Mapping[str, Buffer]) -> dict[str, tuple[bool, bool]]:
    """The global buffers that a region uses, in the order of the program: whether it reads and whether it writes."""
    reads: set[str] = set()
    writes: set[str] = set()
    for stmt in walk(region):
        if isinstance(stmt, Block):
            reads.update(load.buffer for load in loads_of(stmt))
            writes.add(stmt.buffer)
            if stmt.combine is not None:
                reads.add(stmt.buffer)
    return {name: (name in reads, name in writes) for name in buffers if name in reads | writes}


def _grid(loops: list[Loop], emitter: WarpEmitter) -> tuple[int, int, int]:
    """Declares the variables of the grid, and returns its extents."""
    sizes = {"x": 1, "y": 1, "z": 1}
    for loop in loops:
        axis = "x" if loop.kind == "parallel" else loop.kind[-1]
        sizes[axis] = math.prod(inner.extent.value for inner in loop.axes)
    flat = any(sizes[axis] > GRID_LIMITS[axis] for axis in sizes)
    if flat and math.prod(sizes.values()) > GRID_LIMITS["x"]:
        raise CodegenError(f"a grid of {' x '.join(map(str, sizes.values()))} blocks", where="codegen.cuda",
                           why=f"There can be {GRID_LIMITS['x']}")  # fmt: skip
    if flat:  # y and z are short of bits: all blocks are counted along x
        axes = tuple(axis for loop in loops for axis in loop.axes)
        emitter.decode(axes, Cpp("ms::block_x()", "int"))
        return math.prod(sizes.values()), 1, 1
    for loop in loops:
        axis = "x" if loop.kind == "parallel" else loop.kind[-1]
        emitter.decode(loop.axes, Cpp(f"ms::block_{axis}()", "int"))
    return sizes["x"], sizes["y"], sizes["z"]


def _threads(emitter: WarpEmitter) -> list[str]:
    """The numbers of the thread that the body asks for."""
    values = {"thread": "ms::thread()", "warp": "ms::warp()", "lane": "ms::lane()"}
    wanted = [f"{name} = {value}" for name, value in values.items() if name in emitter.used]
    return [f"    const int {', '.join(wanted)};"] if wanted else []
