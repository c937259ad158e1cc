"""The machine that this program runs on: LLVM's code, measured by a clock, checked by running it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

from pipeline.codegen.built_kernel import BuiltKernel
from pipeline.codegen.llvm.build import build_kernel, emit_kernel
from pipeline.codegen.llvm.compile import assembly
from pipeline.codegen.llvm.known_target import refuse_unknown
from pipeline.codegen.llvm.link import link
from pipeline.codegen.module import ModulePlan
from pipeline.config import Config, MeasurementSettings
from pipeline.errors import ConfigError
from pipeline.ir.graph import Graph
from pipeline.ir.program import Program, blocks
from pipeline.ir.target import Target
from pipeline.machine.machine import VERSION, Feeds, Parts, Runnable
from pipeline.machine.running import time_runs, verified_by_running
from pipeline.measurement.host import detect_host, fingerprint
from pipeline.measurement.peak import Peak, measure_peak
from pipeline.progress import Step
from pipeline.report.summary import KernelFacts, Latency
from pipeline.report.summary import Machine as MachineFacts
from pipeline.runtime.artifact import save
from pipeline.runtime.cpu_features import refuse_target
from pipeline.runtime.session import Session
from pipeline.space.partition import Partition
from pipeline.verification.module_gate import Report

log = logging.getLogger("pipeline")

BUSY = 1.5  # a whole call may take so many times its kernels before it is worth a word
LEVEL = 3  # of the code generator, unless the configuration says otherwise
COMPILER = f"muschedule {VERSION} llvmlite {metadata.version('llvmlite')}"


class CpuMachine:
    """See `Machine`."""

    predicted = False
    unchecked = ""

    def __init__(self, config: Config, target: Target) -> None:
        self._config = config
        self._level = config.codegen.level
        # records of another level are those of another compiler
        self.compiler = COMPILER if self._level == LEVEL else f"{COMPILER} level {self._level}"
        self.fingerprint = fingerprint(target)
        self.target, self.peak = _with_limits(target)
        self.threads = target.cores

    def parts(self, measurement: MeasurementSettings) -> Parts:
        if measurement.predicted is not None:  # what only GPUs have: times that nobody measured
            raise ConfigError(
                "this choice measures on GPUs, and the target is a CPU",
                where="measurement",
                why=f"the target is {self.target.name}",
                todo="Choose measurement=local, or a target that is a GPU, such as target=a100",
            )
        return Parts(build_kernel, {"level": self._level}, measurement.workers or self.target.cores, measurement.runner)

    def refuse_too_large(self, graph: Graph) -> None:
        pass

    def unfinished(self, program: Program) -> str | None:
        whole = [block.name for block in blocks(program) if block.combine is not None and block.init is not None]
        return f"no rule split the initial value off the reduction {whole[0]}" if whole else None

    def save(self, plan: ModulePlan[Any], path: Path) -> Path:
        return save(link(plan), path)

    def open(self, path: Path) -> Session:
        # our thread is not pinned: the threads that peers make would inherit its one core
        return Session(path, pin=False)

    def verified(
        self, model: Graph, parts: Partition, module: Runnable, feeds: Feeds, step: Step, *, least: bool = False
    ) -> Report:
        return verified_by_running(self._config, model, module, feeds, step, least=least)

    def latency(self, module: Runnable, feeds: Feeds, alone: float, folder: Path) -> Latency:
        latency = Latency.of(time_runs(lambda: module.run(None, feeds)))
        if isinstance(module, Session):
            module.chrome_trace(folder / "trace.json", feeds)
        if latency.median > BUSY * alone * 1e3 + 0.05:
            log.warning(
                "a call takes %.3f ms, its kernels alone %.3f ms: is something else running on this machine?",
                latency.median, alone * 1e3,
            )  # fmt: skip
        return latency

    def listings(self, program: Program, kernel: BuiltKernel, said: str) -> Mapping[str, str]:
        text = emit_kernel(program, self.target).text
        code = assembly(text, self.target, level=self._level)
        return {".ll": f"; {said}\n{text}", ".s": f"# {said}\n{code}"}

    def facts_of(self, program: Program, kernel: BuiltKernel) -> KernelFacts | None:
        return None

    def facts(self) -> MachineFacts:
        target = self.target
        return MachineFacts(
            cpu=target.name, cores=target.cores, vector_bits=target.vector_bits, peak_gflops=self.peak.gflops,
            bandwidth_gbs=self.peak.bandwidth_gbs,
        )  # fmt: skip

    def versions(self) -> dict[str, str]:
        return {"llvmlite": metadata.version("llvmlite")}


def _with_limits(target: Target) -> tuple[Target, Peak]:
    """The target, with the limits that were measured just now: the model's clock is the one that sustains them."""
    here = detect_host()
    refuse_target(target)
    if (target.triple, target.cpu, target.features) != (here.triple, here.cpu, here.features):
        refuse_unknown(target)
    peak = measure_peak(target)
    clock = target.clock_ghz * peak.gflops / target.peak_gflops()
    return replace(target, clock_ghz=clock, bandwidth_gbs=peak.bandwidth_gbs), peak
