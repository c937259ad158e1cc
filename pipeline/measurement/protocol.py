"""What passes between a search, a builder and a runner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from pipeline.codegen.built_kernel import BuiltKernel
from pipeline.measurement.failure import Failure

CacheState = Literal["warm", "cold"]


@dataclass(frozen=True, slots=True)
class MeasureRequest:
    """One candidate: a concrete program (of `pipeline.ir.program`, without free parameters) and the candidate's key."""

    program: object
    key: str


@dataclass(frozen=True, slots=True)
class Built:
    """What became of a request in the builder. program: that of the request, for runners that predict."""

    key: str
    outcome: BuiltKernel | Failure
    seconds: float = 0.0
    program: object = None


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """One set of inputs and what must come out, by the names of the kernel's arguments.

    expected   in float64, or in the output's own dtype where that is of integers or bool
    tolerance  largest |got - want| for each element, infinite where nothing can be said; of the output's shape, or
               broadcast to it (`pipeline.verification.tolerance` derives both)
    """

    inputs: Mapping[str, np.ndarray]
    expected: Mapping[str, np.ndarray]
    tolerance: Mapping[str, np.ndarray]


@dataclass(frozen=True, slots=True, eq=False)
class Reference:
    """What the candidates of one task must compute. They are checked on every case and timed on the first one.

    fed  the arguments that callers hand in: they are timed where NumPy's large arrays begin, 16 bytes behind a line
    """

    task_id: str
    constants: Mapping[str, np.ndarray]
    cases: tuple[Case, ...]
    fed: frozenset[str] = frozenset()

    @property
    def nbytes(self) -> int:
        """Of all its arrays."""
        parts = [
            self.constants,
            *(part for case in self.cases for part in (case.inputs, case.expected, case.tolerance)),
        ]
        return sum(array.nbytes for part in parts for array in part.values())


@dataclass(frozen=True, slots=True)
class MeasureResult:
    """What became of a candidate.

    samples_ns     nanoseconds of one run, every sample that was taken
    inner          runs in a row that one sample is the mean of
    max_absolute   largest |got - want| of the output, in one of the cases, that came nearest to what is allowed
    max_relative   the same over the largest magnitude of that output
    tolerance      what was allowed of the element that is so far off
    build_seconds  of the builder; `run_seconds` of loading, checking and timing
    cache          warm: each run finds what the last one left · cold: caches are emptied before each sample
    cut            stopped after a sample or a few, which were slower than the best so far
    predicted      the samples are a model's: no clock has seen this candidate
    """

    key: str
    samples_ns: tuple[float, ...] = ()
    inner: int = 1
    failure: Failure | None = None
    max_absolute: float | None = None
    max_relative: float | None = None
    tolerance: float | None = None
    build_seconds: float = 0.0
    run_seconds: float = 0.0
    cache: CacheState = "warm"
    cut: bool = False
    predicted: bool = False


class Builder(Protocol):
    """Turns programs into kernels."""

    def build(self, requests: Sequence[MeasureRequest]) -> list[Built]:
        """One outcome for each request, in order. Never raises for a candidate's sake."""
        ...

    def close(self) -> None: ...


class Runner(Protocol):
    """Checks and times kernels."""

    def run(self, built: Sequence[Built], reference: Reference, best_ns: float | None = None) -> list[MeasureResult]:
        """One result for each, in order; what was not built fails with the builder's reason.

        best_ns  of the task so far: what is far slower is cut"""
        ...

    def remeasure(
        self, built: Sequence[Built], reference: Reference, rounds: int, *, cold: bool = False
    ) -> list[MeasureResult]:
        """Time a few kernels in turns, so that a change of the machine's speed meets them all alike.

        cold  before each sample the caches are emptied, and what a kernel reads comes from memory"""
        ...

    def close(self) -> None: ...
