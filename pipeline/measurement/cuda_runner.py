"""The runner on this machine's GPU."""

from __future__ import annotations

from typing import Annotated

from annotated_types import Gt

from pipeline.codegen.cuda.kernel import CudaKernel
from pipeline.ir.target import Target
from pipeline.measurement.cuda_bench import perform, set_up
from pipeline.measurement.sampling import SamplingPolicy
from pipeline.measurement.worker_runner import WorkerRunner


class CudaRunner(WorkerRunner):
    """See `WorkerRunner`. A kernel that breaks the context ends its process, as one that crashes a CPU's does.

    timeout_s  for loading, checking and timing one kernel
    memory_mb  of addresses that one kernel may take, which the driver gives to the device's memory too
    """

    def __init__(
        self,
        target: Target,
        policy: SamplingPolicy,
        *,
        timeout_s: Annotated[float, Gt(0)] = 30.0,
        memory_mb: Annotated[int, Gt(0)] = 1 << 20,
    ) -> None:
        super().__init__(CudaKernel, perform, set_up, target.cpu, policy, timeout_s, memory_mb)
