"""Prefetches: the lines that a later iteration of a loop will read, asked for at the start of an earlier one."""

from __future__ import annotations

from dataclasses import dataclass, field

from pipeline.codegen.llvm.emit_state import Place
from pipeline.codegen.llvm.emit_tensor import TensorEmitter
from pipeline.codegen.llvm.linear import Linear
from pipeline.ir.expr import Affine, Load, affine
from pipeline.ir.graph import ITEM_BYTES
from pipeline.ir.poly import Poly
from pipeline.ir.program import Block, Loop, Stmt, block_loads, walk
from pipeline.schedule.nest import over_loops

MOST_LINES = 16  # of one load in one iteration: a longer or scattered read is left to the hardware's own prefetcher
PREFETCH = "declare void @llvm.prefetch.p0(ptr, i32 immarg, i32 immarg, i32 immarg)"


@dataclass(slots=True)
class PrefetchEmitter(TensorEmitter):
    """Loops with a hint to prefetch. `ahead`, for those that are being emitted: of which loop (itself, or one around
    it), by how many iterations, and into which level of cache."""

    ahead: dict[str, tuple[str, int, int]] = field(default_factory=dict)

    def prefetch(self, of: str, distance: int, level: int, body: Stmt) -> None:
        """For each run of global memory that the body reads: that of so many iterations of the loop `of` ahead."""
        asked: set[tuple[str, Linear]] = set()
        inner = {axis.var for stmt in walk(body) if isinstance(stmt, Loop) for axis in stmt.axes}
        for block in (stmt for stmt in walk(body) if isinstance(stmt, Block)):
            for load in block_loads(block):
                place = self.places.get(load.buffer)
                form = None if place is None or place.buffer.scope != "global" else _flat(block, load, place.strides)
                if place is None or form is None or not form.coefficient(of).terms:
                    continue  # the same memory in each iteration needs to be asked for by nobody
                start, span = Linear(form.constant.value + form.coefficient(of).value * distance), 0
                for name, coefficient in form.terms:
                    if name not in inner:
                        start = start + self.env[name].scale(coefficient.value)
                        continue
                    low, high = (coefficient.value * bound for bound in self.ranges[name])
                    start, span = start + Linear(min(low, high)), span + abs(high - low)
                lines = span * ITEM_BYTES[place.buffer.dtype] // self.target.line + 1
                if lines <= MOST_LINES and (place.pointer, start) not in asked:
                    asked.add((place.pointer, start))
                    self.ask(place, start, lines, level)

    def ask(self, place: Place, start: Linear, lines: int, level: int) -> None:
        """The address may lie beyond the buffer, which a prefetch does not mind, but `inbounds` would."""
        b = self.b
        b.declare("llvm.prefetch.p0", PREFETCH)
        first = self.materialise(start.scale(ITEM_BYTES[place.buffer.dtype]))
        for line in range(lines):
            address = b.assign(f"getelementptr i8, ptr {place.pointer}, i64 {first}", "ptr")
            if line:
                address = b.assign(f"getelementptr i8, ptr {address}, i64 {line * self.target.line}", "ptr")
            b.emit(f"call void @llvm.prefetch.p0(ptr {address}, i32 0, i32 {4 - level}, i32 1)")


def _flat(block: Block, load: Load, strides: tuple[int, ...]) -> Affine | None:
    """How far into the buffer a load reads, in elements, over the loops; None where that is not affine."""
    total = Affine((), Poly.of(0))
    for index, stride in zip(load.indices, strides, strict=True):
        form = affine(over_loops(block, index))
        if form is None:
            return None
        total = total + form.scale(Poly.of(stride))
    return total
