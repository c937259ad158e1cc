"""Random variables: the parameters of a sketch, drawn and changed as columns of an integer matrix."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]  # one row per candidate, one column per symbol


@dataclass(frozen=True, slots=True)
class Tile:
    """The inner factors of a tiled loop.

    symbols       one parameter per factor, outermost first
    extent        of the loop; how often the factors together fit into it is a derived symbol, not a column
    multiple_of   each factor is a multiple of its number
    at_most       each factor is at most its number
    exact         the product of the factors divides the extent; otherwise the last tile may be ragged, and the product
                  does not exceed the extent rounded up to the innermost multiple
    """

    symbols: tuple[str, ...]
    extent: int
    multiple_of: tuple[int, ...]
    at_most: tuple[int, ...]
    exact: bool = False

    def __post_init__(self) -> None:
        assert self.symbols and len(self.symbols) == len(self.multiple_of) == len(self.at_most), f"{self}: lengths"
        assert self.extent >= 0 and all(m >= 1 for m in self.multiple_of), f"{self}: extent or multiple out of range"
        assert all(a >= m for a, m in zip(self.at_most, self.multiple_of, strict=True)), f"{self}: limit below multiple"
        assert not self.exact or len(_exact(self)), f"{self}: no exact factors exist"

    @property
    def cap(self) -> int:
        """The largest product of all factors."""
        last = self.multiple_of[-1]
        return max(-(-max(self.extent, 1) // last) * last, prod(self.multiple_of))

    def bounds(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Smallest and largest value of each column, for a relaxation to reals."""
        low, most = np.array(self.multiple_of, np.float64), np.array(self.at_most, np.float64)
        return low, np.maximum(low, np.minimum(most, self.cap / (prod(self.multiple_of) / low)))

    def draw(self, n: int, rng: np.random.Generator) -> Rows:
        """n rows, biased to little waste: log-uniform values, balanced ones (ceil(extent / count)) and divisors."""
        if self.exact:
            table = _exact(self)
            return table[rng.integers(len(table), size=n)]
        rows = np.broadcast_to(np.array(self.multiple_of, np.int64), (n, len(self.symbols))).copy()
        order = rng.permuted(np.broadcast_to(np.arange(len(self.symbols)), rows.shape), axis=1)
        for step in range(len(self.symbols)):
            rows = self._redraw(rows, order[:, step], rng)
        return rows

    def _redraw(self, rows: Rows, column: NDArray[np.int64], rng: np.random.Generator) -> Rows:
        """The rows with one factor each drawn again, within what the other factors leave."""
        every = np.arange(len(rows))
        step = np.array(self.multiple_of, np.int64)[column]
        others = rows.prod(axis=1) // rows[every, column]
        high = np.maximum(step, np.minimum(np.array(self.at_most, np.int64)[column], self.cap // others))
        left = np.maximum(1, -(-self.extent // others))
        spread = rng.random(len(rows))
        smooth = np.exp(spread * np.log(high + 1.0)).astype(np.int64)
        balanced = -(-left // np.maximum(1, np.exp(spread * np.log(left + 1.0)).astype(np.int64)))
        divisors = _divisors(max(self.extent, 1))
        allowed = np.searchsorted(divisors, high, side="right")
        divisor = divisors[np.minimum((spread * allowed).astype(np.int64), np.maximum(allowed - 1, 0))]
        value = np.choose(rng.integers(3, size=len(rows)), [smooth, balanced, divisor])
        rows = rows.copy()
        rows[every, column] = np.clip(-(-value // step) * step, step, high // step * step)
        return rows

    def repair(self, rows: Rows) -> Rows:
        """The nearest legal rows, not above the given ones where they are too large."""
        if self.exact:
            table = _exact(self)
            distance = np.abs(np.log(table)[None, :, :] - np.log(np.maximum(rows, 1))[:, None, :]).sum(axis=2)
            chosen: Rows = np.take(table, distance.argmin(axis=1), axis=0)
            return chosen
        step = np.array(self.multiple_of, np.int64)
        most = np.array(self.at_most, np.int64) // step * step
        rows = np.clip(rows // step * step, step, most)
        for column in range(len(self.symbols)):
            others = rows.prod(axis=1) // rows[:, column]
            allowed = np.maximum(step[column], self.cap // others // step[column] * step[column])
            rows[:, column] = np.minimum(rows[:, column], allowed)
        return rows

    def shrink(self, rows: Rows, column: int) -> Rows:
        """Legal rows in which one factor is about half as large, where it can be."""
        rows = rows.copy()
        rows[:, column] = np.maximum(rows[:, column] // 2, self.multiple_of[column])
        return self.repair(rows)

    def mutate(self, rows: Rows, rng: np.random.Generator) -> Rows:
        """Each row changed a little: a factor drawn again, a prime moved between two factors, or a factor stepped."""
        width = len(self.symbols)
        if self.exact:
            table = _exact(self)
            picks = np.array([self._near(row, table, rng) for row in rows], np.int64)
            return table[picks] if len(rows) else rows
        what = rng.integers(3, size=len(rows))
        drawn = self._redraw(rows, rng.integers(width, size=len(rows)), rng)
        moved = rows.copy()
        every = np.arange(len(rows))
        source, goal = rng.integers(width, size=len(rows)), rng.integers(width, size=len(rows))
        by = rng.choice(np.array([2, 2, 3, 4], np.int64), size=len(rows))
        by = np.where(moved[every, source] >= by, by, 1)
        moved[every, source] //= by
        moved[every, goal] *= by
        stepped = rows.copy()
        column = rng.integers(width, size=len(rows))
        stepped[every, column] += np.array(self.multiple_of)[column] * rng.choice(np.array([-1, 1]), size=len(rows))
        return np.where((what == 0)[:, None], drawn, self.repair(np.where((what == 1)[:, None], moved, stepped)))

    def _near(self, row: Rows, table: Rows, rng: np.random.Generator) -> int:
        """One of the sixteen exact factorisations that are nearest to a row, at random."""
        distance = np.abs(np.log(table) - np.log(row)).sum(axis=1)
        near = np.argsort(distance, kind="stable")[1:17]
        return int(rng.choice(near)) if len(near) else 0

    def neighbours(self, row: Rows) -> Rows:
        """The rows around one: each factor a step up and down, halved and doubled, and to the next balanced values."""
        if self.exact:
            table = _exact(self)
            order = np.argsort(np.abs(np.log(table) - np.log(row)).sum(axis=1), kind="stable")
            near: Rows = np.take(table, order[1:17], axis=0)
            return near
        found = []
        for column, step in enumerate(self.multiple_of):
            value = int(row[column])
            others = int(row.prod()) // max(value, 1)
            left = max(1, -(-self.extent // others))
            count = -(-left // value)
            balanced = [-(-left // q) for q in (count - 1, count + 1) if q >= 1]
            for new in (value - step, value + step, value // 2, value * 2, *balanced):
                changed = row.copy()
                changed[column] = -(-max(new, step) // step) * step
                found.append(changed)
        rows = self.repair(np.array(found, np.int64))
        rows = np.unique(rows, axis=0)
        around: Rows = rows[(rows != row).any(axis=1)]
        return around


@dataclass(frozen=True, slots=True)
class Choice:
    """One of a few numbers."""

    symbol: str
    options: tuple[int, ...]

    def __post_init__(self) -> None:
        assert self.options and len(set(self.options)) == len(self.options), f"{self}: options must be different"

    @property
    def symbols(self) -> tuple[str, ...]:
        return (self.symbol,)

    def bounds(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return np.array([min(self.options)], np.float64), np.array([max(self.options)], np.float64)

    def draw(self, n: int, rng: np.random.Generator) -> Rows:
        chosen: Rows = np.take(np.array(self.options, np.int64), rng.integers(len(self.options), size=(n, 1)))
        return chosen

    def repair(self, rows: Rows) -> Rows:
        """The nearest options."""
        options = np.array(self.options, np.int64)
        chosen: Rows = np.take(options, np.abs(options[None, :] - rows).argmin(axis=1)[:, None])
        return chosen

    def shrink(self, rows: Rows, column: int) -> Rows:
        """The next smaller option, where there is one."""
        options = np.sort(np.array(self.options, np.int64))
        chosen: Rows = np.take(options, np.maximum(np.searchsorted(options, rows) - 1, 0))
        return chosen

    def mutate(self, rows: Rows, rng: np.random.Generator) -> Rows:
        """Another option in each row, where there is one."""
        options = np.array(self.options, np.int64)
        here = (options[None, :] == rows).argmax(axis=1)
        shift = rng.integers(1, max(len(options), 2), size=len(rows))
        chosen: Rows = np.take(options, (here + shift)[:, None] % len(options))
        return chosen

    def neighbours(self, row: Rows) -> Rows:
        return np.array([[option] for option in self.options if option != row[0]], np.int64).reshape(-1, 1)


Variable = Tile | Choice
VARIABLES: dict[str, type] = {"Tile": Tile, "Choice": Choice}


def _divisors(number: int) -> NDArray[np.int64]:
    return np.array(_divisor_tuple(number), np.int64)


@cache
def _divisor_tuple(number: int) -> tuple[int, ...]:
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return tuple(sorted({*small, *(number // d for d in small)}))


def _exact(tile: Tile) -> Rows:
    table: Rows = _exact_table(tile.extent, tile.multiple_of, tile.at_most)
    return table


@cache
def _exact_table(extent: int, multiple_of: tuple[int, ...], at_most: tuple[int, ...]) -> Any:
    """Every row of factors whose product divides the extent."""
    rows: list[tuple[int, ...]] = [()]
    for multiple, most in zip(multiple_of, at_most, strict=True):
        left = [(row, _divisor_tuple(max(extent, 1) // prod(row))) for row in rows]
        rows = [(*row, d) for row, divisors in left for d in divisors if d % multiple == 0 and d <= most]
    table = np.array(rows, np.int64).reshape(len(rows), len(multiple_of))
    table.flags.writeable = False
    return table
