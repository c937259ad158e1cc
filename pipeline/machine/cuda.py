"""What all runs for NVIDIA GPUs have in common, whether or not one is here."""

from __future__ import annotations

import math
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
from pipeline.errors import UserError
from pipeline.ir.graph import Graph, Input
from pipeline.ir.graph_types import numpy_dtype
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

    def refuse_too_large(self, graph: Graph) -> None:
        """Before anything is tuned; what intermediates take is known when the module is linked."""
        ends = {number for _, number in graph.outputs}
        moved = sum(
            math.prod(node.type.shape) * numpy_dtype(node.type.dtype).itemsize
            for number, node in enumerate(graph.nodes)
            if number in ends or isinstance(node.op, Input)
        )
        constants = sum(array.nbytes for array in graph.constants.values())
        self._refuse_bytes(moved + constants, "its inputs, constants and outputs take")

    def unfinished(self, program: Program) -> str | None:
        return None

    def save(self, plan: ModulePlan[Any], path: Path) -> Path:
        linked = link(replace(plan, provenance={**plan.provenance, "predicted": self.predicted}))
        self._refuse_bytes(sum(linked.sizes.values()), "all that the module keeps in its memory takes")
        return save_cuda(linked, path)

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

    def _refuse_bytes(self, needed: int, what: str) -> None:
        assert self.target.gpu is not None
        there = self.target.gpu.memory_bytes
        if needed > there:
            raise UserError(
                "the model is too large for this GPU",
                where=f"workload on {self.target.name}",
                why=f"{what} {needed / 2**30:,.3g} GiB, and it has {there / 2**30:,.3g} GiB (target.memory_bytes)",
                todo="Choose smaller sizes, a smaller dtype, or a target with more memory",
            )

    def seconds(self, program: Program, kernel: CudaKernel) -> float:
        """That the model predicts."""
        return predict(program, kernel, self.target).seconds
