"""The run: the stages in order, from a checked configuration to a verified module and its report."""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import platform
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import numpy as np

from pipeline.codegen.assemble import assemble
from pipeline.codegen.kernel import Kernel
from pipeline.codegen.llvm.build import build_kernel, emit_kernel
from pipeline.codegen.llvm.compile import assembly
from pipeline.codegen.llvm.known_target import refuse_unknown
from pipeline.codegen.llvm.link import link
from pipeline.config import Config
from pipeline.errors import CheckError, PipelineError, UserError
from pipeline.frontend.workloads.inputs import inputs
from pipeline.frontend.workloads.workload import Workload
from pipeline.ir.graph import Graph, Input
from pipeline.ir.graph_check import check
from pipeline.ir.graph_rule import GraphRule
from pipeline.ir.target import Target
from pipeline.measurement.host import detect_host, fingerprint, memory_of_host
from pipeline.measurement.peak import Peak, measure_peak
from pipeline.measurement.protocol import Builder, Runner
from pipeline.measurement.task_reference import task_reference
from pipeline.registry import Component
from pipeline.report.compare import compare, difference, in_turns
from pipeline.report.console import Progress, summary_lines
from pipeline.report.mugraph_page import page
from pipeline.report.peers.onnxruntime import OnnxRuntime
from pipeline.report.peers.peer import Peer, PeerModel
from pipeline.report.summary import Latency, Machine, MaxError, PeerSummary, Summary, TaskSummary, write_summary
from pipeline.report.superopt_report import outcome_lines, superopt_summary
from pipeline.runtime.artifact import save
from pipeline.runtime.cpu_features import refuse_target
from pipeline.runtime.session import Session
from pipeline.schedule.rule import Rule
from pipeline.schedule.sketch import Sketch
from pipeline.search.contest import Contest, contest
from pipeline.search.cost_model import CostModel
from pipeline.search.strategy import Strategy
from pipeline.search.tuner import Budget, Report, TaskState, Tuner, stream
from pipeline.space.generate import generate
from pipeline.space.lower import lower
from pipeline.space.partition import Partition, partition
from pipeline.space.task import flops, traffic
from pipeline.store.store import Store
from pipeline.superopt.enumeration.searching import Algebra, Searching
from pipeline.superopt.stage import Effort, Outcome, look_for_alternatives
from pipeline.superopt.subprograms import Limits
from pipeline.verification.module_gate import Report as Verification
from pipeline.verification.module_gate import verify_module

log = logging.getLogger("pipeline")

VERSION = "0.1.0"
FAVOUR = 0.75  # what an alternative's time may count where modules with and without it are compared
BUSY = 1.5  # a whole call may take so many times its kernels before it is worth a word
SMALL_MODEL = 2e8  # operations: below it every kind of hostile feeds is tried on the whole module
LEVEL = 3  # of the code generator, unless the configuration says otherwise
COMPILER = f"muschedule {VERSION} llvmlite {metadata.version('llvmlite')}"


def run(config: Config, run_folder: Path) -> Summary:
    """Runs all stages; what it makes lies in `run_folder`. An interrupted run has a complete result too."""
    return Run(config, run_folder).all()


