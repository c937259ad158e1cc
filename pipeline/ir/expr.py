"""Index and scalar expressions: small frozen trees over loop variables, sizes and loads from buffers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import assert_never

from pipeline.ir.graph import DType
from pipeline.ir.poly import Poly

FLOATS = frozenset({"float64", "float32", "float16", "bfloat16"})


@dataclass(frozen=True, slots=True)
class Const:
    """A number, of the Python type that its dtype calls for.

    Equal are constants that compute the same: 1 and 1.0 of dtype float32, NaN and itself, but not 0.0 and -0.0.
    """

    value: int | float | bool
    dtype: DType = "int64"

    def __post_init__(self) -> None:
        value = self.value
        if self.dtype == "bool":
            value = bool(value)
        elif self.dtype in FLOATS:
            value = float(value)
        elif int(value) == value if math.isfinite(value) else False:  # a fraction stays, for the checker to find
            value = int(value)
        object.__setattr__(self, "value", value)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Const):
            return NotImplemented
        return self.dtype == other.dtype and repr(self.value) == repr(other.value)

    def __hash__(self) -> int:
        return hash((repr(self.value), self.dtype))


@dataclass(frozen=True, slots=True)
class Var:
    """A loop variable or an iteration variable of a block; an int64."""

    name: str


@dataclass(frozen=True, slots=True)
class Size:
    """A polynomial in the parameters; an int64."""

    poly: Poly


@dataclass(frozen=True, slots=True)
class Op:
    """A scalar function: every name of `graph.ELEMENTWISE`, and on indices also `floordiv` and `mod` (floored).

    "guard" has operands (condition, value, otherwise) and evaluates only one of the two: `value` where the condition
    holds, `otherwise` where it does not. A load in the other may be out of bounds. "and", "or" and "where" evaluate all
    their operands. "cast" converts to `dtype`.
    """

    fn: str
    args: tuple[Expr, ...]
    dtype: DType = "int64"


@dataclass(frozen=True, slots=True)
class Load:
    """One element of a buffer."""

    buffer: str
    indices: tuple[Expr, ...]
    dtype: DType


Expr = Const | Var | Size | Op | Load


@dataclass(frozen=True, slots=True)
class Affine:
    """A sum of coefficient * variable plus a constant, with polynomials as coefficients; sorted by variable."""

    terms: tuple[tuple[str, Poly], ...]
    constant: Poly

    def coefficient(self, var: str) -> Poly:
        for name, coefficient in self.terms:
            if name == var:
                return coefficient
        return Poly.of(0)

    def __add__(self, other: Affine) -> Affine:
        sums = dict(self.terms)
        for name, coefficient in other.terms:
            sums[name] = sums[name] + coefficient if name in sums else coefficient
        return Affine(tuple(sorted((n, c) for n, c in sums.items() if c.terms)), self.constant + other.constant)

    def scale(self, factor: Poly) -> Affine:
        if not factor.terms:
            return Affine((), Poly.of(0))
        return Affine(tuple((n, c * factor) for n, c in self.terms), self.constant * factor)


ZERO, ONE = Const(0), Const(1)


def dtype_of(expr: Expr) -> DType:
    match expr:
        case Const() | Op() | Load():
            return expr.dtype
        case Var() | Size():
            return "int64"
        case _:
            assert_never(expr)


def map_children(expr: Expr, fn: Callable[[Expr], Expr]) -> Expr:
    """The expression with fn applied to its children; the same object where nothing changes."""
    match expr:
        case Const() | Var() | Size():
            return expr
        case Op(name, args, dtype):
            new = tuple(fn(arg) for arg in args)
            return expr if all(a is b for a, b in zip(new, args, strict=True)) else Op(name, new, dtype)
        case Load(buffer, indices, dtype):
            new = tuple(fn(index) for index in indices)
            return expr if all(a is b for a, b in zip(new, indices, strict=True)) else Load(buffer, new, dtype)
        case _:
            assert_never(expr)


def children(expr: Expr) -> tuple[Expr, ...]:
    match expr:
        case Const() | Var() | Size():
            return ()
        case Op():
            return expr.args
        case Load():
            return expr.indices
        case _:
            assert_never(expr)


def walk(expr: Expr) -> Iterator[Expr]:
    """The expression and everything below it, parents first."""
    yield expr
    for child in children(expr):
        yield from walk(child)


def loads(expr: Expr) -> list[Load]:
    return [node for node in walk(expr) if isinstance(node, Load)]


def variables(expr: Expr) -> frozenset[str]:
    return frozenset(node.name for node in walk(expr) if isinstance(node, Var))


def substitute(expr: Expr, values: Mapping[str, Expr]) -> Expr:
    """The expression with variables replaced, and indices put in their normal form again."""
    if isinstance(expr, Var):
        return values.get(expr.name, expr)
    new = map_children(expr, lambda child: substitute(child, values))
    return new if new is expr else simplify(new)


def bind_sizes(expr: Expr, values: Mapping[str, int | Poly]) -> Expr:
    """The expression with parameters replaced by numbers or polynomials."""
    if isinstance(expr, Size):
        poly = expr.poly.substitute(values)
        return Const(poly.value) if poly.is_constant else Size(poly)
    new = map_children(expr, lambda child: bind_sizes(child, values))
    return new if new is expr else simplify(new)


def size(value: int | Poly) -> Expr:
    poly = Poly.of(value)
    return Const(poly.value) if poly.is_constant else Size(poly)


def affine(expr: Expr) -> Affine | None:
    """The affine form of an index expression; None where it has none."""
    match expr:
        case Const(value, dtype):
            return Affine((), Poly.of(int(value))) if isinstance(value, int) and dtype == "int64" else None
        case Var(name):
            return Affine(((name, Poly.of(1)),), Poly.of(0))
        case Size(poly):
            return Affine((), poly)
        case Op("add", (a, b), "int64"):
            x, y = affine(a), affine(b)
            return x + y if x is not None and y is not None else None
        case Op("sub", (a, b), "int64"):
            x, y = affine(a), affine(b)
            return x + y.scale(Poly.of(-1)) if x is not None and y is not None else None
        case Op("mul", (a, b), "int64"):
            x, y = affine(a), affine(b)
            if x is None or y is None:
                return None
            if not x.terms:
                return y.scale(x.constant)
            return x.scale(y.constant) if not y.terms else None
        case Op() | Load():
            return None
        case _:
            assert_never(expr)


def from_affine(form: Affine) -> Expr:
    """The expression in its normal form: terms by name, then the constant."""
    total: Expr | None = None
    for name, coefficient in form.terms:
        var: Expr = Var(name)
        term = var if coefficient == Poly.of(1) else Op("mul", (var, size(coefficient)))
        total = term if total is None else Op("add", (total, term))
    if total is None:
        return size(form.constant)
    return Op("add", (total, size(form.constant))) if form.constant.terms else total


def simplify(expr: Expr) -> Expr:
    """One node put in normal form, its children being so already: affine indices, folded division and remainder."""
    if not isinstance(expr, Op) or expr.dtype != "int64":
        return expr
    match expr:
        case Op("add" | "sub" | "mul", _):
            form = affine(expr)
            return expr if form is None else from_affine(form)
        case Op("floordiv" | "mod", (_, Const(0))):
            return expr
        case Op("floordiv", (Const(a), Const(b))):
            return Const(int(a) // int(b))
        case Op("mod", (Const(a), Const(b))):
            return Const(int(a) % int(b))
        case Op("floordiv", (a, Const(1))):
            return a
        case Op("mod", (_, Const(1))):
            return ZERO
        case Op("floordiv" | "mod" as fn, (a, Const(b))):
            form = affine(a)
            if form is None or not isinstance(b, int):
                return expr
            whole = [(n, c) for n, c in form.terms if c.quotient(Poly.of(b)) is not None]
            rest = [(n, c) for n, c in form.terms if c.quotient(Poly.of(b)) is None]
            if not rest and form.constant.is_constant:
                if fn == "mod":
                    return Const(form.constant.value % b)
                up = tuple((n, c.quotient(Poly.of(b)) or Poly.of(0)) for n, c in whole)
                return from_affine(Affine(up, Poly.of(form.constant.value // b)))
            if not whole:
                return expr
            inner = Op(fn, (from_affine(Affine(tuple(rest), form.constant)), Const(b)))
            if fn == "mod":
                return inner
            up = tuple((n, c.quotient(Poly.of(b)) or Poly.of(0)) for n, c in whole)
            return Op("add", (from_affine(Affine(up, Poly.of(0))), inner))
        case _:
            return expr


def add(a: Expr, b: Expr) -> Expr:
    return simplify(Op("add", (a, b)))


def sub(a: Expr, b: Expr) -> Expr:
    return simplify(Op("sub", (a, b)))


def mul(a: Expr, b: Expr) -> Expr:
    return simplify(Op("mul", (a, b)))


def floordiv(a: Expr, b: int) -> Expr:
    return simplify(Op("floordiv", (a, Const(b))))


def mod(a: Expr, b: int) -> Expr:
    return simplify(Op("mod", (a, Const(b))))


def less(a: Expr, b: Expr) -> Expr:
    return Op("lt", (a, b), "bool")


def both(a: Expr | None, b: Expr) -> Expr:
    """a and b, where no first condition means b alone."""
    return b if a is None else Op("and", (a, b), "bool")


def conjuncts(condition: Expr) -> Iterator[Expr]:
    """The conditions that all have to hold for it to hold."""
    match condition:
        case Op("and", (a, b)):
            yield from conjuncts(a)
            yield from conjuncts(b)
        case _:
            yield condition
