"""Copies that transpose: squares of contiguous rows are loaded, turned in registers, and stored as contiguous rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from pipeline.codegen.llvm.conditions import inequalities
from pipeline.codegen.llvm.emit_prefetch import PrefetchEmitter
from pipeline.codegen.llvm.emit_state import Lanes
from pipeline.codegen.llvm.ir_builder import MEMORY_TYPE, Value, literal, vector_type
from pipeline.codegen.llvm.linear import Linear
from pipeline.codegen.llvm.transpose_lanes import transpose
from pipeline.codegen.llvm.transposed_copy import TransposedCopy, moved, transposed_copy, unconditional
from pipeline.ir.expr import Load
from pipeline.ir.graph import ITEM_BYTES
from pipeline.ir.poly import Poly
from pipeline.ir.program import Axis, Block, Loop, Stmt

LEAST = 4  # rows of a square, where vectors have as many lanes: fewer are gathered


@dataclass(frozen=True, slots=True)
class Rectangle:
    """Iterations of a transposed copy: of its row loop from `top` to before `bottom`, of its lanes likewise."""

    top: int
    bottom: int
    left: int
    right: int

    @property
    def sides(self) -> tuple[int, int]:
        return self.bottom - self.top, self.right - self.left


@dataclass(slots=True)
class TransposeEmitter(PrefetchEmitter):
    """Serial loops over transposed copies."""

    def transposed(self, loop: Loop) -> bool:
        """Emits the nest in squares; False where it is no such nest, or smaller than a square."""
        if self.lanes is not None:
            return False
        copy = transposed_copy(loop, lambda name: self.places[name].strides, self.ranges)
        if copy is None or any(self.places[name].buffer.scope == "local" for name in _names(copy)):
            return False  # squares are loops, and memory that is to become registers has to be indexed by constants
        before = {axis.var: self.ranges.get(axis.var) for axis in (copy.row, copy.lane)}
        for axis in (copy.row, copy.lane):
            self.ranges[axis.var] = (0, axis.extent.value - 1)
        done = self.reordered(copy) if copy.outer else self.in_squares(copy)
        for var, bounds in before.items():
            if bounds is not None:
                self.ranges[var] = bounds
        return done

    def reordered(self, copy: TransposedCopy) -> bool:
        """The row loop right around the lanes, the others around both, where that makes room for squares."""
        if not self.side(copy, _whole(copy)):
            return False
        self.serial(list(copy.outer), Loop((copy.row,), Loop((copy.lane,), copy.block, "vectorized")))
        return True

    def in_squares(self, copy: TransposedCopy) -> bool:
        """Squares where all conditions are known to hold, and the other iterations as they are; where that is not known
        before the program runs, it tests it."""
        area = self.certain(copy)
        side, tests = self.side(copy, area), self.tests(copy, area)
        if not side or tests:
            area = _whole(copy)
            side, tests = self.side(copy, area), self.tests(copy, area)
        if not side or tests is None:
            return False
        if not tests:
            self.squares(copy, area, side)
            for piece in _around(area, _whole(copy)):
                self.plain(copy, piece)
            return True
        b = self.b
        condition = self.conjunction([b.compare("icmp slt", self.materialise(x), literal(n, "i64")) for x, n in tests])
        assert condition is not None
        self.when(condition, lambda: self.squares(copy, area, side), lambda: self.plain(copy, area))
        return True

    def certain(self, copy: TransposedCopy) -> Rectangle:
        """Where the conditions on each of the two loops hold, whatever the other variables are."""
        row, lane = copy.row, copy.lane
        _, top, bottom, _ = self.table.interval(row.var, 0, row.extent.value, copy.block, self.ranges)
        ranges = self.ranges | ({row.var: (top, bottom - 1)} if top < bottom else {})
        _, left, right, _ = self.table.interval(lane.var, 0, lane.extent.value, copy.block, ranges)
        return Rectangle(top, bottom, left, right)

    def tests(self, copy: TransposedCopy, area: Rectangle) -> list[tuple[Linear, int]] | None:
        """What has to be less than a bound for all conditions to hold in an area; None where one of them does not."""
        corners = {copy.row.var: (area.top, area.bottom - 1), copy.lane.var: (area.left, area.right - 1)}
        ranges = self.ranges | corners
        values = []
        for inequality in inequalities(copy.block):
            worst, least, most = Linear(), 0, 0
            for name, c in inequality.terms:
                low, high = ranges[name] if c > 0 else ranges[name][::-1]
                most += c * high
                least += c * (high if name in corners else low)
                worst = worst + (Linear(c * high) if name in corners else self.env[name].scale(c))
            if least >= inequality.bound:
                return None
            if most >= inequality.bound:
                values.append((worst, inequality.bound))
        return values

    def side(self, copy: TransposedCopy, area: Rectangle) -> int:
        """Of the squares: what registers hold twice, at most a vector; 0 where not even the least one fits."""
        lanes = self.target.lanes(max(ITEM_BYTES[self.places[name].buffer.dtype] for name in _names(copy)))
        turned = 1 if copy.results else len(copy.loads)
        most = min(lanes, self.target.vector_registers // (2 * turned), *area.sides)
        return 0 if most < max(2, min(LEAST, lanes)) else 1 << most.bit_length() - 1

    def squares(self, copy: TransposedCopy, area: Rectangle, side: int) -> None:
        """The whole area; squares at its ends overlap others where the side does not divide it."""
        block = unconditional(copy.block)
        self.steps(
            area.top, area.bottom, side, block.buffer,
            lambda top: self.steps(
                area.left, area.right, side, block.buffer, lambda left: self.square(copy, block, side, top, left)
            ),
        )  # fmt: skip

    def steps(self, first: int, last: int, side: int, buffer: str, then: Callable[[Linear], None]) -> None:
        """`then` with where each square begins."""
        count, rest = -(-(last - first) // side), last - first - side
        if count == 1:
            then(Linear(first))
            return

        def step(index: Value) -> None:
            begin = self.term(index, (0, count - 1)).scale(side)
            if rest % side:
                least = self.b.intrinsic("smin", self.materialise(begin), literal(rest, "i64"))
                begin = self.term(least, (0, rest))
            then(begin + Linear(first))

        self.counted(literal(0, "i64"), literal(count, "i64"), step, frozenset({buffer}))

    def square(self, copy: TransposedCopy, block: Block, side: int, top: Linear, left: Linear) -> None:
        self.cache.append({})
        if copy.results:
            turned = self.results(copy, block, side, top, left)
            then = [partial(self.bits_stored, block, bits) for bits in turned]
        else:
            columns = {load: self.columns(copy, load, side, top, left) for load in copy.loads}
            rows = [{load: found[j] for load, found in columns.items()} for j in range(side)]
            then = [partial(self.stored, block, vectors) for vectors in rows]
        self.lanes = Lanes(copy.lane.var, side)
        for j in range(side):
            self.at(copy, top + Linear(j), left + Linear(lane=1), then[j])
        self.lanes = None
        self.cache.pop()

    def results(self, copy: TransposedCopy, block: Block, side: int, top: Linear, left: Linear) -> list[Value]:
        """What a square stores, one vector for each iteration of the row loop, as bits; computed along the rows."""
        dtype = self.places[block.buffer].buffer.dtype
        read: list[Value] = []

        def compute() -> None:
            value = self.storable(self.b.splat(self.value(block.value), side), dtype)
            bits = f"i{8 * ITEM_BYTES[dtype]}"
            read.append(value if value.type == bits else self.b.convert("bitcast", value, bits))

        self.lanes = Lanes(copy.row.var, side)
        for i in range(side):
            self.at(copy, top + Linear(lane=1), left + Linear(i), compute)
        self.lanes = None
        return transpose(self.b, read, ITEM_BYTES[dtype])

    def columns(self, copy: TransposedCopy, load: Load, side: int, top: Linear, left: Linear) -> list[Value]:
        """What a load reads in a square, one vector for each iteration of the row loop, as bits."""
        read: list[Value] = []
        for i in range(side):
            self.at(copy, top, left + Linear(i), lambda: read.append(self.piece(load, side)))
        return transpose(self.b, read, ITEM_BYTES[load.dtype])

    def at(self, copy: TransposedCopy, row: Linear, lane: Linear, then: Callable[[], None]) -> None:
        """`then` with both variables bound."""
        bounds = [(0, axis.extent.value - 1) for axis in (copy.row, copy.lane)]
        self.bind(copy.row.var, row, bounds[0], lambda: self.bind(copy.lane.var, lane, bounds[1], then))

    def piece(self, load: Load, count: int) -> Value:
        """So many elements in a row, as bits."""
        place = self.places[load.buffer]
        offset = self.offset(place, load.indices)
        assert isinstance(offset, Linear)
        bits = f"i{8 * ITEM_BYTES[load.dtype]}"
        address, align = self.address(place, offset), self.alignment(place, offset, count)
        return self.b.assign(f"load {vector_type(bits, count)}, ptr {address}, align {align}", bits, count)

    def stored(self, block: Block, vectors: dict[Load, Value]) -> None:
        """One row of the result, from what the loads have read."""
        place = self.places[block.buffer]
        if isinstance(block.value, Load) and block.value in vectors and block.value.dtype == place.buffer.dtype:
            self.bits_stored(block, vectors[block.value])  # no conversion there and back
            return
        for load, bits in vectors.items():
            source = self.places[load.buffer]
            offset = self.offset(source, load.indices)
            assert isinstance(offset, Linear)
            memory = MEMORY_TYPE[load.dtype]
            value = bits if memory == bits.type else self.b.convert("bitcast", bits, memory)
            self.remember(self.load_key(source, offset), self.loaded(value, load.dtype))
        self.block(block)

    def bits_stored(self, block: Block, bits: Value) -> None:
        """One row of the result, as it is in memory."""
        place = self.places[block.buffer]
        offset = self.offset(place, block.indices)
        assert isinstance(offset, Linear)
        self.forget({block.buffer})
        address, align = self.address(place, offset), self.alignment(place, offset, bits.lanes)
        self.b.emit(f"store {vector_type(bits.type, bits.lanes)} {bits}, ptr {address}, align {align}")

    def plain(self, copy: TransposedCopy, area: Rectangle) -> None:
        """The iterations as the nest has them, lanes along the vectorized loop."""
        row, lane = copy.row.var, copy.lane.var
        height, width = area.sides
        before = self.ranges[row], self.ranges[lane]
        self.ranges[row], self.ranges[lane] = (0, height - 1), (0, width - 1)
        body = Loop((Axis(lane, Poly.of(width)),), moved(copy, area.top, area.left), "vectorized")
        self.serial([Axis(row, Poly.of(height))], body)
        self.ranges[row], self.ranges[lane] = before

    def serial(self, axes: list[Axis], body: Stmt) -> None:
        """Loops as they are: see `Emitter`."""
        raise NotImplementedError


def _whole(copy: TransposedCopy) -> Rectangle:
    return Rectangle(0, copy.row.extent.value, 0, copy.lane.extent.value)


def _around(area: Rectangle, whole: Rectangle) -> list[Rectangle]:
    """What is above, below, to the left and to the right of an area."""
    pieces = [
        Rectangle(whole.top, area.top, whole.left, whole.right),
        Rectangle(area.bottom, whole.bottom, whole.left, whole.right),
        Rectangle(area.top, area.bottom, whole.left, area.left),
        Rectangle(area.top, area.bottom, area.right, whole.right),
    ]
    return [piece for piece in pieces if min(piece.sides) > 0]


def _names(copy: TransposedCopy) -> list[str]:
    """The buffers between which it moves elements."""
    return [copy.block.buffer, *(load.buffer for load in copy.loads)]
