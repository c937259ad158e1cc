"""The worker's side of checking GPU kernels without a GPU: the emitted source is executed and compared, here."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.codegen.cuda.check_outputs import check_outputs
from pipeline.codegen.cuda.execute import Block, execute
from pipeline.codegen.cuda.execute_build import find_compiler
from pipeline.codegen.cuda.execute_llvm import execute_by_llvm, workspaces_by_llvm
from pipeline.codegen.cuda.execute_machine import whole_grid
from pipeline.codegen.cuda.execution import Execution
from pipeline.codegen.cuda.expected_writes import expected_writes, forgotten
from pipeline.codegen.cuda.kernel import CudaSource
from pipeline.codegen.cuda.sample_blocks import GridAxes, grid_axes, sample_blocks
from pipeline.ir.program import Program
from pipeline.measurement.failure import Failure
from pipeline.measurement.host import detect_host
from pipeline.measurement.protocol import Case, Reference
from pipeline.measurement.reference_files import ReferenceFiles, read

Chosen = list[tuple[Block, ...] | None]  # of each launch the blocks that are run at least; None: all
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
    """What became of it; the fields are those of `MeasureResult`."""

    failure: Failure | None
    max_absolute: float
    max_relative: float
    tolerance: float
    seconds: float


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
    chosen = _chosen(job)
    nearest = absolute = relative = tolerance = 0.0
    for number, case in enumerate(reference.cases):
        if number and time.perf_counter() - start > MORE_CASES_SECONDS:
            break
        execution = _executed(job, reference, case, chosen)
        left_out = None if execution.whole else _left_out(job, execution, chosen)
        verdict = check_outputs(execution, case.expected, case.tolerance)
        if verdict.share >= nearest:
            nearest, absolute, relative = verdict.share, verdict.max_absolute, verdict.max_relative
            tolerance = verdict.tolerance
        if not verdict.ok or left_out is not None:
            failure = Failure("wrong", f"case {number}: {verdict.reason or left_out}")
            return CheckResult(failure, absolute, relative, tolerance, time.perf_counter() - start)
    return CheckResult(None, absolute, relative, tolerance, time.perf_counter() - start)


def _executed(job: CheckJob, reference: Reference, case: Case, chosen: Chosen) -> Execution:
    arrays = {**reference.constants, **case.inputs}
    if find_compiler() is None:
        return execute_by_llvm(job.program, arrays, detect_host())
    blocks = dict(zip(job.source.launches, chosen, strict=True))
    return execute(
        job.source, arrays, blocks=blocks.__getitem__, count=False, whole_seconds=WHOLE_SECONDS,
        workspaces=workspaces_by_llvm(job.program, arrays, detect_host()),
    )  # fmt: skip


def _chosen(job: CheckJob) -> Chosen:
    """The blocks of each launch that are run at least; None: all."""
    axes = grid_axes(job.program, job.source.launches)
    return [
        sample_blocks(launch, each, limit=job.blocks, idle=_idle(job.program, region, each))
        for region, (launch, each) in enumerate(zip(job.source.launches, axes, strict=True))
    ]


def _idle(program: Program, region: int, axes: GridAxes | None) -> Callable[[Block], bool]:
    """Whether a block of a region gives nothing to any output, where its first block does."""

    @functools.cache
    def writes(block: Block) -> bool:
        found = expected_writes(program, region, np.array([block]))
        return found is None or any(mask.any() for mask in found.values())

    return lambda block: axes is not None and writes((0, 0, 0)) and not writes(block)


def _left_out(job: CheckJob, execution: Execution, chosen: Chosen) -> str | None:
    """What is wrong where the chosen blocks did not write what the program gives them; None where that is not known."""
    if None in grid_axes(job.program, job.source.launches):
        return None
    expected: dict[str, np.ndarray[Any, Any]] = {}
    for region, (launch, blocks) in enumerate(zip(job.source.launches, chosen, strict=True)):
        found = expected_writes(job.program, region, whole_grid(launch) if blocks is None else np.array(blocks))
        if found is None:
            return None
        for name, mask in found.items():
            expected[name] = mask | expected[name] if name in expected else mask
    return forgotten(expected, execution.written)
