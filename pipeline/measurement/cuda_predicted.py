"""The runner for a GPU that is not here: times from a model, and every kernel's emitted source run on the CPU.

What a kernel computes is checked as it is on a device, and more: races, stray accesses and barriers that not all
threads reach are failures. How long it takes is a prediction, and is marked as one.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

from annotated_types import Ge, Gt

from pipeline.codegen.cuda.kernel import CudaKernel
from pipeline.codegen.cuda.scratch_folder import sweep
from pipeline.ir.program import Program
from pipeline.ir.target import Gpu, Target
from pipeline.measurement.cuda_check import CheckJob, CheckResult, check_kernel, set_up
from pipeline.measurement.failure import Failure
from pipeline.measurement.pool import WorkerPool
from pipeline.measurement.protocol import Built, MeasureResult, Reference
from pipeline.measurement.reference_files import ReferenceFiles, write

Predict = Callable[[Program, CudaKernel], float]


class PredictedRunner:
    """Checks kernels in worker processes and asks a model for their times.

    predict    seconds of one run of a kernel
    workers    processes
    blocks     of a launch that are run where it has more: its corners and tails, and a few inside
    timeout_s  for one kernel
    memory_mb  that one kernel may take beyond its data
    """

    def __init__(
        self,
        target: Target,
        *,
        predict: Predict,
        workers: Annotated[int, Gt(0)],
        blocks: Annotated[int, Ge(8)] = 8,
        timeout_s: Annotated[float, Gt(0)] = 60.0,
        memory_mb: Annotated[int, Gt(0)] = 4096,
    ) -> None:
        assert target.gpu is not None, f"{target.name} is no GPU"
        self._gpu, self._predict, self._blocks, self._timeout_s = target.gpu, predict, blocks, timeout_s
        self._folder = tempfile.TemporaryDirectory(prefix="muschedule-", ignore_cleanup_errors=True)
        self._files: ReferenceFiles | None = None
        self._checked: dict[tuple[str, str], CheckResult] = {}
        self._pool = WorkerPool(workers, memory_bytes=memory_mb << 20, initializer=set_up)

    def run(self, built: Sequence[Built], reference: Reference, best_ns: float | None = None) -> list[MeasureResult]:
        """See `Runner`. Nothing is cut: a slow kernel is predicted in no time, and a wrong one is to be known."""
        outcomes = [self._fit(each) for each in built]
        kernels = {k.symbol: (k, p) for found in outcomes if not isinstance(found, Failure) for k, p in (found,)}
        fresh = [symbol for symbol in kernels if (reference.task_id, symbol) not in self._checked]
        files = self._written(reference) if fresh else None
        pending = {}
        for symbol in fresh:
            assert files is not None
            kernel, program = kernels[symbol]
            job = CheckJob(kernel.program, program, files, self._blocks)
            pending[symbol] = self._pool.submit(check_kernel, job, self._timeout_s)
        for symbol, future in pending.items():
            self._checked[reference.task_id, symbol] = _checked(future.result())
        return [self._result(each, found, reference.task_id) for each, found in zip(built, outcomes, strict=True)]

    def remeasure(
        self, built: Sequence[Built], reference: Reference, rounds: int, *, cold: bool = False
    ) -> list[MeasureResult]:
        """See `Runner`. A model says the same every time."""
        return self.run(built, reference)

    def close(self) -> None:
        self._pool.close()
        self._folder.cleanup()
        sweep()  # of what its workers compiled

    def __enter__(self) -> PredictedRunner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _fit(self, built: Built) -> Failure | tuple[CudaKernel, Program]:
        """The kernel and its program, or why it cannot run on such a GPU."""
        match built.outcome:
            case Failure() as failure:
                return failure
            case CudaKernel() as kernel if isinstance(built.program, Program):
                reason = too_many_registers(kernel, self._gpu)
                return (kernel, built.program) if reason is None else Failure("build", reason)
            case other:
                return Failure("error", f"a {type(other).__name__} is no GPU's kernel with its program")

    def _result(self, built: Built, found: Failure | tuple[CudaKernel, Program], task_id: str) -> MeasureResult:
        if isinstance(found, Failure):
            return MeasureResult(built.key, failure=found, build_seconds=built.seconds, predicted=True)
        kernel, program = found
        checked = self._checked[task_id, kernel.symbol]
        samples = () if checked.failure is not None else (self._predict(program, kernel) * 1e9,)
        return MeasureResult(
            built.key, samples, 1, checked.failure, checked.max_absolute, checked.max_relative, checked.tolerance,
            built.seconds, checked.seconds, predicted=True,
        )  # fmt: skip

    def _written(self, reference: Reference) -> ReferenceFiles:
        """The files of the task that is at work; those of the one before go."""
        if self._files is None or self._files.task_id != reference.task_id:
            if self._files is not None:
                for path in (Path(self._folder.name) / self._files.task_id).iterdir():
                    path.unlink()
                (Path(self._folder.name) / self._files.task_id).rmdir()
            self._files = write(reference, Path(self._folder.name) / reference.task_id)
        return self._files


def too_many_registers(kernel: CudaKernel, gpu: Gpu) -> str | None:
    """Which launch no multiprocessor has registers for, where the target has fewer than the compiler believes; or None.

    Nothing else can be too much: threads and shared memory beyond the limits are refused where a kernel is emitted.
    """
    for launch in (*kernel.program.prologue, *kernel.program.launches):
        found = kernel.resources.get(launch.symbol)
        if found is not None and allotted(found.registers, launch.threads) > gpu.registers:
            return f"{launch.symbol} takes {found.registers} registers in {launch.threads} threads: no block fits"
    return None


def allotted(registers: int, threads: int) -> int:
    """Registers of a block: warps get them in units of 256."""
    warps = -(-threads // 32)
    return warps * -(-registers * 32 // 256) * 256


def _checked(outcome: object) -> CheckResult:
    match outcome:
        case CheckResult():
            return outcome
        case Failure():
            return CheckResult(outcome, 0.0, 0.0, 0.0, 0.0)
        case _:
            failure = Failure("error", f"the check gave {type(outcome).__name__} instead of a result")
            return CheckResult(failure, 0.0, 0.0, 0.0, 0.0)
