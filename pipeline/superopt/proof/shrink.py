"""Small extents at which a µGraph of a specification can be run: every factor of an axis becomes 2 or 3.

Each label of the specification and each grid axis or loop is given a prime of its own; running the µGraph over mere
shapes then says which label has to be a multiple of which axis.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pipeline.errors import CheckError
from pipeline.ir.algebra import IndivisibleError
from pipeline.superopt.mugraph.graph import MuGraph, block_graphs
from pipeline.superopt.mugraph.shape_algebra import result_shapes
from pipeline.superopt.spec import Spec

GRID, LOOP = 2, 3  # so that a value that is carried over a loop changes twice
TILES = (2, 3)  # of the labels in turn
ATTEMPTS = 100


@dataclass(frozen=True, slots=True)
class Extents:
    """Sizes of the labels of a specification, and of the grid axes and loops of a µGraph by name."""

    labels: tuple[int, ...]
    axes: Mapping[str, int]


def shrunken(spec: Spec, graph: MuGraph) -> Extents:
    """Small extents that the µGraph cuts into equal pieces; those that it fixes are shrunk too.

    CheckError where its parts do not fit together, at whatever extents.
    """
    numbers = _primes()
    labels = [next(numbers) for _ in spec.extents]
    small = {prime: TILES[label % len(TILES)] for label, prime in enumerate(labels)}
    axes: dict[str, int] = {}
    for block in block_graphs(graph):
        for kind, group in ((GRID, block.grid), (LOOP, block.loops)):
            for axis in group:
                if axis.name not in axes:
                    axes[axis.name] = next(numbers)
                    small[axes[axis.name]] = kind
    tiles, points = tuple(labels), dict(axes)
    for _ in range(ATTEMPTS):
        shapes = {tensor.name: tuple(labels[label] for label in tensor.labels) for tensor in spec.inputs}
        try:
            result_shapes(graph, shapes, axes)
        except IndivisibleError as error:
            missing = error.pieces // math.gcd(error.size, error.pieces)
            owner = next((label for label, prime in enumerate(tiles) if error.size % prime == 0), None)
            stack = next((name for name, prime in points.items() if error.size % prime == 0), None)
            if owner is not None:
                labels[owner] *= missing
            elif stack is not None:
                axes[stack] *= missing
            else:
                raise
            continue
        return Extents(
            tuple(_with(small, size) for size in labels), {name: _with(small, size) for name, size in axes.items()}
        )
    raise CheckError("no extents fit the µGraph", why=f"after {ATTEMPTS} attempts", todo="Give them")


def _with(small: Mapping[int, int], size: int) -> int:
    """The size with every prime that stands for a factor replaced by its small value."""
    value = 1
    for prime, factor in small.items():
        while size % prime == 0:
            size //= prime
            value *= factor
    return value * size


def _primes() -> Iterator[int]:
    """Above any factor that a µGraph fixes."""
    return (n for n in itertools.count(101) if all(n % d for d in range(2, math.isqrt(n) + 1)))
