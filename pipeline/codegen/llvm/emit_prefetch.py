"""Prefetches: the lines that a later iteration of a loop will read, asked for at the start of an earlier one."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from pipeline.codegen.llvm.emit_state import Place
from pipeline.codegen.llvm.emit_tensor import TensorEmitter
from pipeline.codegen.llvm.linear import Linear
from pipeline.ir.expr import Affine, Load, affine
from pipeline.ir.graph import ITEM_BYTES
from pipeline.ir.poly import Poly
from pipeline.ir.program import Block, Loop, Stmt, walk
from pipeline.schedule.nest import loads_of, over_loops

MOST_LINES = 16  # of one load in one iteration: a longer or scattered read is left to the hardware's own prefetcher
SHARE = 8  # of the second cache: this tile and the next one, of two operands, in a half of it
PREFETCH = "declare void @llvm.prefetch.p0(ptr, i32 immarg, i32 immarg, i32 immarg)"


@dataclass(slots=True)
class PrefetchEmitter(TensorEmitter):
    """Loops with a hint to prefetch. `ahead`, for those that are being emitted: of which loop (itself, or one around
    it), by how many iterations, and into which level of cache. `extents`: of the loops, outer ones first."""

    ahead: dict[str, tuple[str, int, int]] = field(default_factory=dict)
    extents: dict[str, int] = field(default_factory=dict)

    def prefetch(self, var: str, body: Stmt) -> None:
        """For each run of global memory that the body reads: that of so many iterations of the loop `of` ahead, unless
        such an iteration reads so much that it would push what is in use out of the cache.

        A packed operand that loops between the two do not move is asked for in parts, a part in each of their
        iterations: memory is read at the pace at which the processor computes, and nothing is asked for twice.
        """
        of, distance, level = self.ahead[var]
        asked: set[tuple[str, Linear]] = set()
        inner = {axis.var for stmt in walk(body) if isinstance(stmt, Loop) for axis in stmt.axes}
        for block in (stmt for stmt in walk(body) if isinstance(stmt, Block)):
            for load in loads_of(block):
                place = self.places.get(load.buffer)
                form = None if place is None or place.buffer.scope != "global" else _flat(block, load, place.strides)
                if place is None or form is None or not form.coefficient(of).terms:
                    continue  # the same memory in each iteration needs to be asked for by nobody
                start, span, item = Linear(form.constant.value), 0, ITEM_BYTES[place.buffer.dtype]
                for name, coefficient in form.terms:
                    if name == var:
                        continue
                    if name not in inner:
                        start = start + self.env[name].scale(coefficient.value)
                        continue
                    low, high = (coefficient.value * bound for bound in self.ranges[name])
                    start, span = start + Linear(min(low, high)), span + abs(high - low)
                if self.moved(form, of, var) * (span + 1) * item * distance > self.room:
                    continue
                start = start.scale(item) + Linear(form.coefficient(of).value * distance * item)
                parts = self.parts(form, of, var) if form.coefficient(var) == Poly.of(span + 1) else []
                if parts:
                    start, lines = self.part(start, (span + 1) * item, var, parts)
                else:
                    start = start + self.env[var].scale(form.coefficient(var).value * item)
                    lines = span * item // self.target.line + 1
                if lines <= MOST_LINES and (place.pointer, start) not in asked:
                    asked.add((place.pointer, start))
                    self.ask(place, start, lines, level)

    @property
    def room(self) -> float:
        """Bytes of what is asked for early that a cache has room for."""
        return (self.target.cache(2) or math.inf) / SHARE

    def moved(self, form: Affine, of: str, var: str) -> int:
        """How many runs of the operand one iteration of the loop `of` reads; one, where that is the loop itself."""
        inside = [*self.between(of, var), var] if of != var else []
        return math.prod(self.extents.get(name, 1) for name in inside if form.coefficient(name).terms)

    def parts(self, form: Affine, of: str, var: str) -> list[str]:
        """The loops between the two that do not move the operand."""
        return [
            name for name in self.between(of, var)
            if self.extents.get(name, 1) > 1 and not form.coefficient(name).terms
        ]  # fmt: skip

    def between(self, of: str, var: str) -> list[str]:
        """The names between the two, of loops and of what is read off them, the outer ones first."""
        names = [*self.env]
        return names[names.index(of) + 1 : names.index(var)]

    def part(self, start: Linear, run: int, var: str, parts: list[str]) -> tuple[Linear, int]:
        """Of as many runs of so many bytes as the loop has iterations, the share of this iteration of the loops."""
        number, count = Linear(), 1
        for name in reversed((*parts, var)):
            number, count = number + self.env[name].scale(count), count * self.extents[name]
        bytes_ = -(-run * self.extents[var] // count)
        lines = -(-bytes_ // self.target.line)
        return start + number.scale(bytes_ if lines == 1 else lines * self.target.line), lines

    def ask(self, place: Place, start: Linear, lines: int, level: int) -> None:
        """The address, in bytes, may lie beyond the buffer, which a prefetch does not mind, but `inbounds` would."""
        b = self.b
        b.declare("llvm.prefetch.p0", PREFETCH)
        first = self.materialise(start)
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
