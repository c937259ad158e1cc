"""The machine that this program runs on: LLVM's code, measured by a clock, checked by running it."""

from __future__ import annotations

import contextlib
import functools
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.codegen.llvm.build import build_kernel, emit_kernel
from pipeline.codegen.llvm.compile import assembly
from pipeline.codegen.llvm.known_target import refuse_unknown
from pipeline.codegen.llvm.link import link
from pipeline.codegen.module import ModulePlan
from pipeline.config import Config, MeasurementSettings
from pipeline.ir.graph import Graph
from pipeline.ir.program import Program
from pipeline.ir.target import Target
from pipeline.machine.machine import VERSION, Feeds, Parts, Runnable
from pipeline.measurement.host import detect_host, fingerprint
from pipeline.measurement.peak import Peak, measure_peak
from pipeline.report.compare import in_turns
from pipeline.report.summary import KernelFacts, Latency
from pipeline.report.summary import Machine as MachineFacts
from pipeline.runtime.artifact import save
from pipeline.runtime.cpu_features import refuse_target
from pipeline.runtime.session import Session
from pipeline.space.partition import Partition
from pipeline.space.task import flops
from pipeline.verification.module_gate import Report, verify_module

log = logging.getLogger("pipeline")

BUSY = 1.5  # a whole call may take so many times its kernels before it is worth a word
SMALL_MODEL = 2e8  # operations: below it every kind of hostile feeds is tried on the whole module
LEVEL = 3  # of the code generator, unless the configuration says otherwise
COMPILER = f"muschedule {VERSION} llvmlite {metadata.version('llvmlite')}"


class CpuMachine:
    """See `Machine`."""

    predicted = False

    def __init__(self, config: Config) -> None:
        self._config = config
        self._level = config.codegen.level
        # records of another level are those of another compiler
        self.compiler = COMPILER if self._level == LEVEL else f"{COMPILER} level {self._level}"
        target = config.target.resolve()
        self.fingerprint = fingerprint(target)
        self.target, self.peak = _with_limits(target)
        self.threads = target.cores

    def parts(self, measurement: MeasurementSettings) -> Parts:
        return Parts(build_kernel, {"level": self._level}, measurement.workers or self.target.cores, measurement.runner)

    def save(self, plan: ModulePlan[Any], path: Path) -> Path:
        return save(link(plan), path)

    def open(self, path: Path) -> Session:
        # our thread is not pinned: the threads that peers make would inherit its one core
        return Session(path, pin=False)

    def faster(self, artifacts: Mapping[float, Path], feeds: Feeds) -> float:
        return faster(artifacts, feeds)

    def verified(self, model: Graph, graph: Graph, parts: Partition, module: Runnable, feeds: Feeds) -> Report:
        settings = self._config.verification
        work = flops(model)
        # The bounds cost several evaluations in float64: a large model gets the kinds of trouble that models meet.
        hostile = () if not settings.hostile else None if work < SMALL_MODEL else ("large", "NaN")
        return verify_module(
            model, lambda given: module.run(None, given), seed=self._config.seed, usual=(dict(feeds),),
            rounds=settings.random_inputs if work < SMALL_MODEL else 1, hostile=hostile,
        )  # fmt: skip

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

    def listings(self, program: Program, said: str) -> Mapping[str, str]:
        text = emit_kernel(program, self.target).text
        code = assembly(text, self.target, level=self._level)
        return {".ll": f"; {said}\n{text}", ".s": f"# {said}\n{code}"}

    def facts_of(self, program: Program) -> KernelFacts | None:
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


def faster(artifacts: Mapping[float, Path], feeds: Feeds, seconds: float = 2.0) -> float:
    """Of modules that compute the same, the one whose calls, made in turns, take less time in the median."""
    with contextlib.ExitStack() as stack:
        sessions = {name: stack.enter_context(Session(path)) for name, path in artifacts.items()}
        runs = {str(name): functools.partial(session.run, None) for name, session in sessions.items()}
        samples = in_turns(runs, feeds, seconds / len(runs))
    return min(artifacts, key=lambda name: float(np.median(samples[str(name)])))


def time_runs(call: Callable[[], object], seconds: float = 1.0, least: int = 10, most: int = 1000) -> list[float]:
    """Milliseconds of each of many calls, after a warm-up."""
    for _ in range(3):
        call()
    samples: list[float] = []
    end = time.perf_counter() + seconds
    while len(samples) < least or (time.perf_counter() < end and len(samples) < most):
        start = time.perf_counter()
        call()
        samples.append((time.perf_counter() - start) * 1e3)
    return samples
