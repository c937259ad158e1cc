"""An NVIDIA GPU of this machine: kernels and modules are run on it and timed by its clock."""

from __future__ import annotations

from pathlib import Path

from pipeline.codegen.cuda.build import build_kernel
from pipeline.config import MeasurementSettings
from pipeline.ir.graph import Graph
from pipeline.machine.cuda import CudaMachine
from pipeline.machine.machine import Feeds, Parts, Runnable
from pipeline.machine.running import verified_by_running
from pipeline.progress import Step
from pipeline.report.summary import Latency
from pipeline.runtime.cuda_session import CudaSession
from pipeline.space.partition import Partition
from pipeline.verification.module_gate import Report

RUNS = 200


class MeasuredCuda(CudaMachine):
    """See `Machine`."""

    predicted = False

    def parts(self, measurement: MeasurementSettings) -> Parts:
        return Parts(build_kernel, {}, measurement.workers or self.threads, measurement.runner)

    def open(self, path: Path) -> CudaSession:
        return CudaSession(path)

    def verified(
        self, model: Graph, parts: Partition, module: Runnable, feeds: Feeds, step: Step, *, least: bool = False
    ) -> Report:
        return verified_by_running(self.config, model, module, feeds, step, least=least)

    def latency(self, module: Runnable, feeds: Feeds, alone: float, folder: Path) -> Latency:
        """By the device's clock, with inputs and outputs in its memory."""
        assert isinstance(module, CudaSession)
        module.time(feeds, 10)
        latency = Latency.of(module.time(feeds, RUNS))
        module.chrome_trace(folder / "trace.json", feeds)
        return latency
