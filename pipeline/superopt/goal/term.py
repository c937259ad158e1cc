"""A term: the scalar expression that one element of a tensor is, over labelled axis factors.

An axis of a specification is cut into factors (its grid, loop and tile part), and an input depends on all factors of
its axes. Which element is meant by an index, how a tensor lies in memory and how large it is, a term does not say: two
programs that differ in these alone have the same term.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, assert_never

Factor = tuple[int, str]  # (label of the axis, its part: "g" grid, "l" loop, "t" tile)
Factors = frozenset[Factor]
ReduceKind = Literal["sum", "max", "min", "prod"]
NONE: Factors = frozenset()


@dataclass(frozen=True, slots=True)
class Leaf:
    """An element of the input with this number, which varies with these factors."""

    number: int
    factors: Factors = NONE


@dataclass(frozen=True, slots=True)
class Num:
    """A number."""

    value: float


@dataclass(frozen=True, slots=True)
class App:
    """A scalar function of `pipeline.ir.graph.ELEMENTWISE` of its arguments."""

    fn: str
    args: tuple[Term, ...]


@dataclass(frozen=True, slots=True)
class Reduced:
    """The sum, greatest, least or product of what `body` is at all values of the factors; they are bound in it."""

    kind: ReduceKind
    over: Factors
    body: Term


Term = Leaf | Num | App | Reduced


def total(over: Factors, body: Term) -> Term:
    """The sum over the factors; the term itself where there is none."""
    return Reduced("sum", over, body) if over else body


def children(term: Term) -> tuple[Term, ...]:
    match term:
        case Leaf() | Num():
            return ()
        case App(args=args):
            return args
        case Reduced(body=body):
            return (body,)
        case _:
            assert_never(term)


def free_factors(term: Term) -> Factors:
    """The factors that the value of a term varies with, as far as its form tells."""
    match term:
        case Leaf(factors=factors):
            return factors
        case Num():
            return NONE
        case App(args=args):
            return NONE.union(*(free_factors(arg) for arg in args))
        case Reduced(over=over, body=body):
            return free_factors(body) - over
        case _:
            assert_never(term)


def subterms(term: Term) -> Iterator[Term]:
    """A term and all below it, the outermost first; one that occurs twice comes twice."""
    yield term
    for child in children(term):
        yield from subterms(child)


def show(term: Term) -> str:
    """A term as text: `sum({0l}, mul(x0[0l], 2))`."""
    match term:
        case Leaf(number=number, factors=factors):
            return f"x{number}[{_factors(factors)}]"
        case Num(value=value):
            return f"{value:g}"
        case App(fn=fn, args=args):
            return f"{fn}({', '.join(show(arg) for arg in args)})"
        case Reduced(kind=kind, over=over, body=body):
            return f"{kind}({{{_factors(over)}}}, {show(body)})"
        case _:
            assert_never(term)


def _factors(factors: Factors) -> str:
    return " ".join(f"{label}{part}" for label, part in sorted(factors))
