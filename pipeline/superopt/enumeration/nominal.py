"""What operators cost at typical extents, before anything is tuned: enough to take up the cheap programs first."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never

from pipeline.superopt.enumeration.cost import slots
from pipeline.superopt.enumeration.labelled import (
    Collected,
    Final,
    Folded,
    Frame,
    Gathered,
    Handed,
    Literal,
    Operator,
    Pointwise,
    Read,
    Rescaled,
    RunningMost,
    Summed,
    Value,
)
from pipeline.superopt.goal.term import Factor

TILE_SLOTS = 200.0  # to start one operator on one tile


@dataclass(frozen=True, slots=True)
class Nominal:
    """Pieces and elements of every factor at typical extents.

    grid, loops  the number of pieces, by factor
    tiles        elements of the tile, by factor
    """

    grid: Mapping[Factor, int]
    loops: Mapping[Factor, int]
    tiles: Mapping[Factor, int]

    def price(self, op: Operator, frame: Frame, operands: Sequence[Value], value: Value) -> float:
        """Issue slots of the operator that makes a value, over all points of the grid and all iterations."""
        if isinstance(op, Literal):
            return 0.0
        inner = max((v.depth for v in operands), default=value.depth)
        runs = math.prod(self.grid.get(f, 1) for f in frame.grid)
        runs *= math.prod(self.loops.get(f, 1) for f in frame.loops[:inner])
        across = value.free.union(*(v.free for v in operands)) & frame.tiles
        return runs * (math.prod(self.tiles[f] for f in across) * _slots(op) + TILE_SLOTS)


def _slots(op: Operator) -> float:
    """Of one element."""
    match op:
        case Literal():
            return 0.0
        case Pointwise(fn):
            return slots(fn)
        case Read() | Folded():
            return 0.5
        case Summed():
            return 0.75
        case Gathered() | Final() | RunningMost() | Collected():
            return 1.0
        case Rescaled():
            return 3.0
        case Handed():
            return 8.0
        case _:
            assert_never(op)
