"""A kernel on trial: what is noted of it, and how several of one job are checked and timed."""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

import numpy as np

from pipeline.codegen.built_kernel import AnyKernel
from pipeline.measurement.bench_job import BenchJob, BenchResult
from pipeline.measurement.failure import Failure
from pipeline.measurement.protocol import CacheState, Case, Reference
from pipeline.measurement.sampling import Clock, Samples, SamplingPolicy, interleave, sample
from pipeline.verification.verdict import compare


class Trial(ABC):
    """One kernel with its buffers. See `BenchResult` for what is noted; only the first failure is."""

    def __init__(self) -> None:
        self.failure: Failure | None = None
        self.max_absolute = self.max_relative = self.tolerance = 0.0
        self._nearest = -1.0

    @abstractmethod
    def check(self, reference: Reference) -> None:
        """Run every case once from spoiled outputs, and judge."""

    @abstractmethod
    def check_guards(self, when: str) -> None:
        """Whether it wrote beside its buffers."""

    @abstractmethod
    def clock(self, policy: SamplingPolicy) -> Clock: ...

    def close(self) -> None:
        """Give back what it holds, where that does not go by itself."""
        return

    def judge(self, number: int, case: Case, outputs: Mapping[str, Callable[[], np.ndarray]]) -> None:
        """Compares the outputs of a case, as long as nothing was wrong."""
        for name, read in outputs.items():
            if self.failure is not None:
                return
            verdict = compare(read(), case.expected[name], case.tolerance[name])
            if verdict.share > self._nearest:
                self._nearest, self.tolerance = verdict.share, verdict.tolerance
                self.max_absolute, self.max_relative = verdict.max_absolute, verdict.max_relative
            if not verdict.ok:
                self.failure = Failure("wrong", f"case {number}, output {name}: {verdict.reason}")


def checked_and_timed(
    job: BenchJob[AnyKernel], reference: Reference, make: Callable[[AnyKernel], Trial]
) -> tuple[BenchResult, ...]:
    """The result of each kernel: all are checked, then those that are right are timed."""
    cache: CacheState = "cold" if job.policy.flush_cache else "warm"
    trials: list[Trial] = []
    starts: list[float] = []
    taken: dict[int, Samples] = {}
    with contextlib.ExitStack() as held:  # the worker lives on, whatever one kernel's check ends with
        for kernel in job.kernels:
            starts.append(time.perf_counter())
            trials.append(make(kernel))
            held.callback(trials[-1].close)
            trials[-1].check(reference)
        sound = [trial for trial in trials if trial.failure is None]
        if job.rounds is not None:
            clocks = [trial.clock(job.policy) for trial in sound]
            for trial, samples in zip(sound, interleave(clocks, job.policy, job.rounds), strict=True):
                taken[id(trial)] = samples
        else:
            for trial in sound:
                taken[id(trial)] = sample(trial.clock(job.policy), job.policy, job.best_ns)
        for trial in trials:
            trial.check_guards("while it was timed")
    return tuple(
        BenchResult(
            Samples((), 1) if trial.failure is not None else taken[id(trial)], trial.failure, trial.max_absolute,
            trial.max_relative, trial.tolerance, time.perf_counter() - start, cache,
        )
        for trial, start in zip(trials, starts, strict=True)
    )  # fmt: skip
