"""A runner with one worker process, in which kernels are checked and timed, one after the other."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

from pipeline.codegen.built_kernel import BuiltKernel
from pipeline.measurement.bench_job import BenchJob, BenchResult
from pipeline.measurement.failure import Failure
from pipeline.measurement.pool import WorkerPool
from pipeline.measurement.protocol import Built, MeasureResult, Reference
from pipeline.measurement.reference_files import ReferenceFiles, write
from pipeline.measurement.sampling import SamplingPolicy, typical


class WorkerRunner:
    """Checks and times kernels in one process of their own. A kernel that kills it costs that kernel only.

    kernel               the class of the kernels that it takes
    perform, set_up      what the worker does with a `BenchJob`, and what it does first, with `argument`
    timeout_s            for loading, checking and timing one kernel
    memory_mb            that one kernel may take beyond its data
    """

    def __init__(
        self, kernel: type[BuiltKernel], perform: Callable[..., object], set_up: Callable[..., object],
        argument: object, policy: SamplingPolicy, timeout_s: float, memory_mb: int,
    ) -> None:  # fmt: skip
        self._kernel, self._perform = kernel, perform
        self._policy, self._timeout_s = policy, timeout_s
        self._folder = tempfile.TemporaryDirectory(prefix="muschedule-", ignore_cleanup_errors=True)
        self._files: dict[str, ReferenceFiles] = {}
        self._pool = WorkerPool(1, memory_bytes=memory_mb << 20, initializer=set_up, initializer_argument=argument)

    def run(self, built: Sequence[Built], reference: Reference, best_ns: float | None = None) -> list[MeasureResult]:
        """See `Runner`. The best of the earlier ones in the batch counts as the best so far too."""
        files = self._written(reference)
        results = []
        for each in built:
            result = self._run(each, files, best_ns)
            if result.samples_ns:
                latency = typical(result.samples_ns)
                best_ns = latency if best_ns is None else min(best_ns, latency)
            results.append(result)
        return results

    def remeasure(
        self, built: Sequence[Built], reference: Reference, rounds: int, *, cold: bool = False
    ) -> list[MeasureResult]:
        """See `Runner`. Where one of them kills the process they are timed one by one, so that only that one fails."""
        files = self._written(reference)
        kernels = tuple(each.outcome for each in built if isinstance(each.outcome, self._kernel))
        if len(kernels) == len(built) > 0:
            policy = replace(self._policy, flush_cache=cold or self._policy.flush_cache)
            job = BenchJob(kernels, files, policy, rounds=rounds)
            outcome = self._pool.submit(self._perform, job, self._timeout_s * len(kernels)).result()
            if isinstance(outcome, tuple):
                return [_result(each, one) for each, one in zip(built, outcome, strict=True)]
        return [self._run(each, files, None) for each in built]

    def forget(self, task_id: str) -> None:
        """Remove the files of a task that is done. They are written again where it comes back."""
        if self._files.pop(task_id, None) is not None:
            for path in (Path(self._folder.name) / task_id).iterdir():
                path.unlink()
            (Path(self._folder.name) / task_id).rmdir()

    def close(self) -> None:
        self._pool.close()
        self._folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _written(self, reference: Reference) -> ReferenceFiles:
        if reference.task_id not in self._files:
            self._files[reference.task_id] = write(reference, Path(self._folder.name) / reference.task_id)
        return self._files[reference.task_id]

    def _run(self, built: Built, files: ReferenceFiles, best_ns: float | None) -> MeasureResult:
        if not isinstance(built.outcome, self._kernel):
            said = f"it is a {type(built.outcome).__name__}, and a {self._kernel.__name__} is run here"
            failure = built.outcome if isinstance(built.outcome, Failure) else Failure("error", said)
            return MeasureResult(built.key, failure=failure, build_seconds=built.seconds)
        job = BenchJob((built.outcome,), files, self._policy, best_ns)
        outcome = self._pool.submit(self._perform, job, self._timeout_s).result()
        return _result(built, outcome[0] if isinstance(outcome, tuple) else outcome)


def _result(built: Built, outcome: object) -> MeasureResult:
    match outcome:
        case Failure():
            return MeasureResult(built.key, failure=outcome, build_seconds=built.seconds)
        case BenchResult():
            return MeasureResult(
                key=built.key,
                samples_ns=outcome.samples.nanoseconds,
                inner=outcome.samples.inner,
                failure=outcome.failure,
                max_absolute=outcome.max_absolute,
                max_relative=outcome.max_relative,
                tolerance=outcome.tolerance,
                build_seconds=built.seconds,
                run_seconds=outcome.seconds,
                cache=outcome.cache,
                cut=outcome.samples.cut,
            )
        case _:
            failure = Failure("error", f"the runner gave {type(outcome).__name__} instead of a result")
            return MeasureResult(built.key, failure=failure, build_seconds=built.seconds)
