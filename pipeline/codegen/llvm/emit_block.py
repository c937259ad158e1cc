"""Blocks: their conditions, their stores, and reductions over lanes."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.codegen.llvm.elementwise import elementwise, extremum
from pipeline.codegen.llvm.emit_state import Sink
from pipeline.codegen.llvm.emit_value import ValueEmitter
from pipeline.codegen.llvm.ir_builder import (
    FLOATS,
    Value,
    literal,
    vector_type,
)
from pipeline.codegen.llvm.linear import Linear
from pipeline.errors import CodegenError
from pipeline.ir.expr import Expr, Op, affine
from pipeline.ir.graph import DType
from pipeline.ir.program import Block
from pipeline.ir.scalar_limits import neutral_number


@dataclass(slots=True)
class BlockEmitter(ValueEmitter):
    """Blocks."""

    def block(self, block: Block) -> None:
        """The conditions first: those that always hold cost nothing, those that never do drop the block."""
        outer_env = {it.var: self.env.get(it.var) for it in block.iters}
        masks: list[Value] = []
        scalars: list[Value] = []
        bound: dict[str, Linear] = {}
        for it in block.iters:
            index = self.linear(it.binding)
            if index is None:
                raise CodegenError(
                    f"the binding of {it.var} is not an index", where=block.name, why="it must be affine or folded"
                )
            bound[it.var] = index
            low, high = index.bounds(self.ssa_ranges, self.lane_count())
            extent = it.extent.value
            low, high = self.tighten(it.binding, low, high)
            if high < 0 or low >= extent:
                return
            if high >= extent:
                (masks if index.lane else scalars).append(
                    self.b.compare("icmp slt", self.materialise(index), literal(extent, "i64"))
                )
            if low < 0:
                (masks if index.lane else scalars).append(
                    self.b.compare("icmp sge", self.materialise(index), literal(0, "i64"))
                )
        for condition in block.where:
            known = self.decide(condition)
            if known is False:
                return
            if known is None:
                value = self.value(condition)
                (scalars if value.lanes == 1 else masks).append(value)
        self.env.update(bound)

        def body() -> None:
            assert self.lanes is None or not masks or self.lanes.count > 1
            old = self.lanes.mask if self.lanes else None
            if self.lanes:
                self.lanes.mask = self.conjunction([*([old] if old else []), *masks])
            self.store(block)
            if self.lanes:
                self.lanes.mask = old

        if scalars:
            condition_value = self.conjunction(scalars)
            assert condition_value is not None
            self.forget({block.buffer})
            self.when(condition_value, body)
            self.forget({block.buffer})
        else:
            body()
        self.restore(outer_env)

    def tighten(self, binding: Expr, low: int, high: int) -> tuple[int, int]:
        """The bounds over loop variables, which know of the pieces of split loops, against those over SSA values."""
        form = affine(binding)
        if form is None:
            return low, high
        a = b = form.constant.value
        for name, coefficient in form.terms:
            c = coefficient.value
            if name not in self.ranges:
                return low, high
            first, last = self.ranges[name]
            if self.lanes is not None and name == self.lanes.var and self.lanes.mask is not None:
                last = max(last, first)  # lanes beyond the end are masked already
            a += c * (first if c > 0 else last)
            b += c * (last if c > 0 else first)
        return max(low, a), min(high, b)

    def conjunction(self, conditions: list[Value]) -> Value | None:
        total: Value | None = None
        for condition in conditions:
            total = condition if total is None else self.b.binary("and", total, condition)
        return total

    def store(self, block: Block) -> None:
        b = self.b
        place = self.places[block.buffer]
        dtype = place.buffer.dtype
        if self.sink is not None and self.sink.block == block.name:
            self.accumulate(block, self.sink, dtype)
            return
        offset = self.offset(place, block.indices)
        if block.combine is None:
            self.write(place, offset, block, self.value(block.value))
            return
        if block.init is not None:
            raise CodegenError(
                "a reduction whose initialisation was not split off", where=block.name, todo="DecomposeReduction first"
            )
        spread = not isinstance(offset, Value) and offset.lane == 0 and self.lanes is not None
        if block.combine == "sum" and dtype in FLOATS and not spread:
            product = self.product(block.value)
            if product is not None:
                old = self.read(place, offset, block.indices)
                self.write(place, offset, block, b.intrinsic("fmuladd", *product, old))
                return
        value = self.value(block.value)
        if spread and self.lanes is not None:
            value = self.b.splat(value, self.lanes.count)
            if self.lanes.mask is not None:
                value = self.b.select(self.lanes.mask, value, literal(neutral_number(block.combine, dtype), value.type))
            value = self.across(block.combine, value, dtype)
        old = self.read(place, offset, block.indices)
        self.write(place, offset, block, self.combine(block.combine, old, value, dtype))

    def accumulate(self, block: Block, sink: Sink, dtype: DType) -> None:
        """Combines a vector with the accumulator whose turn it is; lanes that are masked out change nothing."""
        assert self.lanes is not None and block.combine is not None
        b, lanes = self.b, self.lanes
        pointer = sink.accumulators[sink.current]
        type_ = vector_type(sink.type, lanes.count)
        old = b.assign(f"load {type_}, ptr {pointer}, align 64", sink.type, lanes.count)
        product = self.product(block.value) if block.combine == "sum" and dtype in FLOATS else None
        if product is not None and lanes.mask is None:
            new = b.intrinsic("fmuladd", *product, old)
        else:
            value = b.binary("fmul", *product) if product is not None else self.value(block.value)
            value = b.splat(value, lanes.count)
            if lanes.mask is not None:
                value = b.select(lanes.mask, value, literal(neutral_number(block.combine, dtype), value.type))
            new = self.combine(block.combine, old, value, dtype)
        b.emit(f"store {type_} {new}, ptr {pointer}, align 64")

    def add_to(self, block: Block, total: Value) -> None:
        """Combines a value with the element that the block writes."""
        outer_env = {it.var: self.env.get(it.var) for it in block.iters}
        self.env.update({it.var: index for it in block.iters if (index := self.linear(it.binding)) is not None})
        place = self.places[block.buffer]
        offset = self.offset(place, block.indices)
        assert block.combine is not None
        old = self.read(place, offset, block.indices)
        self.write(place, offset, block, self.combine(block.combine, old, total, place.buffer.dtype))
        self.restore(outer_env)

    def product(self, value: Expr) -> tuple[Value, Value] | None:
        """The factors where the value is a product of floats; a conversion around it or in it is seen through."""
        if isinstance(value, Op) and value.fn == "guard" and self.decide(value.args[0]):
            value = value.args[1]
        if isinstance(value, Op) and value.fn == "mul" and value.dtype in ("float32", "float64"):
            a, c = self.value(value.args[0]), self.value(value.args[1])
            lanes = max(a.lanes, c.lanes, 1)
            return self.b.splat(a, lanes), self.b.splat(c, lanes)
        return None

    def combine(self, how: str, a: Value, c: Value, dtype: DType) -> Value:
        if how in ("max", "min") and dtype in FLOATS:
            return extremum(self.b, how, a, c)
        fn = {"sum": "add", "prod": "mul"}.get(how, how)
        return elementwise(self.b, self.library, fn, (a, c), dtype, dtype)

    def across(self, how: str, value: Value, dtype: DType) -> Value:
        """All lanes of a vector combined into one: halves with halves, the same tree on every machine."""
        b = self.b
        while value.lanes > 1:
            count, half = value.lanes, value.lanes // 2
            type_ = vector_type(value.type, count)
            if count % 2:
                raise CodegenError("a reduction over an odd number of lanes", where="codegen.llvm")
            if half == 1:
                first, second = (b.assign(f"extractelement {type_} {value}, i64 {i}", value.type) for i in (0, 1))
                return self.combine(how, first, second, dtype)
            first, second = (
                b.assign(
                    f"shufflevector {type_} {value}, {type_} poison, <{half} x i32> "
                    f"<{', '.join(f'i32 {i + start}' for i in range(half))}>",
                    value.type, half,
                )
                for start in (0, half)
            )  # fmt: skip
            value = self.combine(how, first, second, dtype)
        return value
