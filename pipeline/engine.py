"""The run: the stages in order, from a checked configuration to a verified module and its report."""

from __future__ import annotations

import json
import logging
import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import numpy as np

from pipeline.codegen.assemble import assemble
from pipeline.codegen.kernel import Kernel
from pipeline.codegen.llvm.build import build_kernel
from pipeline.codegen.llvm.link import link
from pipeline.config import Config
from pipeline.errors import PipelineError
from pipeline.frontend.workloads.inputs import inputs
from pipeline.ir.graph import Graph
from pipeline.ir.target import Target
from pipeline.measurement.host import fingerprint
from pipeline.measurement.peak import Peak, measure_peak
from pipeline.measurement.task_reference import task_reference
from pipeline.registry import Component
from pipeline.runtime.artifact import save
from pipeline.runtime.session import Session
from pipeline.schedule.rule import Rule
from pipeline.search.tuner import Budget, Report, Tuner, make_state, stream
from pipeline.space.generate import generate
from pipeline.space.lower import lower
from pipeline.space.partition import Partition, partition
from pipeline.store.store import Store
from pipeline.verification.module_gate import Report as Verification
from pipeline.verification.module_gate import verify_module

log = logging.getLogger("pipeline")

COMPILER_VERSION = "muschedule 0.1.0 llvmlite " + metadata.version("llvmlite")


@dataclass(frozen=True, slots=True)
class Summary:
    """How a run ended. `interrupted` is a complete result too: the best so far, verified."""

    status: Literal["complete", "interrupted", "failed"]
    verified: bool


def run(config: Config, run_folder: Path) -> Summary:
    """Runs all stages; what it makes lies in `run_folder`."""
    return Run(config, run_folder).all()


