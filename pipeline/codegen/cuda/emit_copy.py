"""Copies from global into shared memory that no thread waits for, and loops that make them ahead of time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pipeline.codegen.cuda.barriers import Meeting
from pipeline.codegen.cuda.cpp import Cpp
from pipeline.codegen.cuda.emit_state import Place, moved
from pipeline.codegen.cuda.emit_vector import Plan, VectorEmitter, Wide
from pipeline.codegen.cuda.lanes import Lanes
from pipeline.codegen.cuda.pipelines import Pipelined
from pipeline.ir.expr import Const, Expr, Load, Op
from pipeline.ir.poly import Poly
from pipeline.ir.program import Axis, Block, Stmt

ASYNC_CAPABILITY = 80
ASYNC_BYTES = (4, 8, 16)


@dataclass(slots=True)
class CopyEmitter(VectorEmitter):
    """Copies into the stages of a pipeline.

    meetings    who meets before which statements, by their ids
    pipelines   the loops that run so, by id
    ahead       is what is emitted a copy that may be asynchronous?
    """

    meetings: Mapping[int, Meeting] = field(default_factory=dict)
    pipelines: Mapping[int, Pipelined] = field(default_factory=dict)
    ahead: bool = False

    @property
    def asynchronous(self) -> bool:
        return self.gpu.capability >= ASYNC_CAPABILITY

    def pipelined(self, parts: Pipelined) -> None:
        """The copies of the first iterations; then in each iteration: those that it needs have arrived, all threads
        meet, the copies of a later iteration start, and the iteration computes."""
        (axis,) = parts.loop.axes
        extent, stages = axis.extent.value, parts.stages
        ahead = stages - 1
        self.meet(max(self.meetings.get(id(copy), Meeting.NONE) for copy in parts.copies))
        names = ", ".join(self.places[buffer.name].name for buffer, _ in parts.buffers)
        self.lines.note(f"{stages} stages of {names}: filled {ahead} ahead of the iteration that reads them")
        with self.scope():
            taken = set(self.names.taken)
            head, first = "", Cpp("0", "int")
            if ahead > 1:
                first = Cpp(self.declare(Axis(axis.var, Poly.of(ahead))), "int")
                head = f"for (int {first} = 0; {first} < {ahead}; ++{first})"
                self.lines.add("#pragma unroll")
            else:
                self.known[axis.var] = Const(0)
            with self.braces(head):
                self.copies(parts, first)
                self.group()
            self.names.taken = taken
        with self.scope():
            taken = set(self.names.taken)
            name = self.declare(axis)
            with self.braces(f"for (int {name} = 0; {name} < {extent}; ++{name})"):
                if self.asynchronous:
                    self.lines.add(f"ms::wait<{stages - 2}>();")
                self.lines.add("ms::sync();")
                with self.scope(), self.braces(f"if ({name} + {ahead} < {extent})"):
                    later = self.names.new(f"{axis.var}_ahead")
                    stage = self.names.new("fill")
                    self.lines.add(f"const int {later} = {name} + {ahead}, {stage} = {later} % {stages};")
                    ranges = {**self.facts.ranges, axis.var: (ahead, extent - 1)}
                    self.env[axis.var], self.facts = Cpp(later, "int"), type(self.facts)(ranges, self.facts.sums)
                    self.copies(parts, Cpp(stage, "int"))
                self.group()
                stage = self.names.new("stage")
                self.lines.add(f"const int {stage} = {name} % {stages};")
                with self.placed(self.staged(parts, Cpp(stage, "int"))):
                    self.statement(parts.rest)
            self.names.taken = taken

    def meet(self, who: Meeting) -> None:
        if who:
            self.lines.add("ms::sync();" if who == Meeting.BLOCK else "ms::sync_warp();")

    def group(self) -> None:
        """What was started since the last one is one group, also where it is nothing: groups are counted."""
        if self.asynchronous:
            self.lines.add("ms::commit();")

    def staged(self, parts: Pipelined, stage: Cpp) -> dict[str, Place]:
        return {
            buffer.name: moved(self.places[buffer.name], "" if stage.text == "0" else f"{stage} * {elements}")
            for buffer, elements in parts.buffers
        }

    def copies(self, parts: Pipelined, stage: Cpp) -> None:
        before, self.ahead = self.ahead, self.asynchronous
        with self.placed(self.staged(parts, stage)):
            for copy in parts.copies:
                self.leaf(copy)
        self.ahead = before

    # One copy

    def store(self, block: Block) -> None:
        """A single element, where it is large enough for a copy of its own."""
        source = _source(block)
        if self.ahead and source is not None and not self.lane:
            load, condition = source
            into, place = self.places[block.buffer], self.places[load.buffer]
            if _copyable(into, place, 1):
                self.copy_async(1, into, block.indices, place, load.indices, condition)
                return
        VectorEmitter.store(self, block)

    def plan(self, lanes: Lanes, block: Block) -> Plan | None:
        """Elements that do not end up side by side are rather copied one by one than waited for."""
        plan = VectorEmitter.plan(self, lanes, block)
        source = _source(block)
        if plan is None or plan[1] is not None or source is None or not self.ahead:
            return plan
        return None if _copyable(self.places[block.buffer], self.places[source[0].buffer], 1) else plan

    def moves(self, lanes: Lanes, block: Block, found: dict[Load, Wide], store: Wide) -> bool:
        source = _source(block)
        if self.ahead and source is not None and source[0] in found:
            load, condition = source
            wide = found[load]
            width = min(wide.width, store.width)
            while width > 1 and not _copyable(store.place, wide.place, width):
                width //= 2
            if _copyable(store.place, wide.place, width):
                for number in range(lanes.count // width):
                    self.copy_async(
                        width, store.place, store.indices, wide.place, wide.indices, condition, number * width
                    )
                return True
        return VectorEmitter.moves(self, lanes, block, found, store)

    def copy_async(self, width: int, into: Place, indices: tuple[Expr, ...], source: Place, at: tuple[Expr, ...],
                   condition: Expr | None, further: int = 0) -> None:  # fmt: skip
        known = True if condition is None else self.decide(condition)
        with self.assuming(self.facts):
            if condition is not None and known is None:
                test = f", {self.value(condition)}"
                self.learn(condition)
            else:
                test = "" if known else ", false"
            there, here = self.further(into, indices, further), self.further(source, at, further)
        self.lines.add(f"ms::copy_async<{width * into.item}>({into.name}, {there}, {source.name}, {here}{test});")

    def leaf(self, stmt: Stmt) -> None:
        """A nest of threads: see `Emitter`."""
        raise NotImplementedError

    def statement(self, stmt: Stmt) -> None:
        """Anything: see `Emitter`."""
        raise NotImplementedError


def _source(block: Block) -> tuple[Load, Expr | None] | None:
    """What a copy reads, and the condition without which it stores a zero."""
    match block.value:
        case Load() if block.combine is None:
            return block.value, None
        case Op("guard", (condition, Load() as load, Const(value, _)), _) if block.combine is None:
            return (load, condition) if repr(value) in ("0", "0.0", "False") else None
        case _:
            return None


def _copyable(into: Place, source: Place, width: int) -> bool:
    return (
        into.buffer.scope == "shared"
        and not into.private
        and source.buffer.scope == "global"
        and into.buffer.dtype == source.buffer.dtype
        and width * into.item in ASYNC_BYTES
    )
