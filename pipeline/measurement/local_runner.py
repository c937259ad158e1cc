"""The runner on this machine's CPU."""

from __future__ import annotations

from typing import Annotated

from annotated_types import Gt

from pipeline.codegen.kernel import Kernel
from pipeline.ir.target import Target
from pipeline.measurement.bench import perform, set_up
from pipeline.measurement.sampling import SamplingPolicy
from pipeline.measurement.worker_runner import WorkerRunner


class LocalRunner(WorkerRunner):
    """See `WorkerRunner`.

    timeout_s  for loading, checking and timing one kernel
    memory_mb  that one kernel may take beyond its data
    """

    def __init__(
        self,
        target: Target,
        policy: SamplingPolicy,
        *,
        timeout_s: Annotated[float, Gt(0)] = 20.0,
        memory_mb: Annotated[int, Gt(0)] = 4096,
    ) -> None:
        super().__init__(Kernel, perform, set_up, target, policy, timeout_s, memory_mb)
