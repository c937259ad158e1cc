"""A polynomial with integer coefficients in the parameters of a program, kept in a normal form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Monomial = tuple[str, ...]  # the symbols of a product, sorted, repeated for powers; () is 1


@dataclass(frozen=True, slots=True)
class Poly:
    """A sum of coefficient * monomial, sorted by monomial, without zeros: equal polynomials are equal objects."""

    terms: tuple[tuple[Monomial, int], ...]

    @staticmethod
    def of(value: int | Poly) -> Poly:
        return value if isinstance(value, Poly) else Poly((((), value),) if value else ())

    @staticmethod
    def symbol(name: str) -> Poly:
        return Poly((((name,), 1),))

    @property
    def is_constant(self) -> bool:
        return not self.terms or (len(self.terms) == 1 and self.terms[0][0] == ())

    @property
    def value(self) -> int:
        """The number that a constant polynomial is."""
        if not self.terms:
            return 0
        monomial, coefficient = self.terms[0]
        assert len(self.terms) == 1 and monomial == (), f"{self} is not a constant"
        return coefficient

    def symbols(self) -> frozenset[str]:
        return frozenset(name for monomial, _ in self.terms for name in monomial)

    def __add__(self, other: int | Poly) -> Poly:
        other = Poly.of(other)
        if not other.terms:
            return self
        if not self.terms:
            return other
        return _normal([*self.terms, *other.terms])

    def __sub__(self, other: int | Poly) -> Poly:
        return self + Poly.of(other) * -1

    def __mul__(self, other: int | Poly) -> Poly:
        other = Poly.of(other)
        return _normal([(tuple(sorted(m + n)), c * d) for m, c in self.terms for n, d in other.terms])

    __radd__ = __add__
    __rmul__ = __mul__

    def __rsub__(self, other: int | Poly) -> Poly:
        return Poly.of(other) - self

    def quotient(self, divisor: Poly) -> Poly | None:
        """self / divisor where the divisor has one term and every term is a multiple of it; None otherwise."""
        if len(divisor.terms) != 1:
            return Poly.of(1) if self == divisor and self.terms else None
        ((under, by),) = divisor.terms
        terms = []
        for monomial, coefficient in self.terms:
            left = list(monomial)
            for name in under:
                if name not in left:
                    return None
                left.remove(name)
            if coefficient % by:
                return None
            terms.append((tuple(left), coefficient // by))
        return Poly(tuple(sorted(terms)))

    def evaluate(self, values: Mapping[str, Any]) -> Any:
        """The number at integers, or an array where the values are arrays (one entry per candidate)."""
        total: Any = 0
        for monomial, coefficient in self.terms:
            product: Any = coefficient
            for name in monomial:
                product = product * values[name]
            total = total + product
        return total

    def substitute(self, values: Mapping[str, int | Poly]) -> Poly:
        """The polynomial with some symbols replaced."""
        if self.is_constant:
            return self
        total = Poly.of(0)
        for monomial, coefficient in self.terms:
            product = Poly.of(coefficient)
            for name in monomial:
                product = product * (Poly.of(values[name]) if name in values else Poly.symbol(name))
            total = total + product
        return total

    def __str__(self) -> str:
        if not self.terms:
            return "0"
        parts = []
        for monomial, coefficient in self.terms:
            factors = list(monomial)
            if coefficient != 1 or not factors:
                factors.insert(0, str(coefficient))
            parts.append("*".join(factors))
        return " + ".join(parts)


def _normal(terms: list[tuple[Monomial, int]]) -> Poly:
    sums: dict[Monomial, int] = {}
    for monomial, coefficient in terms:
        sums[monomial] = sums.get(monomial, 0) + coefficient
    return Poly(tuple(sorted((m, c) for m, c in sums.items() if c)))


def product(factors: tuple[Poly, ...] | list[Poly]) -> Poly:
    """The product of all; 1 for none."""
    total = Poly.of(1)
    for factor in factors:
        total = total * factor
    return total
