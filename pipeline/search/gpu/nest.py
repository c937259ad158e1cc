"""What the analytic model of GPUs notes of a program: per region its blocks with their loops, accesses and buffers.

One pass over the program, before any number is known. All sizes stay polynomials in the parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, assert_never

from pipeline.ir.expr import Affine, Const, Expr, Load, Op, affine, loads, substitute, variables
from pipeline.ir.graph import ITEM_BYTES, DType
from pipeline.ir.poly import Poly, product
from pipeline.ir.program import PRIVATE, Alloc, Block, Buffer, Loop, Program, Seq, Stmt, walk
from pipeline.schedule.intrinsics import INTRINSICS
from pipeline.search.gpu.work import Work, conversions, work_of

Level = Literal["grid", "serial", "thread", "unrolled", "vectorized", "unit"]
UnitKind = Literal["product", "fill", "load", "map", "row map", "row reduction", "lane map", "lane reduction"]


@dataclass(frozen=True, slots=True)
class Span:
    """One axis of a loop around a block. axis: x, y or z of a thread."""

    var: str
    extent: Poly
    level: Level
    axis: str = ""


@dataclass(frozen=True, slots=True)
class Placed:
    """An allocated buffer, and how often it is there: as often as the pipeline around it has stages, or its loop
    iterations, if that is less."""

    buffer: Buffer
    stages: Poly
    iterations: Poly


@dataclass(frozen=True, slots=True)
class Access:
    """One load or store of memory: per dimension the affine index over the loops, or None where it depends on data.

    scattered   the loop variables that an index which is not affine depends on
    converts    conversions of each loaded element
    """

    buffer: Buffer
    dims: tuple[Affine | None, ...]
    scattered: frozenset[str]
    store: bool
    size: int
    converts: float = 0.0

    def varies(self, var: str) -> bool:
        return var in self.scattered or any(d is not None and d.coefficient(var).terms for d in self.dims)


@dataclass(frozen=True, slots=True)
class Unit:
    """What a warp computes at once: the intrinsic, its kind, its loops, and of a product the dtype of its factors."""

    name: str
    kind: UnitKind
    spans: tuple[Span, ...]
    dtype: DType


@dataclass(frozen=True, slots=True)
class Leaf:
    """A block with the loops around it, outermost first.

    around      the allocated buffers that live while it runs
    pipeline    stages of the innermost pipelined loop around it; None where there is none
    pipelined   how many of `spans` are up to that loop, itself included
    copy        it does nothing but copy memory into a shared buffer
    domains     of each iteration variable: its extent, and its value over the loops
    """

    name: str
    spans: tuple[Span, ...]
    accesses: tuple[Access, ...]
    work: Work
    unit: Unit | None
    chain: bool  # it accumulates
    reduces: frozenset[str]
    around: tuple[Placed, ...]
    pipeline: Poly | None
    pipelined: int
    copy: bool
    domains: tuple[tuple[Poly, Affine], ...]


@dataclass(slots=True)
class Region:
    """One launch. barriers: the serial axes around each barrier."""

    leaves: list[Leaf] = field(default_factory=list)
    barriers: list[tuple[Span, ...]] = field(default_factory=list)
    warps: bool = False  # it has warp nests or fragments, so that 32 lanes are threadIdx.x
    written: set[str] = field(default_factory=set)


def regions_of(program: Program) -> tuple[Region, ...]:
    """The regions of the body, in order."""
    buffers = {buffer.name: buffer for buffer in program.all_buffers()}
    found = []
    for stmt in program.body.body:
        region = Region()
        _Collector(region, buffers).visit(stmt, _Context())
        _keep_stages_of_copies(region)
        found.append(region)
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Context:
    spans: tuple[Span, ...] = ()
    around: tuple[Placed, ...] = ()
    unit: tuple[str, int] | None = None  # its intrinsic, and where its spans begin
    pipeline: Poly | None = None
    pipelined: int = 0
    iterations: Poly = field(default_factory=lambda: Poly.of(1))
    threads: bool = False


@dataclass(slots=True)
class _Collector:
    region: Region
    buffers: Mapping[str, Buffer]

    def visit(self, stmt: Stmt, at: _Context) -> None:
        match stmt:
            case Seq(body):
                if not at.threads:
                    self._barriers_between(body, at)
                for child in body:
                    self.visit(child, at)
            case Alloc(buffer, body):
                self.region.warps |= buffer.scope == "fragment"
                placed = Placed(buffer, at.pipeline if at.pipeline is not None else Poly.of(1), at.iterations)
                self.visit(body, _with(at, around=(*at.around, placed)))
            case Loop():
                self._loop(stmt, at)
            case Block():
                self.region.leaves.append(_leaf(stmt, at, self.buffers))
                self.region.written.add(stmt.buffer)
            case _:
                assert_never(stmt)

    def _loop(self, loop: Loop, at: _Context) -> None:
        level, axis = _level(loop, at)
        if loop.annotation("tensorize") is not None and at.unit is None:
            at = _with(at, unit=(str(loop.annotation("tensorize")), len(at.spans)))
        if at.unit is not None:
            level = "unit"
        spans = (*at.spans, *(Span(a.var, a.extent, level, axis) for a in loop.axes))
        at = _with(at, spans=spans)
        if level == "thread":
            self.region.warps |= axis != "x" and not _has_lanes(loop.body)
            at = _with(at, threads=True)
        stages = loop.annotation("software_pipeline")
        if stages is not None:
            at = _with(
                at,
                pipeline=Poly.of(stages) if isinstance(stages, int) else Poly.symbol(stages),
                pipelined=len(spans),
                iterations=product([axis.extent for axis in loop.axes]),
            )
        elif level == "serial" and not at.threads:
            reads, writes = _touched(loop.body, self.buffers)
            if reads & writes:
                self.region.barriers.append(_serial(spans))  # before the next iteration overwrites what is read
        self.visit(loop.body, at)

    def _barriers_between(self, body: tuple[Stmt, ...], at: _Context) -> None:
        """One barrier before each nest that touches what those before it touched, since the last barrier."""
        read: set[str] = set()
        written: set[str] = set()
        for child in body:
            reads, writes = _touched(child, self.buffers)
            if reads & written or writes & (read | written):
                self.region.barriers.append(_serial(at.spans))
                read, written = set(), set()
            read |= reads
            written |= writes


def _with(at: _Context, **changes: object) -> _Context:
    known = {name: getattr(at, name) for name in _Context.__slots__}
    return _Context(**(known | changes))


def _level(loop: Loop, at: _Context) -> tuple[Level, str]:
    match loop.kind:
        case "blockIdx.x" | "blockIdx.y" | "blockIdx.z":
            return "grid", ""
        case "parallel":
            return ("grid" if all(span.level == "grid" for span in at.spans) else "serial"), ""
        case "threadIdx.x" | "threadIdx.y" | "threadIdx.z":
            return "thread", loop.kind[-1]
        case "unrolled":
            return "unrolled", ""
        case "vectorized":
            return "vectorized", ""
        case "serial":
            return "serial", ""
        case _:
            assert_never(loop.kind)


def _has_lanes(stmt: Stmt) -> bool:
    return any(isinstance(s, Loop) and s.kind == "threadIdx.x" for s in walk(stmt))


def _serial(spans: tuple[Span, ...]) -> tuple[Span, ...]:
    return tuple(span for span in spans if span.level in ("serial", "unrolled"))


def _touched(stmt: Stmt, buffers: Mapping[str, Buffer]) -> tuple[set[str], set[str]]:
    """Names of the buffers that threads share which a statement reads and writes."""
    reads: set[str] = set()
    writes: set[str] = set()
    for below in walk(stmt):
        if isinstance(below, Block):
            if buffers[below.buffer].scope not in PRIVATE:
                writes.add(below.buffer)
            for load in loads(below.value):
                if buffers[load.buffer].scope not in PRIVATE:
                    reads.add(load.buffer)
    return reads, writes


def _keep_stages_of_copies(region: Region) -> None:
    """Only buffers that copies alone write are there several times."""
    shared = {leaf.accesses[0].buffer.name for leaf in region.leaves if not leaf.copy}

    def kept(placed: Placed) -> Placed:
        staged = placed.buffer.scope == "shared" and placed.buffer.name not in shared
        return placed if staged else Placed(placed.buffer, Poly.of(1), Poly.of(1))

    for number, leaf in enumerate(region.leaves):
        around = tuple(kept(placed) for placed in leaf.around)
        copy = leaf.copy and leaf.accesses[0].buffer.name not in shared
        region.leaves[number] = Leaf(
            leaf.name, leaf.spans, leaf.accesses, leaf.work, leaf.unit, leaf.chain, leaf.reduces, around,
            leaf.pipeline, leaf.pipelined, copy, leaf.domains,
        )  # fmt: skip


def _leaf(block: Block, at: _Context, buffers: Mapping[str, Buffer]) -> Leaf:
    bindings: dict[str, Expr] = {it.var: it.binding for it in block.iters}
    inner = frozenset(span.var for span in at.spans)

    def access(buffer: str, indices: tuple[Expr, ...], store: bool, converts: float = 0.0) -> Access:
        forms = [substitute(index, bindings) for index in indices]
        dims = tuple(affine(form) for form in forms)
        scattered = {
            var for form, dim in zip(forms, dims, strict=True) if dim is None for var in variables(form) if var in inner
        }
        return Access(buffers[buffer], dims, frozenset(scattered), store, ITEM_BYTES[buffers[buffer].dtype], converts)

    accesses = [access(block.buffer, block.indices, True)]
    if block.combine is not None and buffers[block.buffer].scope not in PRIVATE:
        accesses.append(access(block.buffer, block.indices, False))
    seen: set[Load] = set()
    for expr in (block.value, *block.where, *block.indices):
        for load in loads(expr):
            if load not in seen:
                seen.add(load)
                accesses.append(access(load.buffer, load.indices, False, conversions(block, load)))
    registers = frozenset(name for name, buffer in buffers.items() if buffer.scope in PRIVATE)
    reduces = {
        name for it in block.iters if it.kind == "reduce" and (form := affine(it.binding)) for name, _ in form.terms
    }
    unit = None
    if at.unit is not None:
        name, begin = at.unit
        intrinsic = INTRINSICS.get(name)
        kind = getattr(intrinsic, "kind", None)
        if kind is not None:
            factors = [buffers[load.buffer].dtype for load in seen] or [buffers[block.buffer].dtype]
            unit = Unit(name, kind, at.spans[begin:], factors[0])
    domains = tuple((it.extent, form) for it in block.iters if (form := affine(it.binding)) is not None)
    return Leaf(
        block.name, at.spans, tuple(accesses), work_of(block, registers), unit, block.combine is not None,
        frozenset(reduces), at.around, at.pipeline, at.pipelined, _is_copy(block, buffers), domains,
    )  # fmt: skip


def _is_copy(block: Block, buffers: Mapping[str, Buffer]) -> bool:
    """Whether it copies global memory into shared memory, zeros in the place of what is left out."""
    value = block.value
    if isinstance(value, Op) and value.fn == "guard" and isinstance(value.args[2], Const):
        value = value.args[1]
    into_shared = buffers[block.buffer].scope == "shared" and block.combine is None
    return into_shared and isinstance(value, Load) and buffers[value.buffer].scope == "global"
