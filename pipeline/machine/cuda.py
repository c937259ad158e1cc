"""What all runs for NVIDIA GPUs have in common, whether or not one is here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline.codegen.built_kernel import BuiltKernel
from pipeline.codegen.cuda.compile import compile_source, nvrtc_version
from pipeline.codegen.cuda.kernel import CudaKernel
from pipeline.codegen.cuda.link import link
from pipeline.codegen.module import ModulePlan
from pipeline.config import Config
from pipeline.ir.program import Program
from pipeline.ir.target import Target
from pipeline.machine.machine import VERSION
from pipeline.measurement.host import detect_host, fingerprint
from pipeline.measurement.peak import Peak
from pipeline.report.summary import KernelFacts
from pipeline.report.summary import Machine as MachineFacts
from pipeline.runtime.cuda_artifact import save_cuda
from pipeline.search.gpu_prediction import predict


class CudaMachine:
    """The parts of a `Machine` that need no device."""

    predicted: bool
    unchecked = ""

    def __init__(self, config: Config, target: Target) -> None:
        assert target.gpu is not None, f"{target.name} is no GPU"
        self.config, self.target = config, target
        gpu = target.gpu
        compile_source("", gpu.arch)  # whoever lacks the compiler, or has one that is too old, is told now
        self.compiler = f"muschedule {VERSION} nvrtc {nvrtc_version()}"
        self.fingerprint = fingerprint(target)
        self.peak = Peak(target.peak_gflops(), target.bandwidth_gbs, gpu.multiprocessors)
        self.threads = detect_host().cores

    def save(self, plan: ModulePlan[Any], path: Path) -> Path:
        provenance = {**plan.provenance, "predicted": self.predicted}
        return save_cuda(link(replace(plan, provenance=provenance)), path)

    def listings(self, program: Program, kernel: BuiltKernel, said: str) -> Mapping[str, str]:
        assert isinstance(kernel, CudaKernel)
        return {".cu": f"// {said}\n{kernel.program.source}"}

    def facts_of(self, program: Program, kernel: BuiltKernel) -> KernelFacts | None:
        assert isinstance(kernel, CudaKernel)
        found = predict(program, kernel, self.target)
        return KernelFacts.model_validate(found, from_attributes=True)

    def facts(self) -> MachineFacts:
        target = self.target
        return MachineFacts(
            cpu=target.name, cores=target.cores, vector_bits=target.vector_bits, peak_gflops=self.peak.gflops,
            bandwidth_gbs=self.peak.bandwidth_gbs,
        )  # fmt: skip

    def versions(self) -> dict[str, str]:
        return {"nvrtc": nvrtc_version()}

    def seconds(self, program: Program, kernel: CudaKernel) -> float:
        """That the model predicts."""
        return predict(program, kernel, self.target).seconds