class Run:
    """One run, stage by stage."""

    def __init__(self, config: Config, folder: Path) -> None:
        self.config, self.folder = config, folder

    def all(self) -> Summary:
        workload = self._build(self.config.workload, "workload")
        graph = workload.build(self.config.seed)
        target, peak = self._target()
        graph = self._rewritten(graph)
        parts = partition(graph)
        log.info("%s: %d operations in %d tasks, %d kernels", workload.describe(), len(graph.nodes),
                 len(parts.tasks), len(parts.instances))  # fmt: skip
        with Store(self.config.store.url) as store:
            tuner, kernels = self._tuned(parts, target, store)
        plan = assemble(graph, parts, kernels, target, {"workload": workload.describe(), "seed": self.config.seed})
        artifact = save(link(plan), self.folder / "artifact")
        with Session(artifact) as session:
            verification = self._verified(graph, session)
            latency = self._timed(graph, session)
        summary = self._summary(workload.describe(), parts, target, peak, tuner, verification, latency, artifact)
        self._write(summary)
        status: Literal["complete", "interrupted", "failed"] = "interrupted" if tuner.interrupted else "complete"
        return Summary(status if verification.verified else "failed", verification.verified)

    # ------------------------------------------------------------------ stages

    def _target(self) -> tuple[Target, Peak]:
        """The target, with the limits that were measured just now: the model's clock is the one that sustains them."""
        target = self.config.target.resolve()
        peak = measure_peak(target)
        clock = target.clock_ghz * peak.gflops / target.peak_gflops()
        return replace(target, clock_ghz=clock, bandwidth_gbs=peak.bandwidth_gbs), peak

    def _rewritten(self, graph: Graph) -> Graph:
        for number, component in enumerate(self.config.rules.graph):
            graph = self._build(component, f"rules.graph[{number}]").apply(graph)
        return graph

    def _tuned(self, parts: Partition, target: Target, store: Store) -> tuple[Tuner, list[Kernel]]:
        """A kernel for each task: the best that was found within the budget."""
        config = self.config
        rules: list[Rule] = [
            self._build(component, f"rules.schedule[{number}]")
            for number, component in enumerate((*config.rules.schedule, *config.rules.extra))
        ]
        states = []
        for number, task in enumerate(parts.tasks):
            sketches = generate(lower(task.graph, task.name, task.constants), rules, target)
            states.append(make_state(task, parts.weight(number), sketches, target))
        search = config.search
        budget = Budget(search.trials, search.seconds, search.batch, search.trials_per_task, search.patience,
                        search.min_gain, search.candidates, config.measurement.finalists, config.measurement.rounds)  # fmt: skip
        workers = config.measurement.workers or target.cores
        builder = self._build(config.measurement.builder, "measurement.builder", function=build_kernel, target=target,
                              workers=workers)  # fmt: skip
        runner = self._build(config.measurement.runner, "measurement.runner", target=target)
        verification = config.verification
        with builder, runner:
            tuner = Tuner(
                states, builder=builder, runner=runner, store=store,
                strategy=self._build(search.strategy, "search.strategy"),
                cost=self._build(config.cost_model, "cost_model"), budget=budget,
                reference=lambda task: task_reference(
                    task, stream(config.seed, f"inputs/{task.key}"), rounds=verification.random_inputs,
                    hostile=verification.hostile, factor=verification.tolerance_factor),
                target_key=fingerprint(config.target.resolve()), version=COMPILER_VERSION, seed=config.seed,
                report=_logged,
            )  # fmt: skip
            if config.store.resume:
                tuner.resume()
            tuner.run()
            tuner.ensure()
            tuner.finish()
            kernels = []
            for state in tuner.states:
                kernel = tuner.kernel(state)
                if kernel is None:
                    raise PipelineError(
                        "no candidate of a task works", where=state.task.name,
                        why="; ".join(state.details[-3:]) or "none was proposed",
                        todo="This is a defect of the code generator or of a rule: please report it with pipeline.log",
                    )  # fmt: skip
                kernels.append(kernel)
        return tuner, kernels

    def _verified(self, graph: Graph, session: Session) -> Verification:
        """The whole module against the graph in float64."""
        settings = self.config.verification
        return verify_module(
            graph, lambda feeds: session.run(None, feeds), seed=self.config.seed, rounds=settings.random_inputs,
            hostile=settings.hostile,
        )  # fmt: skip

    def _timed(self, graph: Graph, session: Session) -> list[float]:
        """Milliseconds of single runs."""
        feeds = inputs(graph, self.config.seed)
        return time_runs(lambda: session.run(None, feeds))

    # ------------------------------------------------------------------ report

    def _summary(
        self, workload: str, parts: Partition, target: Target, peak: Peak, tuner: Tuner, verification: Verification,
        latency: Sequence[float], artifact: Path,
    ) -> dict[str, Any]:  # fmt: skip
        failed: Counter[str] = Counter()
        for state in tuner.states:
            failed.update(state.failures)
        error = verification.max_error
        untuned = [s.weight * (s.first_seconds or s.best) for s in tuner.states]
        return {
            "workload": workload, "target": target.name, "seed": self.config.seed,
            "status": "interrupted" if tuner.interrupted else "complete", "verified": verification.verified,
            "max_error": {"absolute": error.absolute, "relative": error.relative, "tolerance": error.tolerance},
            "latency_ms": {"median": statistics.median(latency), "min": min(latency),
                           "p90": float(np.percentile(latency, 90)), "samples": list(latency)},
            "predicted": False, "untuned_ms": sum(untuned) * 1e3, "tuning_seconds": tuner.elapsed(),
            "trials": tuner.trials, "invalid_candidates": 0, "failed_candidates": dict(failed),
            "tasks": [
                {"name": s.task.name, "weight": s.weight, "flops": s.task.flops, "bytes": s.task.traffic,
                 "latency_ms": s.best * 1e3, "roofline_ms": s.roofline * 1e3, "sketches": len(s.traces),
                 "trials": s.trials + s.resumed, "best_at_trial": s.best_at}
                for s in tuner.states
            ],
            "peers": {},
            "machine": {"cpu": target.name, "cores": target.cores, "vector_bits": target.vector_bits,
                        "peak_gflops": peak.gflops, "bandwidth_gbs": peak.bandwidth_gbs},
            "versions": {"muschedule": "0.1.0", "llvmlite": metadata.version("llvmlite"), "numpy": np.__version__},
            "artifact": str(artifact),
        }  # fmt: skip

    def _write(self, summary: Mapping[str, Any]) -> None:
        path = self.folder / "summary.json"
        path.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
        for task in summary["tasks"]:
            log.info("  %-60s x%-3d %9.4f ms  %5.1f %% of roofline  %d trials", task["name"][:60], task["weight"],
                     task["latency_ms"], 100 * task["roofline_ms"] / task["latency_ms"], task["trials"])  # fmt: skip
        log.info("verified %s, %.4f ms (untuned %.4f ms), %d trials in %.1f s, failed %s", summary["verified"],
                 summary["latency_ms"]["median"], summary["untuned_ms"], summary["trials"],
                 summary["tuning_seconds"], summary["failed_candidates"] or "none")  # fmt: skip

    def _build(self, component: Component, where: str, **given: Any) -> Any:
        return self.config.plugins.build(object, component, where, **given)


def time_runs(call: Callable[[], object], seconds: float = 1.0, least: int = 10, most: int = 400) -> list[float]:
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


def _logged(report: Report) -> None:
    total = f"{report.total * 1e3:.3f} ms" if report.total is not None else "?"
    log.info("%4d trials %6.1f s  best %s  (%s %.4f ms)", report.trials, report.seconds, total, report.task[:50],
             report.best * 1e3)  # fmt: skip