class Run:
    """One run, stage by stage."""

    def __init__(self, config: Config, folder: Path) -> None:
        self.config, self.folder = config, folder
        level = config.codegen.level
        # records of another level are those of another compiler
        self.compiler = COMPILER if level == LEVEL else f"{COMPILER} level {level}"

    def all(self) -> Summary:
        workload: Workload = self._part(Workload, self.config.workload, "workload")
        model = workload.build(self.config.seed)
        refuse_too_large(model, memory_of_host())
        target, peak = self._target()
        graph = self._rewritten(model)
        ordinary = partition(graph)
        log.info(
            "%s: %d operations, %d tasks, %d kernels",
            workload.describe(), len(graph.nodes), len(ordinary.tasks), len(ordinary.instances),
        )  # fmt: skip
        rules = self._rules()
        with Store(self.config.store.url) as store:
            outcome = self._superoptimized(graph, ordinary, target, rules, store)
            both = contest(graph, ordinary, self._sketches(ordinary, target, rules), outcome.alternatives, target)
            tuner, modules = self._tuned(both, target, store, outcome.interrupted)
        provenance = {"workload": workload.describe(), "seed": self.config.seed, "compiler": self.compiler}
        feeds = inputs(model, self.config.seed)
        artifact = self._fastest(graph, both, modules, target, provenance, feeds)
        with Session(artifact) as session:
            memory = session.artifact.memory
            log.info(
                "memory: %.1f MiB for intermediates, at least %.1f MiB are alive at once",
                memory.arena_bytes / 2**20, memory.lower_bound / 2**20,
            )  # fmt: skip
            verification = self._verified(model, session, feeds)
            if self.config.verification.vote:
                self._vote(model, session, feeds)
            latency = time_runs(lambda: session.run(None, feeds))
            session.chrome_trace(self.folder / "trace.json", feeds)
        alone = tuner.total * 1e3
        if Latency.of(list(latency)).median > BUSY * alone + 0.05:
            log.warning(
                "a call takes %.3f ms, its kernels alone %.3f ms: is something else running on this machine?",
                Latency.of(list(latency)).median, alone,
            )  # fmt: skip
        peers = self._compared(model, artifact, feeds)
        summary = self._summary(
            workload, model, target, peak, tuner, both, outcome, verification, latency, peers, artifact
        )
        write_summary(summary, self.folder / "summary.json")
        if summary.superopt is not None and summary.superopt.subprograms:
            text = page(summary.workload, summary.superopt)
            (self.folder / "mugraphs.html").write_text(text, encoding="utf-8")
        if self.config.report.console:
            for line in summary_lines(summary):
                log.info("%s", line)
        return summary

    # ------------------------------------------------------------------ stages

    def _target(self) -> tuple[Target, Peak]:
        """The target, with the limits that were measured just now: the model's clock is the one that sustains them."""
        target, here = self.config.target.resolve(), detect_host()
        refuse_target(target)
        if (target.triple, target.cpu, target.features) != (here.triple, here.cpu, here.features):
            refuse_unknown(target)
        peak = measure_peak(target)
        clock = target.clock_ghz * peak.gflops / target.peak_gflops()
        return replace(target, clock_ghz=clock, bandwidth_gbs=peak.bandwidth_gbs), peak

    def _rewritten(self, graph: Graph) -> Graph:
        for number, component in enumerate(self.config.rules.graph):
            rule: GraphRule = self._part(GraphRule, component, f"rules.graph[{number}]")
            graph = rewritten(rule, graph, f"rules.graph[{number}]")
        return graph

    def _rules(self) -> list[Rule]:
        config = self.config
        return [
            self._part(Rule, component, f"rules.schedule[{number}]")
            for number, component in enumerate((*config.rules.schedule, *config.rules.extra))
        ]

    def _sketches(self, parts: Partition, target: Target, rules: Sequence[Rule]) -> list[tuple[Sketch, ...]]:
        """Of each task."""
        return [generate(lower(task.graph, task.name, task.constants), rules, target) for task in parts.tasks]

    def _superoptimized(
        self, graph: Graph, parts: Partition, target: Target, rules: Sequence[Rule], store: Store
    ) -> Outcome:
        """Fused kernels for what several tasks do, proven and ready to be tuned."""
        settings = self.config.superopt
        if not settings.enabled:
            return Outcome()
        search = Searching.of(
            self._part(Algebra, settings.algebra, "superopt.algebra"), target, seed=self.config.seed,
            workers=settings.workers or target.cores, tests=settings.tests, patience=settings.patience,
        )  # fmt: skip
        limits = Limits(settings.anchors, settings.nodes)
        effort = Effort(settings.seconds, settings.subprograms, settings.graphs, limits, search.version)
        with _progress(None, settings.seconds, "subprograms") as progress:

            def report(done: int, count: int, name: str) -> None:
                if self.config.report.progress:
                    progress.update(done, task=f"of {count}, {name[:40]}")

            outcome = look_for_alternatives(graph, parts, target, rules, effort, search, store, report)
        for line in outcome_lines(outcome):
            log.info("%s", line)
        return outcome

    def _tuned(
        self, both: Contest, target: Target, store: Store, interrupted: bool
    ) -> tuple[Tuner, dict[float, list[Kernel]]]:
        """A kernel for each task of the module, the best that was found within the budget; and for that of another
        choice, in favour of alternatives, where it is another one."""
        config, search, verification = self.config, self.config.search, self.config.verification
        budget = Budget(
            search.trials, search.seconds, search.batch, search.trials_per_task, search.patience, search.min_gain,
            search.candidates, config.measurement.finalists, config.measurement.rounds,
        )  # fmt: skip
        builder = self._part(
            Builder, config.measurement.builder, "measurement.builder", function=build_kernel, target=target,
            workers=config.measurement.workers or target.cores, options={"level": config.codegen.level},
        )  # fmt: skip
        runner = self._part(Runner, config.measurement.runner, "measurement.runner", target=target)
        with builder, runner, _progress(search.trials, search.seconds) as progress:
            tuner = Tuner(
                both.states, builder=builder, runner=runner, store=store,
                strategy=self._part(Strategy, search.strategy, "search.strategy"),
                cost=self._part(CostModel, config.cost_model, "cost_model", seed=config.seed), budget=budget,
                reference=lambda task: task_reference(
                    task, stream(config.seed, f"inputs/{task.key}"), rounds=verification.random_inputs,
                    hostile=verification.hostile, factor=verification.tolerance_factor),
                target_key=fingerprint(config.target.resolve()), version=self.compiler, seed=config.seed,
                report=_shown(progress) if config.report.progress else _silent, whole=both.seconds,
            )  # fmt: skip
            if config.store.resume:
                tuner.resume()
            if interrupted:
                tuner.interrupted = True
            else:
                tuner.run()
            tuner.ensure()
            tuner.finish()
            modules: dict[float, list[Kernel]] = {}
            for favour in (1.0, FAVOUR):
                both.favour = favour
                both.confirm(stream(config.seed, "full extents"))
                _, states = both.decided()
                kernels = [self._kernel(tuner, state) for state in states]
                if kernels not in modules.values():
                    modules[favour] = kernels
        return tuner, modules

    def _fastest(
        self, graph: Graph, both: Contest, modules: Mapping[float, list[Kernel]], target: Target,
        provenance: dict[str, Any], feeds: Mapping[str, np.ndarray],
    ) -> Path:  # fmt: skip
        """The module. Where fused kernels are about as fast as the tasks that they replace, both are made and called in
        turns: alone, a task finds in its caches what in a module comes from memory."""
        made: dict[float, Path] = {}
        for favour, kernels in modules.items():
            both.favour = favour
            parts, _ = both.decided()
            name = "artifact" if not made else "artifact_fused"
            made[favour] = save(link(assemble(graph, parts, kernels, target, provenance)), self.folder / name)
        best = next(iter(made))
        if len(made) > 1:
            try:
                best = faster(made, feeds)
            except KeyboardInterrupt:
                log.warning(
                    "interrupted: the modules are not compared, and each kernel is the one that is faster alone"
                )
        for favour, path in made.items():
            if favour != best:
                shutil.rmtree(path)
        both.favour = best
        _, states = both.decided()
        if self.config.codegen.keep:
            self._keep(states, target)
        return made[best] if made[best].name == "artifact" else made[best].rename(self.folder / "artifact")

    def _kernel(self, tuner: Tuner, state: TaskState) -> Kernel:
        kernel = tuner.kernel(state)
        if kernel is None:
            raise PipelineError(
                "no candidate of a task works",
                where=state.task.name,
                why="; ".join(dict.fromkeys(_last_line(detail) for detail in state.details[-9:]))
                or "none was proposed",
                todo="This is a defect of the code generator or of a rule: please report it with pipeline.log",
            )
        return kernel

    def _keep(self, states: Sequence[TaskState], target: Target) -> None:
        """The IR and the assembly of the chosen kernels, for people."""
        folder = self.folder / "kernels"
        folder.mkdir(exist_ok=True)
        for number, state in enumerate(states):
            best = state.history.best()
            if best is None:
                continue
            program = state.history.spaces[best.candidate.sketch].program(np.array(best.candidate.row, np.int64))
            text = emit_kernel(program, target).text
            stem = f"{number:02d}_{state.task.name[:60]}"
            space = state.history.spaces[best.candidate.sketch].space
            values = ", ".join(f"{k}={v}" for k, v in zip(space.columns, best.candidate.row, strict=True))
            said = f"{state.task.name}: {(best.seconds or 0.0) * 1e3:.4f} ms, {values or 'no parameters'}"
            (folder / f"{stem}.ll").write_text(f"; {said}\n{text}", encoding="utf-8")
            code = assembly(text, target, level=self.config.codegen.level)
            (folder / f"{stem}.s").write_text(f"# {said}\n{code}", encoding="utf-8")

    def _verified(self, graph: Graph, session: Session, usual: dict[str, np.ndarray]) -> Verification:
        """The whole module against the graph in float64, as it was before our rewriting."""
        settings = self.config.verification
        work = flops(graph)
        # The bounds cost several evaluations in float64: a large model gets the kinds of trouble that models meet.
        hostile = () if not settings.hostile else None if work < SMALL_MODEL else ("large", "NaN")
        return verify_module(
            graph, lambda feeds: session.run(None, feeds), seed=self.config.seed, usual=(usual,),
            rounds=settings.random_inputs if work < SMALL_MODEL else 1, hostile=hostile,
        )  # fmt: skip

    def _vote(self, graph: Graph, session: Session, feeds: Mapping[str, np.ndarray]) -> None:
        """ONNX Runtime's opinion, where it is installed. It is no oracle: what it says is told and decides nothing."""
        voter = OnnxRuntime()
        if voter.available() is not None:
            return
        path = self.config.workload.arguments.get("path")
        names = [name for name, _ in graph.outputs]
        try:
            run = voter.prepare(PeerModel(graph, feeds, Path(path) if path else None), 1)
            theirs = {name: np.array(array) for name, array in run(feeds).items()}
        except Exception as error:  # foreign code on a model that it may not support
            log.info("onnxruntime has no vote: %s", str(error).strip().partition("\n")[0])
            return
        worst, where = difference(theirs, dict(zip(names, session.run(None, feeds), strict=True)), None)
        if worst <= 1.0:
            log.info("onnxruntime agrees (largest difference %.2g of a thousandth of the largest value)", worst)
        else:
            log.warning("onnxruntime disagrees: %s. float64 agrees with us; please compare", where)

    def _compared(self, graph: Graph, artifact: Path, feeds: Mapping[str, np.ndarray]) -> dict[str, PeerSummary]:
        """Other runtimes on the same model and inputs, timed in turns with ours."""
        settings = self.config.compare
        if not settings.peers:
            return {}
        peers: list[Peer] = [
            self._part(Peer, settings.plugins[name], f"compare.plugins.{name}") for name in settings.peers
        ]
        path = self.config.workload.arguments.get("path")
        model = PeerModel(graph, feeds, Path(path) if path else None)
        names = [name for name, _ in graph.outputs]
        # our thread is not pinned here: the threads that the peers make would inherit its one core
        with Session(artifact, pin=False) as session:
            found = compare(
                lambda given: dict(zip(names, session.run(None, given), strict=True)),
                peers, model, self.config.target.resolve().cores, seconds=settings.seconds,
            )  # fmt: skip
        return {
            name: PeerSummary(median_ms=r.median_ms, ratio=r.ratio, status=r.status, reason=r.reason)
            for name, r in found.peers.items()
        }

    # ------------------------------------------------------------------ report

    def _summary(
        self, workload: Workload, model: Graph, target: Target, peak: Peak, tuner: Tuner, both: Contest,
        outcome: Outcome, verification: Verification, latency: Sequence[float], peers: dict[str, PeerSummary],
        artifact: Path,
    ) -> Summary:  # fmt: skip
        failed: Counter[str] = Counter()
        for state in tuner.states:
            failed.update(state.failures)
        error = verification.max_error
        measured = Latency.of(list(latency))
        _, used = both.decided()
        status: Literal["complete", "interrupted"] = "interrupted" if tuner.interrupted else "complete"
        return Summary(
            workload=workload.describe(), target=target.name, seed=self.config.seed,
            status=status if verification.verified else "failed", verified=verification.verified,
            max_error=MaxError(absolute=error.absolute, relative=error.relative, tolerance=error.tolerance),
            latency_ms=measured, predicted=False,
            # what the module would take with the first kernel of each task
            untuned_ms=measured.median + (tuner.untuned - tuner.total) * 1e3,
            roofline_ms=max(flops(model) / peak.gflops, traffic(model) / peak.bandwidth_gbs) / 1e6,
            tuning_seconds=tuner.tuning_seconds, trials=tuner.trials, invalid_candidates=tuner.invalid,
            failed_candidates=dict(failed),
            tasks=tuple(
                TaskSummary(
                    name=s.task.name, weight=s.weight, flops=s.task.flops, bytes=s.task.traffic,
                    latency_ms=s.best * 1e3, roofline_ms=s.roofline * 1e3, sketches=len(s.traces),
                    trials=s.trials + s.resumed, best_at_trial=s.best_at,
                ) for s in used
            ),
            superopt=superopt_summary(outcome, both) if self.config.superopt.enabled else None,
            peers=peers,
            machine=Machine(cpu=target.name, cores=target.cores, vector_bits=target.vector_bits,
                            peak_gflops=peak.gflops, bandwidth_gbs=peak.bandwidth_gbs),
            versions={"muschedule": VERSION, "python": platform.python_version(), "numpy": np.__version__,
                      "llvmlite": metadata.version("llvmlite")},
            artifact=str(artifact),
        )  # fmt: skip

    def _part(self, role: type[Any], component: Component, where: str, **given: Any) -> Any:
        return self.config.plugins.build(role, component, where, **given)


