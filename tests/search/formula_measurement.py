"""A builder and a runner without a clock: times are those of the analytic model, and some candidates fail."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

from pipeline.codegen.kernel import Kernel
from pipeline.ir.program import Program
from pipeline.ir.target import Target
from pipeline.measurement.failure import Failure
from pipeline.measurement.protocol import Built, CacheState, MeasureRequest, MeasureResult, Reference
from pipeline.search.candidates import History
from pipeline.search.nest_model import NestModel
from pipeline.search.strategy import Strategy
from pipeline.search.tuner import Budget, Tuner, make_state
from pipeline.space.task import Task
from pipeline.store.store import Store
from tests.search import spaces as small


class FormulaBuilder:
    """Notes what was asked for, in order; a kernel's code is its time as text."""

    def __init__(self, target: Target, fails: Sequence[str] = ()) -> None:
        self._target, self._fails = target, fails
        self.asked: list[str] = []

    def build(self, requests: Sequence[MeasureRequest]) -> list[Built]:
        return [self._one(request) for request in requests]

    def close(self) -> None:
        """Nothing to end."""

    def _one(self, request: MeasureRequest) -> Built:
        assert isinstance(request.program, Program)
        self.asked.append(f"{request.program.name} {request.key}")
        if any(word in request.key for word in self._fails):
            return Built(request.key, Failure("build", "planted"))
        seconds, _ = NestModel(request.program, self._target).evaluate({}, 1)
        # a jitter that hangs on the candidate alone, so that no two are equal
        jitter = hashlib.sha256(request.key.encode()).digest()[0] / 2560
        code = repr(float(seconds[0]) * (1 + jitter)).encode()
        return Built(request.key, Kernel("kernel", None, code, (), 1, False))


class FormulaRunner:
    """Reads the time from the kernel. Every eleventh candidate, by its name, is wrong. With empty caches the fastest is
    the slowest."""

    def __init__(self, failing: int = 11) -> None:
        self._failing = failing
        self.measured: list[str] = []
        self.cold: list[int] = []
        self.empties = True

    def run(self, built: Sequence[Built], reference: Reference, best_ns: float | None = None) -> list[MeasureResult]:
        return [self._one(each) for each in built]

    def remeasure(
        self, built: Sequence[Built], reference: Reference, rounds: int, *, cold: bool = False
    ) -> list[MeasureResult]:
        warm = [self._one(each) for each in built]
        if not cold:
            return warm
        self.cold.append(len(built))
        state: CacheState = "cold" if self.empties else "warm"
        return [
            replace(r, samples_ns=tuple((1e6 / sample) ** 20 for sample in r.samples_ns), cache=state) for r in warm
        ]

    def close(self) -> None:
        """Nothing to end."""

    def _one(self, built: Built) -> MeasureResult:
        self.measured.append(built.key)
        if isinstance(built.outcome, Failure):
            return MeasureResult(built.key, failure=built.outcome)
        if self._failing and hashlib.sha256(built.key.encode()).digest()[1] % self._failing == 0:
            return MeasureResult(built.key, failure=Failure("wrong", "planted"))
        return MeasureResult(built.key, samples_ns=(float(built.outcome.object_code) * 1e9,) * 3)


def no_reference(task: Task) -> Reference:
    """What a runner without a clock compares with."""
    return Reference(task.key, {}, ())


def tuner(graph, strategy: Strategy, cost, *, seed: int = 0, store: Store | None = None, target_key: str = "here",
          version: str = "1", trials: int | None = 24, per_task: int | None = None, batch: int = 6, patience: int = 4,
          failing: int = 11, report=lambda _: None) -> tuple[Tuner, FormulaBuilder, FormulaRunner]:  # fmt: skip
    """A tuner of all tasks of a graph whose times are a formula's."""
    builder, runner = FormulaBuilder(small.TARGET), FormulaRunner(failing)
    found = small.parts(graph)
    states = [
        make_state(task, found.weight(number), small.sketches(task), small.TARGET)
        for number, task in enumerate(found.tasks)
    ]
    made = Tuner(
        states, builder=builder, runner=runner, store=store, strategy=strategy, cost=cost,
        budget=Budget(trials, None, batch, per_task, patience, 0.01, 128, 3, 2), reference=no_reference,
        target_key=target_key, version=version, seed=seed, clock=lambda: 0.0, report=report,
    )  # fmt: skip
    return made, builder, runner


def keys(history: History) -> list[tuple[int, tuple[int, ...]]]:
    """The candidates of a history, in order."""
    return [observation.candidate.key for observation in history.observations]
