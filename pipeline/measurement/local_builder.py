"""The builder on this machine: worker processes that lower and compile candidates, as many as there are cores."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Gt

from pipeline.codegen.built_kernel import BuiltKernel
from pipeline.ir.target import Target
from pipeline.measurement.failure import Failure
from pipeline.measurement.pool import WorkerPool
from pipeline.measurement.protocol import Built, MeasureRequest
from pipeline.measurement.wire import dotted, resolve


@dataclass(frozen=True, slots=True)
class _BuildJob:
    function: str
    program: object
    target: Target
    options: Mapping[str, object]


class LocalBuilder:
    """Builds in a pool of worker processes.

    function   (program, target, **options) -> kernel, importable, or its name "package.module:name"
    workers    processes
    timeout_s  for one build
    memory_mb  that one build may take
    """

    def __init__(
        self,
        function: Callable[..., BuiltKernel] | str,
        target: Target,
        *,
        workers: Annotated[int, Gt(0)],
        timeout_s: Annotated[float, Gt(0)] = 20.0,
        memory_mb: Annotated[int, Gt(0)] = 4096,
        options: Mapping[str, object] | None = None,
    ) -> None:
        self._function, self._target, self._timeout_s = dotted(function), target, timeout_s
        self._options = dict(options or {})
        self._pool = WorkerPool(
            workers, memory_bytes=memory_mb << 20, initializer=import_ahead, initializer_argument=self._function
        )

    def build(self, requests: Sequence[MeasureRequest]) -> list[Built]:
        return [future.result() for future in self.start(requests)]

    def start(self, requests: Sequence[MeasureRequest]) -> list[Future[Built]]:
        """The same without waiting, so that the caller can search on meanwhile."""
        return [self._start(request) for request in requests]

    def close(self) -> None:
        self._pool.close()

    def __enter__(self) -> LocalBuilder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self, request: MeasureRequest) -> Future[Built]:
        job = _BuildJob(self._function, request.program, self._target, self._options)
        raw = self._pool.submit(build_one, job, self._timeout_s)
        built: Future[Built] = Future()
        built.set_running_or_notify_cancel()
        raw.add_done_callback(lambda done: built.set_result(_outcome(request, done.result())))
        return built


def _outcome(request: MeasureRequest, result: object) -> Built:
    key = request.key
    match result:
        case Failure(reason="error", detail=detail):
            return Built(key, Failure("build", detail))
        case Failure():
            return Built(key, result)
        case (kernel, float(seconds)) if isinstance(kernel, BuiltKernel):
            return Built(key, kernel, seconds, request.program)
        case _:
            return Built(key, Failure("build", f"the build function gave {type(result).__name__} instead of a kernel"))


def import_ahead(function: str) -> None:
    """So that the first build does not pay for the import. A name that is wrong is told by each build."""
    try:
        resolve(function)
    except (ImportError, AttributeError):
        return


def build_one(job: _BuildJob) -> tuple[object, float]:
    """Runs in the worker."""
    start = time.perf_counter()
    kernel = resolve(job.function)(job.program, job.target, **job.options)
    return kernel, time.perf_counter() - start
