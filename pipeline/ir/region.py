"""Regions of affine indices: where an index lies while some loops run, as closed formulas over symbolic extents."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from pipeline.ir.expr import Affine
from pipeline.ir.poly import Poly
from pipeline.ir.program import Derived

Sign = Literal["zero", "positive", "negative", "unknown"]


def sign(poly: Poly) -> Sign:
    """The sign of a polynomial whose symbols are at least 1, as far as its coefficients tell."""
    if not poly.terms:
        return "zero"
    if at_least(poly, Poly.of(1)):
        return "positive"
    return "negative" if at_least(poly * -1, Poly.of(1)) else "unknown"


def at_least(a: Poly, b: Poly, derived: Iterable[Derived] = ()) -> bool:
    """Whether a >= b is certain, for parameters that are at least 1. False means: not proven.

    A derived symbol n = ceil(x / y) helps where it is multiplied by y: n*y >= x.
    """
    difference = a - b
    if _never_negative(difference):
        return True
    return any(_never_negative(lower) for lower in _lower_bounds(difference, tuple(derived)))


def _never_negative(poly: Poly) -> bool:
    """Every coefficient of a product of symbols is positive, and the value at symbols = 1 is not negative."""
    return all(c > 0 or m == () for m, c in poly.terms) and sum(c for _, c in poly.terms) >= 0


def _lower_bounds(poly: Poly, derived: tuple[Derived, ...]) -> Iterable[Poly]:
    """poly with n*y replaced by x for each n = ceil(x / y), newest first, so that a chain of splits unwinds."""
    for new in reversed(derived):
        unit = Poly.symbol(new.name) * new.denominator
        bound = Poly.of(0)
        for monomial, coefficient in poly.terms:
            term = Poly(((monomial, coefficient),))
            left = term.quotient(unit) if coefficient > 0 else None
            bound = bound + (term if left is None else left * new.numerator)
        if bound != poly:
            poly = bound
            yield poly


def interval(form: Affine, ranges: Mapping[str, Poly]) -> tuple[Affine, Poly] | None:
    """The bounding interval of an index while the variables of `ranges` run from 0 to their extent - 1.

    Returns (base, extent): the index lies in [base, base + extent), where base is affine in the remaining variables.
    For `((m0*t1 + m1)*t2 + m2)` and the loops m1 < t1, m2 < t2 it is (m0*t1*t2, t1*t2). None where the sign of a
    coefficient is not known.
    """
    base: list[tuple[str, Poly]] = []
    constant, extent = form.constant, Poly.of(1)
    for name, coefficient in form.terms:
        if name not in ranges:
            base.append((name, coefficient))
            continue
        reach = coefficient * (ranges[name] - 1)
        match sign(coefficient):
            case "positive":
                extent = extent + reach
            case "negative":
                extent, constant = extent - reach, constant + reach
            case _:
                return None
    return Affine(tuple(base), constant), extent


def inner(form: Affine, ranges: Mapping[str, Poly]) -> Affine:
    """The part of an index over the variables of `ranges`, moved so that its smallest value is 0.

    With `interval` it holds that form = base + inner(form).
    """
    terms = tuple((name, coefficient) for name, coefficient in form.terms if name in ranges)
    low = Poly.of(0)
    for name, coefficient in terms:
        if sign(coefficient) == "negative":
            low = low + coefficient * (ranges[name] - 1)
    return Affine(terms, Poly.of(0) - low)


def covers(form: Affine, var: str, extent: Poly, limit: Poly, derived: Iterable[Derived] = ()) -> bool:
    """Whether form >= limit is certain wherever var >= extent, all variables being at least 0."""
    coefficient = form.coefficient(var)
    if sign(coefficient) != "positive" or not at_least(form.constant, Poly.of(0)):
        return False
    if any(sign(c) not in ("positive", "zero") for _, c in form.terms):
        return False
    return at_least(coefficient * extent + form.constant, limit, derived)


def separates(form: Affine, var: str, ranges: Mapping[str, Poly]) -> bool:
    """Whether the value of an index determines the value of `var`, which runs with the other variables of `ranges`.

    It does where the index is in mixed radix: every other running variable either counts in multiples of
    coefficient * extent of `var`, or stays below the coefficient together with its like.
    """
    coefficient = form.coefficient(var)
    if sign(coefficient) != "positive":
        return False
    below = Poly.of(0)
    for name, other in form.terms:
        if name == var or name not in ranges:
            continue
        if other.quotient(coefficient * ranges[var]) is not None:
            continue
        if sign(other) != "positive":
            return False
        below = below + other * (ranges[name] - 1)
    return at_least(coefficient, below + 1)


def dense(form: Affine, ranges: Mapping[str, Poly]) -> bool:
    """Whether an index takes every value of its interval while the variables of `ranges` run."""
    left = [(name, coefficient) for name, coefficient in form.terms if name in ranges]
    reach = Poly.of(1)
    while left:
        for found in left:
            name, coefficient = found
            if sign(coefficient) == "positive" and at_least(reach, coefficient):
                reach = reach + coefficient * (ranges[name] - 1)
                left.remove(found)
                break
        else:
            return False
    return True
