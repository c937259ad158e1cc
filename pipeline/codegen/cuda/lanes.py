"""How expressions change along the few iterations of a vectorized loop: not at all, by one, or in some other way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pipeline.ir.expr import Const, Expr, Load, Op, add, affine, children, mul, substitute, variables

Change = Literal["uniform", "unit", "other"]


@dataclass(frozen=True, slots=True)
class Lanes:
    """The loop: its variable and how many iterations it has, a power of two. Expressions are over loop variables."""

    var: str
    count: int

    def first(self, expr: Expr) -> Expr:
        """Its value in the first lane."""
        return substitute(expr, {self.var: Const(0)})

    def last(self, expr: Expr) -> Expr:
        return substitute(expr, {self.var: Const(self.count - 1)})

    def change(self, expr: Expr) -> Change:
        if self.var not in variables(expr):
            return "uniform"
        form = affine(expr)
        if form is not None:
            step = form.coefficient(self.var)
            return "unit" if step.is_constant and step.value == 1 else "other"
        match expr:
            case Op("mod" | "floordiv" as fn, (a, Const(number, _)), "int64") if self.unbroken(a, int(number)):
                return "unit" if fn == "mod" else "uniform"
            case Op("add", (a, b), "int64"):
                kinds = {self.change(a), self.change(b)}
                if kinds == {"unit"}:
                    return "other"  # by two
                return "unit" if kinds == {"unit", "uniform"} else "uniform" if kinds == {"uniform"} else "other"
            case Op() | Load():
                return "uniform" if all(self.change(part) == "uniform" for part in children(expr)) else "other"
            case _:
                return "other"

    def unbroken(self, index: Expr, row: int) -> bool:
        """Do all lanes of such an index lie in one row of so many elements?"""
        return self.change(index) == "unit" and row % self.count == 0 and multiple(self.first(index), self.count)

    def alike(self, condition: Expr) -> bool:
        """Does the condition hold in all lanes where it holds in the first?"""
        if self.var not in variables(condition):
            return True
        match condition:
            case Op("and" | "or", (a, b), _):
                return self.alike(a) and self.alike(b)
            case Op("not", (a,), _):
                return self.alike(a)
            case Op("lt" | "le" | "gt" | "ge" as fn, (a, b), _):
                if self.change(a) == self.change(b) == "uniform":
                    return True
                left = Op("sub", (a, b))
                form = affine(left)
                if form is None:
                    return False
                step = form.coefficient(self.var)
                if not step.is_constant or abs(step.value) != 1:
                    return False
                # as (a - b) < 0 or its opposite; where the lanes count downwards, as b - a
                start = substitute(left, {self.var: Const(0)})
                if fn in ("le", "gt"):
                    start = add(start, Const(-1))
                if step.value < 0:
                    start = add(mul(start, Const(-1)), Const(-1))
                return multiple(start, self.count)
            case _:
                return False

    def straight(self, condition: Expr) -> bool:
        """Does it hold in all lanes where it holds in the first and the last? So are comparisons of affine indices."""
        if self.alike(condition):
            return True
        match condition:
            case Op("and", (a, b), _):
                return self.straight(a) and self.straight(b)
            case Op("lt" | "le" | "gt" | "ge", (a, b), _):
                return affine(Op("sub", (a, b))) is not None
            case _:
                return False


def multiple(expr: Expr, number: int) -> bool:
    """Is the index a multiple of the number, whatever its variables are?"""
    if number == 1:
        return True
    form = affine(expr)
    if form is not None:
        parts = (form.constant, *(coefficient for _, coefficient in form.terms))
        return all(part.is_constant and part.value % number == 0 for part in parts)
    match expr:
        case Op("add" | "sub", (a, b), "int64"):
            return multiple(a, number) and multiple(b, number)
        case Op("mul", (a, b), "int64"):
            return multiple(a, number) or multiple(b, number)
        case Op("mod", (a, Const(rows, _)), "int64"):
            return int(rows) % number == 0 and multiple(a, number)
        case Op("where" | "guard", (_, a, b), "int64"):
            return multiple(a, number) and multiple(b, number)
        case _:
            return False
