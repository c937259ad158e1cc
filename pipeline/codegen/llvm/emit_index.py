"""Index expressions into linear indices and addresses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from pipeline.codegen.llvm.elementwise import elementwise
from pipeline.codegen.llvm.emit_state import EmitState, Place
from pipeline.codegen.llvm.ir_builder import (
    MEMORY_TYPE,
    Value,
    lane_numbers,
    literal,
)
from pipeline.codegen.llvm.linear import UNKNOWN, Linear
from pipeline.errors import CodegenError
from pipeline.ir.expr import Const, Expr, Load, Op, Size, Var, dtype_of
from pipeline.ir.graph import ITEM_BYTES


@dataclass(slots=True)
class IndexEmitter(EmitState):
    """Indices and addresses."""

    def linear(self, expr: Expr) -> Linear | None:
        """The index as a linear one; None where it differs from lane to lane in another way."""
        match expr:
            case Const(value, _):
                return Linear(int(value)) if isinstance(value, int) else None
            case Var(name):
                return self.env[name]
            case Size():
                raise CodegenError(
                    f"the size {expr.poly} is not a number", where="codegen.llvm", why="not instantiated"
                )
            case Op("add" | "sub", (a, b)) if expr.dtype == "int64":
                x, y = self.linear(a), self.linear(b)
                if x is None or y is None:
                    return None
                return x + (y if expr.fn == "add" else y.scale(-1))
            case Op("mul", (a, b)) if expr.dtype == "int64":
                x, y = self.linear(a), self.linear(b)
                if x is None or y is None:
                    return None
                if y.constant:
                    return x.scale(y.const)
                if x.constant:
                    return y.scale(x.const)
                return self.opaque(expr)
            case Op("floordiv" | "mod" as fn, (a, Const(number, _))) if expr.dtype == "int64":
                index = self.linear(a)
                if index is None:
                    return None
                return self.divided(fn, index, int(number))
            case Op() | Load():
                return self.opaque(expr) if dtype_of(expr) == "int64" else None
            case _:
                assert_never(expr)

    def divided(self, fn: str, index: Linear, number: int) -> Linear | None:
        low, high = index.bounds(self.ssa_ranges, self.lane_count())
        if low // number == high // number:
            quotient = low // number
            return Linear(quotient) if fn == "floordiv" else index + Linear(-quotient * number)
        if index.lane:
            # one row of the divided index holds whole vectors: the lanes stay in one piece
            width = self.lane_count()
            if index.lane == 1 and number % width == 0 and index.multiple_of(width, self.ssa_ranges):
                base = self.divided(fn, Linear(index.const, index.terms), number)
                return base if base is None or fn == "floordiv" else base + Linear(lane=1)
            return None
        value = self.materialise(index)
        key = (fn, value.name, number)
        found = self.lookup(key)
        if found is None:
            if low >= 0:
                found = self.b.binary("udiv" if fn == "floordiv" else "urem", value, literal(number, "i64"))
            else:
                found = elementwise(self.b, self.library, fn, (value, literal(number, "i64")), "int64", "int64")
            self.remember(key, found)
        bounds = (low // number, high // number) if fn == "floordiv" else (0, number - 1)
        return self.term(found, bounds)

    def opaque(self, expr: Expr) -> Linear | None:
        value = self.generic(expr)
        return self.term(value, UNKNOWN) if value.lanes == 1 else None

    def materialise(self, index: Linear) -> Value:
        """The index as an i64, in all lanes where it has a stride over them."""
        key = ("index", index, self.lane_count() if index.lane else 1)
        found = self.lookup(key)
        if found is not None:
            return found
        b = self.b
        total: Value | None = None
        for name, coefficient in index.terms:
            part = Value(name, "i64")
            if coefficient != 1:
                part = b.binary("mul nsw", part, literal(coefficient, "i64"))
            total = part if total is None else b.binary("add nsw", total, part)
        if total is None:
            total = literal(index.const, "i64")
        elif index.const:
            total = b.binary("add nsw", total, literal(index.const, "i64"))
        if index.lane:
            total = b.binary("add nsw", b.splat(total, self.lane_count()), lane_numbers(self.lane_count(), index.lane))
        self.remember(key, total)
        return total

    def offset(self, place: Place, indices: tuple[Expr, ...]) -> Linear | Value:
        """The offset in elements: linear, or one number for each lane."""
        total: Linear = Linear()
        odd: list[Value] = []
        for index, stride in zip(indices, place.strides, strict=True):
            form = self.linear(index)
            if form is not None:
                total = total + form.scale(stride)
            else:
                value = self.generic(index)
                odd.append(self.b.binary("mul nsw", value, literal(stride, "i64")) if stride != 1 else value)
        if not odd:
            return total
        value = self.materialise(total)
        for part in odd:
            value = self.b.binary("add nsw", value, part)
        return value

    def address(self, place: Place, offset: Linear) -> str:
        """A pointer; what does not change from lane to lane, without its constant part, is made once."""
        b = self.b
        bytes_ = ITEM_BYTES[place.buffer.dtype]
        base = place.pointer
        if offset.terms:
            key = ("address", place.pointer, offset.terms)
            found = self.lookup(key)
            if found is None:
                index = self.materialise(Linear(0, offset.terms))
                found = b.assign(
                    f"getelementptr inbounds {MEMORY_TYPE[place.buffer.dtype]}, ptr {base}, i64 {index}", "ptr"
                )
                self.remember(key, found)
            base = found.name
        if not offset.const:
            return base
        return b.assign(f"getelementptr inbounds i8, ptr {base}, i64 {offset.const * bytes_}", "ptr").name

    def generic(self, expr: Expr) -> Value:
        """A value that is no linear index: see `ValueEmitter`."""
        raise NotImplementedError
