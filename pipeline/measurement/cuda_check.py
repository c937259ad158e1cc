"""The worker's side of checking GPU kernels without a GPU: the emitted source is executed and compared, here."""

from __future__ import annotations

import time
from dataclasses import dataclass

from pipeline.codegen.cuda.check_outputs import check_outputs
from pipeline.codegen.cuda.execute import execute
from pipeline.codegen.cuda.execute_build import find_compiler
from pipeline.codegen.cuda.execute_llvm import execute_by_llvm
from pipeline.codegen.cuda.execution import Execution
from pipeline.codegen.cuda.kernel import CudaSource, Launch
from pipeline.codegen.cuda.sample_blocks import grid_axes, sample_blocks
from pipeline.ir.program import Program
from pipeline.measurement.failure import Failure
from pipeline.measurement.host import detect_host
from pipeline.measurement.protocol import Case, Reference
from pipeline.measurement.reference_files import ReferenceFiles, read

WHOLE_SECONDS = 0.2  # a launch that takes no longer than this is not sampled
MORE_CASES_SECONDS = 1.0  # what the first case took: below it the others are run too


@dataclass(frozen=True, slots=True, eq=False)
class CheckJob:
    """A kernel of one task.

    blocks  of a launch that are run where it has more
    """

    source: CudaSource
    program: Program
    reference: ReferenceFiles
    blocks: int


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What became of it; the fields are those of `MeasureResult`. by: what was executed."""

    failure: Failure | None
    max_absolute: float
    max_relative: float
    tolerance: float
    seconds: float
    by: str


_LAST: list[tuple[str, Reference]] = []  # one process, one task at a time


def set_up(_: object) -> None:
    """Nothing is kept from an earlier process."""
    _LAST.clear()


def check_kernel(job: CheckJob) -> CheckResult:
    """Runs the kernel on every case, as far as that is cheap, and compares what it wrote."""
    start = time.perf_counter()
    if not _LAST or _LAST[0][0] != job.reference.task_id:
        _LAST[:] = [(job.reference.task_id, read(job.reference))]
    reference = _LAST[0][1]
    absolute = relative = tolerance = 0.0
    by = "source"
    for number, case in enumerate(reference.cases):
        if number and time.perf_counter() - start > MORE_CASES_SECONDS:
            break
        execution = _executed(job, reference, case)
        by = execution.by
        verdict = check_outputs(execution, case.expected, case.tolerance)
        if verdict.max_absolute >= absolute:
            absolute, tolerance = verdict.max_absolute, verdict.tolerance
        relative = max(relative, verdict.max_relative)
        if not verdict.ok:
            failure = Failure("wrong", f"case {number}: {verdict.reason}")
            return CheckResult(failure, absolute, relative, tolerance, time.perf_counter() - start, by)
    return CheckResult(None, absolute, relative, tolerance, time.perf_counter() - start, by)


def _executed(job: CheckJob, reference: Reference, case: Case) -> Execution:
    arrays = {**reference.constants, **case.inputs}
    if find_compiler() is None:
        return execute_by_llvm(job.program, arrays, detect_host())
    known = dict(zip(job.source.launches, grid_axes(job.program, job.source.launches), strict=True))

    def blocks(launch: Launch) -> tuple[tuple[int, int, int], ...] | None:
        return sample_blocks(launch, known.get(launch), limit=job.blocks)

    return execute(job.source, arrays, blocks=blocks, count=False, whole_seconds=WHOLE_SECONDS)
