"""A concrete program into a kernel: emits its IR, compiles it, and says what its arguments are."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from pipeline.codegen.kernel import Argument, Kernel, argument_of
from pipeline.codegen.llvm.compile import compile_ir, function_attributes
from pipeline.codegen.llvm.emit import Emitter
from pipeline.codegen.llvm.emit_state import Place, row_major
from pipeline.codegen.llvm.vector_math import MathLibrary
from pipeline.ir.graph import ITEM_BYTES
from pipeline.ir.program import Block, Loop, Program, Seq, walk
from pipeline.ir.target import Target
from pipeline.schedule.nest import reads

SCRATCH = "scratch"
INTERNAL_ALIGN = 64  # bytes: what we allocate ourselves; inputs and outputs are aligned to their elements only


@dataclass(frozen=True, slots=True)
class KernelText:
    """The IR of a kernel before it is compiled."""

    text: str
    symbol: str
    prologue: str | None
    arguments: tuple[Argument, ...]
    parallel: bool
    prologue_only: tuple[str, ...]


def build_kernel(program: Program, target: Target, symbol: str | None = None, *, level: int = 3) -> Kernel:
    """Object code for a concrete program whose reductions are decomposed. level: see `compile_ir`."""
    emitted = emit_kernel(program, target, symbol)
    code = compile_ir(emitted.text, target, level=level)
    return Kernel(
        emitted.symbol, emitted.prologue, code, emitted.arguments, target.cores, emitted.parallel, emitted.prologue_only
    )


def emit_kernel(program: Program, target: Target, symbol: str | None = None) -> KernelText:
    """The LLVM IR of the program: one function for its body, and one for its prologue where it has one."""
    name = symbol or "kernel_" + hashlib.sha256(repr((program, target)).encode()).hexdigest()[:20]
    library = MathLibrary(target)
    declarations: dict[str, str] = {
        "muschedule_barrier": "declare void @muschedule_barrier(ptr, i64)",
    }
    arguments = tuple(argument_of(buffer) for buffer in program.buffers)
    functions = []
    main, scratch = _function(name, program, program.body, target, library, declarations)
    functions.append(main)
    prologue = None
    if program.prologue.body:
        prologue = name + "_prologue"
        text, more = _function(prologue, program, program.prologue, target, library, declarations)
        functions.append(text)
        scratch = max(scratch, more)
    if scratch:
        arguments = (*arguments, Argument(SCRATCH, (target.cores * scratch,), "uint8", "workspace"))
    parallel = any(isinstance(region, Loop) and region.kind == "parallel" for region in program.body.body)
    text = "\n".join([
        f'target triple = "{target.triple}"', *declarations.values(), *functions, library.definitions(),
        f"attributes #0 = {{ {function_attributes(target)} }}",
    ])  # fmt: skip
    read = _read(program.body)
    prologue_only = tuple(b.name for b in program.buffers if b.role == "constant" and b.name not in read)
    return KernelText(text, name, prologue, arguments, parallel, prologue_only)


def _function(
    name: str, program: Program, body: Seq, target: Target, library: MathLibrary, declarations: dict[str, str]
) -> tuple[str, int]:
    """The text of a kernel function, and the bytes of scratch that each thread needs."""
    places = {}
    for number, buffer in enumerate(program.buffers):
        ours = buffer.role in ("packed", "intermediate")
        shape = tuple(extent.value for extent in buffer.shape)
        align = INTERNAL_ALIGN if ours else ITEM_BYTES[buffer.dtype]
        places[buffer.name] = Place(buffer, f"%arg{number}", row_major(shape), align)
    emitter = Emitter(target, library, places)
    for number, region in enumerate(body.body):
        if number:
            emitter.cache = [{}]
            emitter.b.emit("call void @muschedule_barrier(ptr %barrier, i64 %threads)")
        emitter.region(region)
    declarations.update(emitter.b.declarations)
    scratch = -(-emitter.scratch_peak // INTERNAL_ALIGN) * INTERNAL_ALIGN
    count = len(program.buffers)
    # pointers into an array are not known to be distinct: the parameters of an inner function are declared to be so
    pointers = [f"ptr noalias nofree align {places[b.name].align} %arg{i}" for i, b in enumerate(program.buffers)]
    parameters = ", ".join([*pointers, "ptr noalias %scratch", "i64 %thread", "i64 %threads", "ptr %barrier"])
    inner = [f"define internal void @{name}_body({parameters}) noinline nounwind #0 {{", "entry:"]
    if scratch:
        inner.append(f"  %scratch_offset = mul nuw nsw i64 %thread, {scratch}")
        inner.append("  %scratch_own = getelementptr inbounds i8, ptr %scratch, i64 %scratch_offset")
    inner += [*emitter.b.entry, *emitter.b.lines, "  ret void", "}"]
    outer = [f"define void @{name}(ptr %buffers, i64 %thread, i64 %threads, ptr %barrier) nounwind #0 {{"]
    for number in range(count + (1 if scratch else 0)):
        outer.append(f"  %slot{number} = getelementptr inbounds ptr, ptr %buffers, i64 {number}")
        outer.append(f"  %p{number} = load ptr, ptr %slot{number}, align 8")
    given = [f"ptr %p{i}" for i in range(count)]
    given += [f"ptr %p{count}" if scratch else "ptr null", "i64 %thread", "i64 %threads", "ptr %barrier"]
    outer += [f"  call void @{name}_body({', '.join(given)})", "  ret void", "}"]
    return "\n".join([*inner, *outer]), scratch


def _read(body: Seq) -> frozenset[str]:
    """The buffers that a body reads."""
    return frozenset(name for stmt in walk(body) if isinstance(stmt, Block) for name in reads(stmt))
