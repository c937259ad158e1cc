"""An NVIDIA GPU that is not here: kernels are compiled for it, executed on the CPU and checked, and predicted."""

from __future__ import annotations

import logging
from pathlib import Path

from pipeline.codegen.cuda.build import build_kernel
from pipeline.codegen.cuda.execute_build import find_compiler, why_no_compiler
from pipeline.config import Config, MeasurementSettings
from pipeline.errors import ConfigError
from pipeline.ir.graph import Graph
from pipeline.ir.target import Target
from pipeline.machine.cuda import CudaMachine
from pipeline.machine.machine import Feeds, Parts, Runnable
from pipeline.machine.plan_check import verify_plan
from pipeline.progress import Step
from pipeline.report.summary import Latency
from pipeline.runtime.cuda_artifact import load_cuda_artifact
from pipeline.runtime.host_module import HostModule
from pipeline.space.partition import Partition
from pipeline.verification.module_gate import Report

# The model has ranked them already, and executing a source takes seconds: a few, so that every task has its turn.
BATCH = 4

log = logging.getLogger("pipeline")


class PredictedCuda(CudaMachine):
    """See `Machine`. absent: why no device of the target can be used."""

    predicted = True

    def __init__(self, config: Config, target: Target, absent: str) -> None:
        super().__init__(config, target)
        self._absent = absent
        compiler = find_compiler()
        what = "programs are" if compiler is None else "source is"
        log.info(
            "%s: kernels are compiled for %s, their %s run on the CPU and checked, times are predicted",
            absent, target.cpu, what,
        )  # fmt: skip
        if compiler is None:
            self.unchecked = "the emitted source, for want of a C++ compiler"
            log.warning(
                "there is no C++ compiler that works (%s): programs are run through the CPU's code generator in place "
                "of their source, which finds neither races nor a wrong emission", why_no_compiler(),
            )  # fmt: skip

    def parts(self, measurement: MeasurementSettings) -> Parts:
        if measurement.predicted is None:
            raise ConfigError(
                f"kernels for {self.target.cpu} cannot be measured here, and nothing is to stand in for that",
                where="measurement.predicted",
                why=self._absent,
                todo="Choose measurement=cuda",
            )
        workers = measurement.workers or self.threads
        given = {"predict": self.seconds, "workers": workers}
        return Parts(build_kernel, {}, workers, measurement.predicted, given, BATCH)

    def open(self, path: Path) -> HostModule:
        return HostModule(load_cuda_artifact(path).plan)

    def verified(
        self, model: Graph, parts: Partition, module: Runnable, feeds: Feeds, step: Step, *, least: bool = False
    ) -> Report:
        assert isinstance(module, HostModule)
        return verify_plan(
            model, parts, module.plan, feeds, step, seed=self.config.seed, workers=self.threads, least=least
        )

    def latency(self, module: Runnable, feeds: Feeds, alone: float, folder: Path) -> Latency:
        return Latency(median=alone * 1e3, min=alone * 1e3, p90=alone * 1e3, samples=0)

    def versions(self) -> dict[str, str]:
        compiler = find_compiler()
        by = "the CPU's code generator, for want of a C++ compiler" if compiler is None else Path(compiler).name
        return super().versions() | {"kernels run by": by}
