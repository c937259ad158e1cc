"""Index expressions as C++: 32 bits where that is proven to be enough, 64 elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from pipeline.codegen.cuda.cpp import INT32, INT64, SUM, UNARY, Cpp, call, choice, converted, infix, integer
from pipeline.codegen.cuda.emit_state import EmitState, Place
from pipeline.codegen.cuda.scalar import scalar
from pipeline.errors import CodegenError
from pipeline.ir.expr import Const, Expr, Load, Op, Size, Var, dtype_of
from pipeline.ir.program_bounds import EVERYTHING, Interval, assume, interval

DIVISIONS = {"floordiv": "/", "mod": "%"}
SIGNS = {"add": "+", "sub": "-", "mul": "*"}


@dataclass(slots=True)
class IndexEmitter(EmitState):
    """Indices and offsets."""

    def bounds(self, expr: Expr) -> Interval:
        """Where the value of an integer expression lies: what is known of the variables as they are written, and of the
        loop variables behind them."""
        low, high = interval(expr, self.facts)
        if self.bindings:
            other = interval(self.over_loops(expr), self.facts)
            low, high = max(low, other[0]), min(high, other[1])
        return low, high

    def decide(self, condition: Expr) -> bool | None:
        """The truth of a condition where the bounds of its operands tell it."""
        match condition:
            case Const(value, _):
                return bool(value)
            case Op("not", (a,), _):
                known = self.decide(a)
                return None if known is None else not known
            case Op("and", (a, b), _):
                x, y = self.decide(a), self.decide(b)
                return False if x is False or y is False else (True if x and y else None)
            case Op("or", (a, b), _):
                x, y = self.decide(a), self.decide(b)
                return True if x or y else (False if x is False and y is False else None)
            case Op("lt" | "le" | "gt" | "ge" | "eq" | "ne" as fn, (a, b), _) if dtype_of(a) == "int64":
                low, high = self.bounds(Op("sub", (a, b)))
                yes, no = {"lt": (high < 0, low >= 0), "le": (high <= 0, low > 0),
                           "gt": (low > 0, high <= 0), "ge": (low >= 0, high < 0),
                           "eq": (low == high == 0, low > 0 or high < 0),
                           "ne": (low > 0 or high < 0, low == high == 0)}[fn]  # fmt: skip
                return True if yes else (False if no else None)
            case _:
                return None

    def learn(self, condition: Expr, holds: bool = True) -> None:
        """From here on the condition holds (or does not)."""
        for form in (condition, self.over_loops(condition)):
            self.facts = assume(form, holds, self.facts)

    def index(self, expr: Expr) -> Cpp:
        """An int64 expression, as int where all that is computed on the way fits."""
        match expr:
            case Const(value, _):
                return _number(int(value))
            case Var(name):
                return self.env[name]
            case Size(poly):
                raise CodegenError(f"the size {poly} is not a number", where="codegen.cuda", why="not instantiated")
            case Op("add" | "sub" | "mul" as fn, (a, b), "int64"):
                return self.arithmetic(fn, a, b, self.bounds(expr))
            case Op("floordiv" | "mod" as fn, (a, Const(number, _)), "int64") if int(number) > 0:
                return self.divided(fn, a, int(number))
            case Op("min" | "max" as fn, (a, b), "int64"):
                x, y = same(self.index(a), self.index(b))
                return self.narrowed(call(f"ms::{fn}", (x, y), x.type), self.bounds(expr))
            case Op("where" | "guard", (condition, a, b), "int64"):
                known = self.decide(condition)
                if known is not None:
                    return self.index(a if known else b)
                test = self.value(condition)
                with self.assuming(self.facts):
                    self.learn(condition)
                    x = self.index(a)
                with self.assuming(self.facts):
                    self.learn(condition, False)
                    y = self.index(b)
                x, y = same(x, y)
                return choice(test, x, y, x.type)
            case Op("cast", (a,), "int64") if dtype_of(a) in ("int32", "int16", "int8", "uint16", "uint8"):
                return converted(self.value(a), "int")
            case Op(fn, args, dtype):
                given = tuple(self.wide(arg) for arg in args)
                return self.narrowed(scalar(fn, given, dtype_of(args[0]), dtype), self.bounds(expr))
            case Load():
                return self.narrowed(self.read(expr), self.bounds(expr))
            case _:
                assert_never(expr)

    def wide(self, expr: Expr) -> Cpp:
        """The operand of a function that is declared for 64 bits."""
        return converted(self.index(expr), "long long") if dtype_of(expr) == "int64" else self.value(expr)

    def arithmetic(self, fn: str, a: Expr, b: Expr, bounds: Interval) -> Cpp:
        if fn == "add":
            negated = _negated(b)
            if negated is not None:
                fn, b = "sub", negated
        x, y = self.index(a), self.index(b)
        if fn in ("add", "sub") and y.text == "0":
            return x
        if fn == "add" and x.text == "0":
            return y
        if not _fits(bounds, INT32) or "long long" in (x.type, y.type):
            x, y = converted(x, "long long"), converted(y, "long long")
            if not _fits(bounds, INT64):
                return call(f"ms::{fn}", (x, y), "long long")  # it may wrap
        if fn == "mul" and x.text == "-1":
            return Cpp(f"-{y.at(UNARY)}", y.type, UNARY)
        return infix(SIGNS[fn], x, y, x.type)

    def divided(self, fn: str, a: Expr, number: int) -> Cpp:
        low, high = self.bounds(a)
        if low != EVERYTHING[0] and high != EVERYTHING[1] and low // number == high // number:
            quotient = int(low // number)
            return _number(quotient) if fn == "floordiv" else self.index(Op("sub", (a, Const(quotient * number))))
        x = self.index(a)
        y = integer(number, "long long") if x.type == "long long" or number > INT32[1] else integer(number)
        x = converted(x, y.type)
        if low >= 0:
            return infix(DIVISIONS[fn], x, y, x.type)
        return self.narrowed(call(f"ms::{fn}", (x, y), x.type), self.bounds(Op(fn, (a, Const(number)))))

    def narrowed(self, value: Cpp, bounds: Interval) -> Cpp:
        """As int where it is known to be one."""
        return converted(value, "int") if value.type == "long long" and _fits(bounds, INT32) else value

    def offset(self, place: Place, indices: tuple[Expr, ...]) -> Cpp:
        """The number of the element: rows of the last dimension one after another, with the padding between them."""
        texts = [self.index(index) for index in indices]
        if not texts:
            return Cpp(place.base or "0", "int")
        type_ = "int" if place.count < 1 << 31 else "long long"
        *outer, last = (converted(text, type_) for text in texts)
        row: Cpp | None = None
        factor = 1
        for text, extent in zip(outer, place.shape[:-1], strict=True):
            factor *= extent
            if text.text != "0" or row is None:
                row, factor = _plus(None if row is None else _times(row, factor), text), 1
        if place.swizzled:
            row = Cpp("0", "int") if row is None else _times(row, factor)
            arguments = f"{place.shape[-1]}, {place.item}" + (f", {place.row}" if place.buffer.pad.value else "")
            total = call(f"ms::swizzled<{arguments}>", (row, last), "int")
        else:
            total = _plus(None if row is None else _times(row, factor * place.row), last)
        return _plus(Cpp(place.base, type_, SUM), total) if place.base else total

    def read(self, load: Load) -> Cpp:
        """An element: see `ValueEmitter`."""
        raise NotImplementedError

    def value(self, expr: Expr) -> Cpp:
        """Any scalar: see `ValueEmitter`."""
        raise NotImplementedError


def same(x: Cpp, y: Cpp) -> tuple[Cpp, Cpp]:
    """Both in the wider type of the two."""
    if x.type == y.type:
        return x, y
    return converted(x, "long long"), converted(y, "long long")


def _number(value: int) -> Cpp:
    return integer(value, "int" if INT32[0] <= value <= INT32[1] else "long long")


def _fits(bounds: Interval, limits: tuple[int, int]) -> bool:
    return limits[0] <= bounds[0] and bounds[1] <= limits[1]


def _negated(expr: Expr) -> Expr | None:
    """The expression whose negative this is, where it is written so."""
    match expr:
        case Const(value, _) if isinstance(value, int) and value < 0:
            return Const(-value)
        case Op("mul", (a, Const(value, _)), "int64") if isinstance(value, int) and value < 0:
            return a if value == -1 else Op("mul", (a, Const(-value)))
        case _:
            return None


def _times(a: Cpp, factor: int) -> Cpp:
    if a.text == "0" or factor == 1:
        return a
    return infix("*", a, integer(factor, a.type), a.type)


def _plus(a: Cpp | None, b: Cpp) -> Cpp:
    if a is None or a.text == "0":
        return b
    return a if b.text == "0" else Cpp(f"{a.at(SUM)} + {b.at(SUM)}", a.type, SUM)
