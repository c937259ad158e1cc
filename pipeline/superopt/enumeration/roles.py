"""Which factors each axis of a specification has: a grid axis, a loop, a tile. The maps of all tensors follow.

A role belongs to an axis, not to a tensor, so every input and the output are cut the same way along it: maps that
pair an element with one of another tile are never proposed. `positional_maps` counts what that leaves out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, permutations

from pipeline.superopt.goal.term import Factor
from pipeline.superopt.spec import Labels, Product, Reduction, Spec

GRID_AXES = 3
LOOPS = 2


@dataclass(frozen=True, slots=True)
class Roles:
    """The axes that are cut over the grid, in the order of the grid axes, and those that have a loop, outermost first.

    Every axis has a tile too. A summed axis in `grid` splits its sum over the points of the grid.
    """

    grid: Labels
    loops: Labels


def summed_labels(spec: Spec) -> frozenset[int]:
    """The axes that some operation reduces away."""
    found: set[int] = set()
    for node in spec.nodes:
        if isinstance(node.op, Product | Reduction):
            found.update(node.op.over)
    return frozenset(found)


def factors(spec: Spec, roles: Roles) -> dict[int, tuple[Factor, ...]]:
    """The factors of each axis that terms tell apart: those of a summed axis; any other axis is never taken apart."""
    summed = summed_labels(spec) - {*spec.labels(spec.output)}
    found: dict[int, tuple[Factor, ...]] = {}
    for label in range(len(spec.extents)):
        parts: list[Factor] = []
        if label in summed:
            parts += [(label, "g")] * (label in roles.grid) + [(label, "l")] * (label in roles.loops)
        found[label] = (*parts, (label, "t"))
    return found


def assignments(spec: Spec) -> Iterator[Roles]:
    """Every assignment that is not the same as another one with an extent of one.

    An axis of the result is cut over the grid where there is room for it (extent one stands for "not"), a summed one
    where its sum is split. Loops go over summed axes; over an axis of the result only together with an accumulator that
    puts tiles side by side. An axis that is both (it is summed and used again) stays whole in the tile: one traversal
    cannot give a sum to the tiles that it was made of.
    """
    kept = tuple(label for label in spec.labels(spec.output))
    summed = summed_labels(spec)
    free = tuple(label for label in kept if label not in summed)
    inner = tuple(sorted(summed - {*kept}))
    for grid in _grids(spec, free, inner):
        for loops in _nests(free, inner):
            yield Roles(grid, loops)


def _grids(spec: Spec, free: Labels, inner: Labels) -> Iterator[Labels]:
    for split in ((), *((label,) for label in inner)):
        room = GRID_AXES - len(split)
        for chosen in combinations(free, min(room, len(free))):
            yield tuple(sorted((*chosen, *split)))


def _nests(free: Labels, inner: Labels) -> Iterator[Labels]:
    for depth in range(LOOPS + 1):
        yield from permutations(inner, depth)
    for label in free:
        yield (label,)
        for other in inner:
            yield (label, other)


def positional_maps(spec: Spec, roles: Roles) -> int:
    """How many choices of imap, fmap and omap by position there are for a grid and a nest of this size."""
    axes = len(roles.grid) + len(roles.loops)
    inputs = math.prod((len(tensor.labels) + 1) ** axes for tensor in spec.inputs)
    return inputs * (len(spec.labels(spec.output)) + 1) ** len(roles.grid)
