"""How long the side of a tile may be: there is no use for one far beyond what it cuts."""

from __future__ import annotations


def upto(options: tuple[int, ...], most: float) -> tuple[int, ...]:
    """The options that something has use for, and the next larger one."""
    return tuple(option for n, option in enumerate(options) if n == 0 or options[n - 1] < most)


def longest_side(length: int, *, unit: int = 1, least: int) -> int:
    """The longest side of a tile along so many elements: not twice as many as there are, in whole units; but at least
    `least`, however few there are."""
    whole = -(-length // unit) * unit
    return max(least, whole + whole // 2)
