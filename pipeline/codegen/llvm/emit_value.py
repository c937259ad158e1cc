"""Scalar expressions into values of as many lanes as the loop around them has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from pipeline.codegen.llvm.elementwise import elementwise
from pipeline.codegen.llvm.emit_memory import MemoryEmitter
from pipeline.codegen.llvm.ir_builder import (
    VALUE_TYPE,
    Value,
    literal,
    vector_type,
)
from pipeline.codegen.llvm.linear import Linear
from pipeline.ir.expr import Const, Expr, Load, Op, Size, Var, dtype_of


@dataclass(slots=True)
class ValueEmitter(MemoryEmitter):
    """Values."""

    def value(self, expr: Expr) -> Value:
        match expr:
            case Const(value, dtype):
                return literal(value, VALUE_TYPE[dtype])
            case Var() | Size():
                return self.materialise(self.known(expr))
            case Load(buffer, indices, _):
                place = self.places[buffer]
                return self.read(place, self.offset(place, indices), indices)
            case Op():
                if expr.dtype == "int64" and expr.fn in ("add", "sub", "mul", "floordiv", "mod"):
                    form = self.linear(expr)
                    if form is not None:
                        return self.materialise(form)
                return self.generic(expr)
            case _:
                assert_never(expr)

    def known(self, expr: Expr) -> Linear:
        form = self.linear(expr)
        assert form is not None
        return form

    def generic(self, expr: Expr) -> Value:
        if not isinstance(expr, Op):
            return self.value(expr)
        if expr.fn == "guard":
            return self.guard(expr)
        if expr.fn in ("add", "sub") and expr.dtype in ("float32", "float64"):
            fused = self.fused(expr)
            if fused is not None:
                return fused
        args = tuple(self.value(arg) for arg in expr.args)
        return elementwise(self.b, self.library, expr.fn, args, dtype_of(expr.args[0]), expr.dtype)

    def fused(self, expr: Op) -> Value | None:
        """A product that is added to: one rounding instead of two."""
        a, c = expr.args
        for factor, other in ((a, c), (c, a)):
            if isinstance(factor, Op) and factor.fn == "mul" and expr.fn == "add":
                x, y = (self.value(arg) for arg in factor.args)
                return self.b.intrinsic("fmuladd", x, y, self.value(other))
        return None

    def guard(self, expr: Op) -> Value:
        condition, value, otherwise = expr.args
        known = self.decide(condition)
        if known is not None:
            return self.value(value if known else otherwise)
        test = self.value(condition)
        b = self.b
        if test.lanes > 1:
            assert self.lanes is not None
            old = self.lanes.mask
            self.lanes.mask = test if old is None else b.binary("and", old, test)
            self.cache.append({})
            inside = self.value(value)
            self.cache.pop()
            # neither side may be loaded where the other one is meant
            rest = b.binary("xor", test, literal(True, "i1"))
            self.lanes.mask = rest if old is None else b.binary("and", old, rest)
            self.cache.append({})
            outside = self.value(otherwise)
            self.cache.pop()
            self.lanes.mask = old
            return b.select(test, inside, outside)
        yes, no, end = b.new_label("some"), b.new_label("none"), b.new_label("joined")
        b.branch(test, yes, no)
        b.label(yes)
        self.cache.append({})
        first = self.value(value)
        self.cache.pop()
        from_yes, position = b.block, len(b.lines)
        b.jump(end)
        b.label(no)
        self.cache.append({})
        second = self.value(otherwise)
        self.cache.pop()
        lanes = max(first.lanes, second.lanes)
        second = b.splat(second, lanes)
        later = b.lines[position:]
        del b.lines[position:]
        first = b.splat(first, lanes)  # in the block that made it
        b.lines.extend(later)
        from_no = b.block
        b.jump(end)
        b.label(end)
        type_ = vector_type(first.type, lanes)
        return b.assign(f"phi {type_} [ {first}, %{from_yes} ], [ {second}, %{from_no} ]", first.type, lanes)

    def decide(self, condition: Expr) -> bool | None:
        """The truth of a condition where the bounds of its operands tell it."""
        match condition:
            case Const(value, _):
                return bool(value)
            case Op("and", (a, b)):
                x, y = self.decide(a), self.decide(b)
                return False if x is False or y is False else (True if x and y else None)
            case Op("lt" | "le" | "gt" | "ge" as fn, (a, b)) if dtype_of(a) == "int64":
                difference = self.linear(Op("sub", (a, b)))
                if difference is None:
                    return None
                low, high = difference.bounds(self.ssa_ranges, self.lane_count())
                yes, no = {"lt": (high < 0, low >= 0), "le": (high <= 0, low > 0),
                           "gt": (low > 0, high <= 0), "ge": (low >= 0, high < 0)}[fn]  # fmt: skip
                return True if yes else (False if no else None)
            case _:
                return None
