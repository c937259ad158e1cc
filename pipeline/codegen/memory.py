"""The static memory plan: offsets in one arena for buffers that live over known spans of calls.

Packing of intervals in time and space (dynamic storage allocation) is NP-hard; several greedy orders are tried and the
smallest arena is kept. The lower bound, the most bytes alive at one time, says how far from the best that can be.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class Lifetime:
    """A buffer that is alive from call `first` to call `last`, both included."""

    name: str
    nbytes: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Offsets in bytes by name, the size of the arena, its lower bound, and the heuristic that found it."""

    offsets: Mapping[str, int]
    total: int
    lower_bound: int
    heuristic: str


_Order = Callable[[Lifetime], tuple[int, ...]]
# Each is tried with both ways to choose a gap. Large first packs encoders best, time chains, area long skips.
_ORDERS: Mapping[str, _Order] = {
    "size": lambda item: (-item.nbytes, item.first),
    "area": lambda item: (-item.nbytes * (item.last - item.first + 1), item.first),
    "duration": lambda item: (item.first - item.last, -item.nbytes, item.first),
    "time": lambda item: (item.first, -item.nbytes),
}


def plan_memory(lifetimes: Sequence[Lifetime], alignment: int = ALIGNMENT) -> MemoryPlan:
    """The smallest of the plans that the heuristics find; buffers of no bytes get offset 0."""
    items = [item for item in lifetimes if item.nbytes > 0]
    bound = lower_bound(items, alignment)
    best: MemoryPlan | None = None
    for name, order in _ORDERS.items():
        for fit in ("best", "first"):
            if best is not None and best.total == bound:
                return best
            offsets, total = _place(sorted(items, key=order), alignment, fit == "best")
            if best is None or total < best.total:
                offsets.update((item.name, 0) for item in lifetimes if item.nbytes <= 0)
                best = MemoryPlan(offsets, total, bound, f"{name}, {fit} fit")
    assert best is not None
    return best


def lower_bound(lifetimes: Sequence[Lifetime], alignment: int = ALIGNMENT) -> int:
    """The most (aligned) bytes alive during one call: no arena can be smaller."""
    change: dict[int, int] = {}
    for item in lifetimes:
        size = _aligned(item.nbytes, alignment)
        change[item.first] = change.get(item.first, 0) + size
        change[item.last + 1] = change.get(item.last + 1, 0) - size
    most = alive = 0
    for time in sorted(change):
        alive += change[time]
        most = max(most, alive)
    return most


def _place(items: Sequence[Lifetime], alignment: int, best_fit: bool) -> tuple[dict[str, int], int]:
    """Puts each item, in order, into a gap between the items placed already that live at the same time."""
    first, last = np.empty(len(items), np.int64), np.empty(len(items), np.int64)
    low, high = np.empty(len(items), np.int64), np.empty(len(items), np.int64)
    offsets: dict[str, int] = {}
    total = 0
    for count, item in enumerate(items):
        size = _aligned(item.nbytes, alignment)
        alive = np.flatnonzero((first[:count] <= item.last) & (last[:count] >= item.first))
        alive = alive[np.argsort(low[alive], kind="stable")]
        offset = _gap(low[alive], high[alive], size, best_fit)
        first[count], last[count], low[count], high[count] = item.first, item.last, offset, offset + size
        offsets[item.name] = offset
        total = max(total, offset + size)
    return offsets, total


def _gap(low: np.ndarray, high: np.ndarray, size: int, best_fit: bool) -> int:
    """The offset of the tightest (or the first) gap that holds `size` bytes; above everything when none does."""
    if low.size == 0:
        return 0
    reach = np.maximum.accumulate(high)
    starts = np.concatenate(([0], reach[:-1]))
    room = low - starts
    fits = np.flatnonzero(room >= size)
    if fits.size == 0:
        return int(reach[-1])
    return int(starts[fits[np.argmin(room[fits])] if best_fit else fits[0]])


def _aligned(nbytes: int, alignment: int) -> int:
    return -(-nbytes // alignment) * alignment
