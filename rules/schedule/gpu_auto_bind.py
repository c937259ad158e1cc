"""The rule that gives whatever no other rule has touched to the blocks and threads of a GPU."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.ir.expr import Const, Var
from pipeline.ir.lockstep import BLOCKS, THREADS
from pipeline.ir.poly import Poly
from pipeline.ir.program import Alloc, Block, Loop, walk
from pipeline.ir.target import Target
from pipeline.schedule.constraint import AtMost
from pipeline.schedule.nest import Place, block_at, blocks_in, loop_at
from pipeline.schedule.sketch import Sketch
from pipeline.schedule.steps import Bind, CacheWrite, Fuse, Reorder, Split, Vectorize
from pipeline.schedule.steps.parallel import carried_by
from pipeline.schedule.variables import Choice, Tile
from rules.schedule.gpu_decompose import decomposed
from rules.schedule.gpu_inner_threads import bound_inside
from rules.schedule.gpu_lane import lane_loop, vector_widths
from rules.schedule.multi_level_tiling import epilogue

WARP = 32
SERIAL = 8  # vectors that one thread handles, at most
ENOUGH = 256  # threads of a block along one loop, where another need not join in


@dataclass(frozen=True, slots=True)
class GpuAutoBind:
    """Threads of all blocks share the elements that a block stores; each thread handles a few vectors of them.

    The loop along which memory is contiguous is split in blocks, vectors that a thread handles one after another,
    threads and the elements of a vector; where it is short, the loop before it joins in. A reduction runs inside a
    thread, in registers. What has to stay in order, and what has no loop, is the work of one thread.

    Of a nest that several blocks share, the outer loops become a grid, and threads share the loops that are a block's
    own.

    reductions   no other blocks; what is computed from a result alone is computed where it is stored
    """

    reductions: bool = False

    def apply(self, sketch: Sketch, block: str, target: Target) -> list[Sketch]:
        if target.gpu is None:
            return []
        found, place = block_at(sketch.program, block)
        if self.reductions and (found.combine is None or found.init is None or not _untouched(found, place)):
            return []
        if any(loop.kind in THREADS for loop in place.loops):
            return [decomposed(sketch, block)] if found.init is not None else []
        if _untouched(found, place):
            return [_elements(sketch, found, place, target.gpu.threads_per_block)]
        if place.path and not any(isinstance(stmt, Loop) and stmt.kind in BLOCKS for stmt in walk(place.root)):
            sketch = _outer(sketch, place, target.gpu.threads_per_block)
            _, place = block_at(sketch.program, block)
        if not any(loop.kind in THREADS for loop in place.loops):
            sketch = bound_inside(sketch, block, target.gpu.threads_per_block)
        return [decomposed(sketch, block)]


def _untouched(block: Block, place: Place) -> bool:
    """Is it alone in a perfect nest of serial loops, each of them one of its iterations?"""
    loops = all(isinstance(stmt, Loop) and stmt.kind == "serial" and not stmt.annotations for stmt in place.path)
    plain = all(isinstance(it.binding, Var | Const) for it in block.iters)
    return loops and plain and all(len(loop.axes) == 1 for loop in place.loops) and not block.where


def _elements(sketch: Sketch, block: Block, place: Place, most: int) -> Sketch:
    """One block in a perfect nest."""
    free = [loop for loop in place.loops if carried_by(loop, reductions=False) is None]
    wide = [loop for loop in free if loop.axes[0].extent.value > 1]
    lane = lane_loop(block, wide or free)
    if lane is None:
        return decomposed(sketch, block.name)
    names = {id(loop): loop.axes[0].var for loop in place.loops}
    order = [loop for loop in free if loop is not lane] + [lane]
    rest = [loop for loop in place.loops if not any(loop is other for other in free)]
    several = [names[id(loop)] for loop in (*order, *rest)]
    if len(several) > 1 and several != [names[id(loop)] for loop in place.loops]:
        sketch = sketch.apply(Reorder(tuple(several)))
    grid: list[str] = []
    threads: list[str] = []
    after: list[str] = []
    vector: str | None = None
    count, reached = Poly.of(1), 1
    for loop in reversed(order):
        name, extent = names[id(loop)], loop.axes[0].extent.value
        if loop is not lane and (extent <= 1 or reached >= ENOUGH):
            grid.insert(0, name)
        elif loop is lane and extent > WARP:
            widths = vector_widths(sketch.program, block, name, extent)
            parts = (f"{name}_b", f"{name}_s", f"{name}_t", f"{name}_v")
            s, t, v = (Poly.symbol(f"t_{part}") for part in parts[1:])
            within = min(most, -(-extent // WARP) * WARP)
            sketch = sketch.declare(Tile((f"t_{parts[1]}", f"t_{parts[2]}"), extent, (1, WARP), (SERIAL, within)))
            sketch = sketch.declare(Choice(f"t_{parts[3]}", widths))
            sketch = sketch.require(AtMost(f"elements of a block along {name}", s * t * v, -(-extent // WARP) * WARP))
            sketch = sketch.apply(Split(name, (s, t, v), parts))
            grid.insert(0, parts[0])
            threads.insert(0, parts[2])
            after.append(parts[1])
            vector = parts[3]
            count, reached = count * t, reached * within
        elif reached * extent <= WARP:
            threads.insert(0, name)
            count, reached = count * extent, reached * extent
        else:
            within = min(extent, most)
            sketch = sketch.declare(Tile((f"t_{name}_t",), extent, (1,), (within,)))
            t = Poly.symbol(f"t_{name}_t")
            sketch = sketch.apply(Split(name, (t,), (f"{name}_b", f"{name}_t")))
            grid.insert(0, f"{name}_b")
            threads.insert(0, f"{name}_t")
            count, reached = count * t, reached * within
    if not count.is_constant:
        sketch = sketch.require(AtMost(f"threads for {block.name}", count, most))
    inner = [names[id(loop)] for loop in rest]
    last = [vector] if vector is not None else []
    if len(wanted := (*grid, *threads, *after, *inner, *last)) > 1:
        sketch = sketch.apply(Reorder(wanted))
    for group, kind in ((grid, "blockIdx.x"), (threads, "threadIdx.x")):
        if len(group) > 1:
            sketch = sketch.apply(Fuse(tuple(group)))
        if group:
            sketch = sketch.apply(Bind(group[0], kind))  # type: ignore[arg-type]
    if block.combine is not None and block.init is not None:
        step = CacheWrite(block.name, "local", (*threads, *after)[-1] if after else threads[0])
        if step.why_not(sketch.program) is None:
            sketch = epilogue(sketch.apply(step), f"{block.name}_write")
    if vector is not None:
        sketch = sketch.attempt(Vectorize(vector))
    sketch = decomposed(sketch, block.name)
    for made in (f"{block.name}_init", f"{block.name}_write"):
        sketch = innermost_vector(sketch, made)
    return sketch


def innermost_vector(sketch: Sketch, block: str) -> Sketch:
    """The innermost loop of a block, where there is such a block, as one access of a thread."""
    found = [b for b in blocks_in(sketch.program.body) if b.name == block]
    if not found:
        return sketch
    _, place = block_at(sketch.program, block)
    serial = [loop for loop in place.loops if loop.kind == "serial"]
    if not serial or place.loops[-1] is not serial[-1] or serial[-1].axes[0].extent == Poly.of(1):
        return sketch
    return sketch.attempt(Vectorize(serial[-1].axes[0].var))


def _outer(sketch: Sketch, place: Place, most: int) -> Sketch:
    """The loops around all blocks of a region that nothing orders, as a grid, and, where no block has a loop of its own
    that threads could share, as threads."""
    root = place.root
    if not isinstance(root, Loop):
        return sketch
    if root.kind == "parallel":
        return sketch.attempt(Bind(root.axes[0].var, "blockIdx.x"))
    chain: list[Loop] = []
    stmt = root
    while isinstance(stmt, Loop) and stmt.kind == "serial" and not stmt.annotations and _free(stmt):
        chain.append(stmt)
        if not isinstance(stmt.body, Loop):
            break
        stmt = stmt.body
    if not chain:
        return sketch
    names = [loop.axes[0].var for loop in chain]
    if not _alone(chain[-1]) and _whole_threads(chain[-1]):
        last = names[-1]
        extent = chain[-1].axes[0].extent
        if len(chain[-1].axes) == 1 and extent.is_constant and extent.value > 1:
            width = min(most, -(-extent.value // WARP) * WARP) if extent.value > WARP else extent.value
            least = WARP if extent.value > WARP else 1
            sketch = sketch.declare(Tile((f"t_{last}_t",), extent.value, (least,), (width,)))
            sketch = sketch.apply(Split(last, (Poly.symbol(f"t_{last}_t"),), (f"{last}_b", f"{last}_t")))
            sketch = sketch.attempt(Bind(f"{last}_t", "threadIdx.x"))
            names[-1] = f"{last}_b"
    if len(names) > 1:
        sketch = sketch.attempt(Fuse(tuple(names)))
    return sketch.attempt(Bind(loop_at(sketch.program, names[0])[0].axes[0].var, "blockIdx.x"))


def _free(loop: Loop) -> bool:
    return carried_by(loop, reductions=False) is None


def _alone(loop: Loop) -> bool:
    return len(blocks_in(loop)) == 1


def _whole_threads(loop: Loop) -> bool:
    """Can a thread run the whole body: nothing in it is shared, and no loop in it could be shared out?"""
    for stmt in walk(loop.body):
        if isinstance(stmt, Alloc) and stmt.buffer.scope == "shared":
            return False
        if isinstance(stmt, Loop) and (stmt.kind in THREADS or _free(stmt)):
            return False
    return True