def refuse_too_large(model: Graph, memory: int) -> None:
    """Raises a `UserError` where the values that a check must hold at once, in float64, exceed the memory in bytes."""
    ends = {number for _, number in model.outputs}
    sizes = [math.prod(node.type.shape) for node in model.nodes]
    kept = sum(size for n, size in enumerate(sizes) if n in ends or isinstance(model.nodes[n].op, Input))
    needed = 8 * max([kept, *sizes])
    if needed > memory:
        raise UserError(
            "the model is too large for this machine",
            where="workload",
            why=f"its inputs and outputs, or one value of it, take {needed / 2**30:,.1f} GiB in float64, "
            f"and this machine has {memory / 2**30:,.1f} GiB",
            todo="Choose smaller sizes",
        )


def rewritten(rule: GraphRule, graph: Graph, where: str) -> Graph:
    """The graph after one rule; whatever goes wrong in it, a user's rule say, is told with its name."""
    name = f"{type(rule).__module__}.{type(rule).__qualname__}"
    try:
        made = rule.apply(graph)
        if not isinstance(made, Graph):
            raise TypeError(f"it gave {made!r:.60} where a Graph was expected")
        check(made)
    except Exception as error:
        said = f"{type(error).__name__}: {str(error).rstrip('.') or 'no message'}"
        todo = "Correct the rule, or take it out of the configuration"
        raise CheckError(f"the rule {name} does not work on this model", where=where, why=said, todo=todo) from error
    return made


def faster(artifacts: Mapping[float, Path], feeds: Mapping[str, np.ndarray], seconds: float = 2.0) -> float:
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


def _progress(trials: int | None, seconds: float | None, unit: str = "trials") -> Progress:
    columns = shutil.get_terminal_size((100, 24)).columns
    return Progress(sys.stderr, trials=trials, seconds=seconds, columns=columns, unit=unit)


def _shown(progress: Progress) -> Callable[[Report], None]:
    def show(report: Report) -> None:
        progress.update(
            report.trials,
            best_ms=None if report.total is None else report.total * 1e3,
            untuned_ms=None if report.untuned is None else report.untuned * 1e3,
            task=report.task[:40],
        )

    return show


def _silent(report: Report) -> None:
    del report


def _last_line(text: str) -> str:
    """Of a traceback, what it says; the whole of it is in the store."""
    kind, colon, rest = text.partition(": ")
    lines = rest.strip().splitlines()
    return f"{kind}{colon}{lines[-1].strip()}" if lines else text
