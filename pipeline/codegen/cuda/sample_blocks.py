"""Which blocks of a large launch stand for all of them: every corner and tail of its grid, and a few inside."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from pipeline.codegen.cuda.kernel import Launch
from pipeline.ir.lockstep import BLOCKS
from pipeline.ir.program import Loop, Program, Stmt, walk

STEPS = 16  # from a corner back to a block that does something, along one axis
GridAxes = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]  # the extents fused along x, y and z, last fastest


def sample_blocks(
    launch: Launch, axes: GridAxes | None = None, *, limit: int = 12, inside: int = 4, seed: int = 0,
    idle: Callable[[tuple[int, int, int]], bool] = lambda block: False,
) -> tuple[tuple[int, int, int], ...] | None:  # fmt: skip
    """At most `limit` blocks, or None where the grid has no more than that: all of them. `inside` of them are neither
    corners nor tails, where there are such.

    axes  what is fused along x, y and z of the grid (`grid_axes`): a tail of each axis is in the sample then. Without
          them each dimension of the grid is taken for one axis
    idle  of a block, whether it stores nothing: the last blocks of a grid whose order is changed may have no work, and
          a corner is the last one that has
    """
    if math.prod(launch.grid) <= limit:
        return None
    dims = axes or tuple((extent,) for extent in launch.grid)
    extents = tuple(extent for dim in dims for extent in dim)
    chosen: dict[tuple[int, ...], None] = {}
    room = max(2, limit - inside)
    for point in itertools.islice(_corners(extents, room), room):
        before = (other for other in _before(point) if not idle(_block(other, dims)))
        chosen.setdefault(next(before, point))
    rng = np.random.default_rng(seed)
    most = min(limit, len(chosen) + inside)
    for _ in range(4 * limit):
        if len(chosen) >= most:
            break
        chosen.setdefault(tuple(int(rng.integers(max(1, extent - 1))) for extent in extents))
    blocks = dict.fromkeys(_block(point, dims) for point in chosen)
    return tuple(sorted(blocks, key=lambda block: block[::-1]))


def grid_axes(program: Program, launches: Sequence[Launch]) -> tuple[GridAxes | None, ...]:
    """What is fused along x, y and z of each of the launches that a program's body became; None where a launch is not
    one of its regions as they stand there."""
    regions = [_region_axes(region) for region in program.body.body]
    if len(regions) != len(launches):
        return (None,) * len(launches)
    return tuple(
        axes if tuple(math.prod(dim) for dim in axes) == launch.grid else None
        for axes, launch in zip(regions, launches, strict=True)
    )


def _region_axes(region: Stmt) -> GridAxes:
    found: dict[str, tuple[int, ...]] = {}
    for stmt in walk(region):
        if isinstance(stmt, Loop) and (stmt.kind in BLOCKS or (stmt.kind == "parallel" and stmt is region)):
            kind = "blockIdx.x" if stmt.kind == "parallel" else stmt.kind
            found[kind] = tuple(axis.extent.value for axis in stmt.axes)
    x, y, z = (found.get(kind, (1,)) for kind in BLOCKS)
    return x, y, z


def _corners(extents: tuple[int, ...], limit: int) -> Iterator[tuple[int, ...]]:
    """All corners where they are few, or else the first and the last block, and of each axis its end among firsts and
    its beginning among lasts, as far as the limit allows after the first two."""
    long = [axis for axis, extent in enumerate(extents) if extent > 1]
    if 2 ** len(long) <= limit:
        yield from itertools.product(*(sorted({0, extent - 1}) for extent in extents))
        return
    first, last = tuple(0 for _ in extents), tuple(extent - 1 for extent in extents)
    yield last
    yield first
    for axis in long:
        yield (*first[:axis], last[axis], *first[axis + 1 :])
    for axis in long:
        yield (*last[:axis], 0, *last[axis + 1 :])


def _before(point: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """The point, then those before it along one axis, the last axis first."""
    yield point
    for axis in reversed(range(len(point))):
        for value in range(point[axis] - 1, max(-1, point[axis] - 1 - STEPS), -1):
            yield (*point[:axis], value, *point[axis + 1 :])


def _block(point: Sequence[int], dims: Sequence[Sequence[int]]) -> tuple[int, int, int]:
    rest = list(point)
    numbers = []
    for dim in dims:
        number = 0
        for extent in dim:
            number = number * extent + rest.pop(0)
        numbers.append(number)
    x, y, z = numbers
    return x, y, z
