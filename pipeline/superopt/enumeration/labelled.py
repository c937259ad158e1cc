"""Operators and values of a block over axis factors: what the enumeration works on, before dimensions are numbered."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.superopt.goal.term import Factor, Factors, ReduceKind

NEVER = 99  # the level of an accumulator where there is none


@dataclass(frozen=True, slots=True)
class Read:
    """The tile of an input of the specification."""

    number: int


@dataclass(frozen=True, slots=True)
class Literal:
    """A number of the specification."""

    value: float


@dataclass(frozen=True, slots=True)
class Pointwise:
    """A scalar function on each element; operands are broadcast along the factors that they lack."""

    fn: str


@dataclass(frozen=True, slots=True)
class Summed:
    """The product of two operands, summed over tile factors that both have."""

    over: Factors


@dataclass(frozen=True, slots=True)
class Folded:
    """A reduction over tile factors."""

    kind: ReduceKind
    over: Factors


@dataclass(frozen=True, slots=True)
class Gathered:
    """An accumulator over the loops from `level` on: a reduction over their factors."""

    kind: ReduceKind
    level: int


@dataclass(frozen=True, slots=True)
class RunningMost:
    """The greatest (or least) so far, in the loops from `level` on."""

    kind: ReduceKind
    level: int


@dataclass(frozen=True, slots=True)
class Rescaled:
    """The rescaled sum of the first operand over the loops from `level` on; the second is a `RunningMost`."""

    level: int


@dataclass(frozen=True, slots=True)
class Final:
    """What a `RunningMost` is after the loops from `level` on."""

    level: int


@dataclass(frozen=True, slots=True)
class Collected:
    """The tiles of the outermost loop, which goes over an axis of the result, side by side."""

    factor: Factor


@dataclass(frozen=True, slots=True)
class Handed:
    """A result of the kernel before, its split factor as a dimension."""


Operator = Read | Literal | Pointwise | Summed | Folded | Gathered | RunningMost | Rescaled | Final | Collected | Handed


@dataclass(frozen=True, slots=True)
class Maker:
    """One way to compute a value: an operator on other values, by number, and what it costs in seconds."""

    op: Operator
    inputs: tuple[int, ...]
    cost: float


@dataclass(frozen=True, slots=True)
class Value:
    """What an enumeration knows of a value.

    form     the number of its class up to the axioms
    free     the factors that it varies with
    depth    how many loops it lives in
    after    the least level of an accumulator that it depends on, or NEVER
    stale    the running maxima that it depends on: only a rescaled sum over the loops makes it what its form says
    kernel   0, or 1 in the kernel that combines what was split
    whole    whether the tiles of the outermost loop have been put side by side
    digest   its fingerprint
    """

    form: int
    free: Factors
    depth: int
    after: int
    stale: frozenset[int]
    kernel: int
    whole: bool
    digest: bytes


@dataclass(frozen=True, slots=True)
class Frame:
    """Where a kernel has the factors.

    grid   the factor that each grid axis cuts: of an axis of the result its only factor, of a split sum its "g"
    loops  the factor that each loop cuts, the outermost first
    tiles  the factors that are dimensions of a tile; that of an axis of the result is in all three
    """

    grid: tuple[Factor, ...]
    loops: tuple[Factor, ...]
    tiles: Factors

    def depth(self, free: Factors) -> int:
        """Of a value that is cut by every loop that it varies with."""
        return max((number + 1 for number, factor in enumerate(self.loops) if factor in free), default=0)
