"""Axes that are found equal, or to be made of smaller ones, while the tensors of a graph are labelled.

A dimension is a sequence of axes, the outermost first: its index is the number with these digits. One of extent one
has none.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

Digits = tuple[int, ...]


@dataclass(slots=True)
class Axes:
    """Union-find over axes, each of which may be split into an outer and an inner one.

    extents   by number, of every axis that ever was
    """

    extents: list[int] = field(default_factory=list)
    _same: dict[int, int] = field(default_factory=dict)
    _parts: dict[int, Digits] = field(default_factory=dict)

    def copy(self) -> Axes:
        return Axes(list(self.extents), dict(self._same), dict(self._parts))

    def fresh(self, extent: int) -> Digits:
        """A new axis, or none for the extent one."""
        if extent == 1:
            return ()
        self.extents.append(extent)
        return (len(self.extents) - 1,)

    def expanded(self, digits: Iterable[int]) -> Digits:
        """The same dimension in axes that are not split; equal ones have equal numbers."""
        made: list[int] = []
        stack = list(digits)[::-1]
        while stack:
            axis = self._found(stack.pop())
            if axis in self._parts:
                stack.extend(reversed(self._parts[axis]))
            else:
                made.append(axis)
        return tuple(made)

    def size(self, digits: Iterable[int]) -> int:
        return math.prod(self.extents[axis] for axis in digits)

    def unify(self, one: Sequence[int], other: Sequence[int]) -> bool:
        """Make two dimensions the same one, splitting axes where needed; False where no split does it.

        What was unified before a failure stays so: go back to a copy.
        """
        left, right = list(self.expanded(one)), list(self.expanded(other))
        while left and right:
            a, b = left.pop(), right.pop()
            if a == b:
                continue
            if self.extents[a] == self.extents[b]:
                self._same[max(a, b)] = min(a, b)
                continue
            left_is_larger = self.extents[a] > self.extents[b]
            larger, smaller = (a, b) if left_is_larger else (b, a)
            if self.extents[larger] % self.extents[smaller]:
                return False
            (outer,) = self.fresh(self.extents[larger] // self.extents[smaller])
            self._parts[larger] = (outer, smaller)
            left, right = list(self.expanded(left)), list(self.expanded(right))
            (left if left_is_larger else right).append(outer)
        return not left and not right

    def _found(self, axis: int) -> int:
        while axis in self._same:
            axis = self._same[axis]
        return axis
