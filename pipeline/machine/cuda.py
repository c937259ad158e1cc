"""An NVIDIA GPU: measured by its clock where one is here, else compiled, executed on the CPU and predicted."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.codegen.cuda.build import build_kernel, emit_kernel
from pipeline.codegen.cuda.compile import nvrtc_version
from pipeline.codegen.cuda.driver import why_absent
from pipeline.codegen.cuda.execute_build import find_compiler
from pipeline.codegen.cuda.kernel import CudaKernel
from pipeline.codegen.cuda.link import link
from pipeline.codegen.module import ModulePlan
from pipeline.config import Config, MeasurementSettings
from pipeline.errors import ConfigError
from pipeline.ir.graph import Graph
from pipeline.ir.program import Program
from pipeline.ir.target import Target
from pipeline.machine.machine import VERSION, Feeds, Parts, Runnable
from pipeline.machine.plan_check import verify_plan
from pipeline.measurement.host import detect_host
from pipeline.measurement.peak import Peak
from pipeline.report.summary import KernelFacts, Latency
from pipeline.report.summary import Machine as MachineFacts
from pipeline.runtime.cuda_artifact import load_cuda_artifact, save_cuda
from pipeline.runtime.host_module import HostModule
from pipeline.search.gpu_prediction import predict
from pipeline.space.partition import Partition
from pipeline.verification.module_gate import Report

log = logging.getLogger("pipeline")


class CudaMachine:
    """See `Machine`. Whether a device of the target's architecture is here decides whether times are predicted."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self.target: Target = config.target.resolve()
        gpu = self.target.gpu
        assert gpu is not None, f"{self.target.name} is no GPU"
        self.compiler = f"muschedule {VERSION} nvrtc {nvrtc_version()}"
        facts = (gpu.arch, self.target.name, gpu.multiprocessors, gpu.shared_per_block, gpu.l2_bytes)
        self.fingerprint = hashlib.sha256(repr(facts).encode()).hexdigest()[:16]
        self.peak = Peak(self.target.peak_gflops(), self.target.bandwidth_gbs, gpu.multiprocessors)
        self.threads = detect_host().cores
        absent = why_absent(gpu.arch)
        self.predicted = absent is not None
        if absent is not None:
            log.info(
                "%s: kernels are compiled for %s, their source is run on the CPU and checked, times are predicted",
                absent, gpu.arch,
            )  # fmt: skip

    def parts(self, measurement: MeasurementSettings) -> Parts:
        workers = measurement.workers or self.threads
        if not self.predicted:
            return Parts(build_kernel, {}, workers, measurement.runner)
        if measurement.predicted is None:
            raise ConfigError(
                f"no GPU of {self.target.cpu} is here, and nothing is configured to stand in for it",
                where="measurement.predicted",
                todo="Choose measurement=cuda",
            )
        given = {"predict": self._seconds, "workers": workers}
        return Parts(build_kernel, {}, workers, measurement.predicted, given)

    def save(self, plan: ModulePlan[Any], path: Path) -> Path:
        return save_cuda(link(plan), path)

    def open(self, path: Path) -> HostModule:
        return HostModule(load_cuda_artifact(path).plan)

    def faster(self, artifacts: Mapping[float, Path], feeds: Feeds) -> float:
        return next(iter(artifacts))

    def verified(self, model: Graph, graph: Graph, parts: Partition, module: Runnable, feeds: Feeds) -> Report:
        assert isinstance(module, HostModule)
        return verify_plan(model, parts, module.plan, feeds, seed=self._config.seed, workers=self.threads)

    def latency(self, module: Runnable, feeds: Feeds, alone: float, folder: Path) -> Latency:
        return Latency(median=alone * 1e3, min=alone * 1e3, p90=alone * 1e3, samples=0)

    def listings(self, program: Program, said: str) -> Mapping[str, str]:
        return {".cu": f"// {said}\n{emit_kernel(program, self.target).source}"}

    def facts_of(self, program: Program) -> KernelFacts | None:
        found = predict(program, build_kernel(program, self.target), self.target)
        return KernelFacts(
            bound=found.bound, of_peak=found.of_peak, registers=found.registers, spill_bytes=found.spill_bytes,
            shared_bytes=found.shared_bytes, launches=found.launches,
        )  # fmt: skip

    def facts(self) -> MachineFacts:
        target = self.target
        return MachineFacts(
            cpu=target.name, cores=target.cores, vector_bits=target.vector_bits, peak_gflops=self.peak.gflops,
            bandwidth_gbs=self.peak.bandwidth_gbs,
        )  # fmt: skip

    def _seconds(self, program: Program, kernel: CudaKernel) -> float:
        return predict(program, kernel, self.target).seconds

    def versions(self) -> dict[str, str]:
        compiler = find_compiler()
        by = "the CPU's code generator, for want of a C++ compiler" if compiler is None else Path(compiler).name
        return {"nvrtc": nvrtc_version(), **({"executed by": by} if self.predicted else {})}
