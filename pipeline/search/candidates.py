"""Sketches as the search sees them: rows of numbers, their predicted seconds and their features."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import StepError
from pipeline.ir.program import Program
from pipeline.ir.target import Target
from pipeline.schedule.sketch import Sketch
from pipeline.schedule.space import ParameterSpace
from pipeline.schedule.variables import Rows
from pipeline.search.gpu_model import GpuModel
from pipeline.search.nest_model import NestModel

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class SketchSpace:
    """One sketch of a task: its parameter space and its analytic model.

    fed   names of the arguments that need not begin on a cache line
    """

    number: int
    sketch: Sketch
    target: Target
    fed: frozenset[str] = frozenset()

    @cached_property
    def space(self) -> ParameterSpace:
        return ParameterSpace.of(self.sketch)

    @cached_property
    def model(self) -> NestModel | GpuModel:
        if self.target.kind == "cuda":
            return GpuModel(self.sketch.program, self.target)
        return NestModel(self.sketch.program, self.target, self.fed)

    def draw(self, n: int, rng: np.random.Generator) -> Rows:
        """n valid rows, not always different ones; none at all where no row is valid."""
        try:
            return self.space.draw(n, rng)
        except StepError:
            return np.empty((0, len(self.space.columns)), np.int64)

    def analyse(self, rows: Rows) -> tuple[Array, Array]:
        """Predicted seconds (n,) and features (n, f) of candidates."""
        return self.model.evaluate(self.space.environment(rows, np.float64), len(rows))

    def program(self, row: Rows) -> Program:
        """The concrete program of one candidate."""
        return self.sketch.candidate(self.space.values(row))


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """One row of one sketch."""

    sketch: int
    row: tuple[int, ...]

    @property
    def key(self) -> tuple[int, tuple[int, ...]]:
        return (self.sketch, self.row)


@dataclass(frozen=True, slots=True, eq=False)
class Observation:
    """A candidate that was measured: seconds, or None where it failed."""

    candidate: Candidate
    seconds: float | None


@dataclass(slots=True)
class History:
    """What is known of one task so far, in the order in which it was measured.

    hints   candidates that were good elsewhere, on another machine or with another compiler, the fastest first
    """

    spaces: tuple[SketchSpace, ...]
    observations: list[Observation] = field(default_factory=list)
    hints: tuple[Candidate, ...] = ()

    def seen(self) -> set[tuple[int, tuple[int, ...]]]:
        return {observation.candidate.key for observation in self.observations}

    def best(self) -> Observation | None:
        """The fastest one that succeeded, the earliest of equals."""
        good = [o for o in self.observations if o.seconds is not None]
        return min(good, key=lambda o: o.seconds or 0.0) if good else None

    def ranked(self) -> list[Observation]:
        """Those that succeeded, the fastest first."""
        return sorted((o for o in self.observations if o.seconds is not None), key=lambda o: o.seconds or 0.0)

    def correct(self, observation: Observation, seconds: float | None) -> None:
        """Puts another time in the place of one that was measured; None: the candidate is out."""
        self.observations[self.observations.index(observation)] = Observation(observation.candidate, seconds)
