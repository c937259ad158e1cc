"""A linear index: a constant, multiples of SSA integers, and a stride over the lanes of the vector being made."""

from __future__ import annotations

from dataclasses import dataclass

UNKNOWN = (-(1 << 62), 1 << 62)


@dataclass(frozen=True, slots=True)
class Linear:
    """const + sum of coefficient * SSA value + lane * (lane number). All in elements, 64-bit."""

    const: int = 0
    terms: tuple[tuple[str, int], ...] = ()
    lane: int = 0

    @property
    def constant(self) -> bool:
        return not self.terms and not self.lane

    def __add__(self, other: Linear) -> Linear:
        sums = dict(self.terms)
        for name, coefficient in other.terms:
            sums[name] = sums.get(name, 0) + coefficient
        return Linear(
            self.const + other.const, tuple(sorted((n, c) for n, c in sums.items() if c)), self.lane + other.lane
        )

    def scale(self, factor: int) -> Linear:
        if not factor:
            return Linear()
        return Linear(self.const * factor, tuple((n, c * factor) for n, c in self.terms), self.lane * factor)

    def bounds(self, ranges: dict[str, tuple[int, int]], lanes: int) -> tuple[int, int]:
        """The smallest and the largest value, over all lanes."""
        low = high = self.const
        for name, coefficient in (*self.terms, *((("", self.lane),) if self.lane else ())):
            a, b = (0, lanes - 1) if name == "" else ranges.get(name, UNKNOWN)
            low += coefficient * (a if coefficient > 0 else b)
            high += coefficient * (b if coefficient > 0 else a)
        return low, high

    def multiple_of(self, number: int, ranges: dict[str, tuple[int, int]]) -> bool:
        """Is the part without lanes a multiple of the number, whatever the SSA values are?"""
        return self.const % number == 0 and all(c % number == 0 for _, c in self.terms)
