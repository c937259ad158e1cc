"""The run: the stages in order, from a checked configuration to a verified module and its report."""

from __future__ import annotations

import logging
import math
import shutil
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from pipeline.codegen.assemble import assemble
from pipeline.codegen.cuda.driver import why_absent
from pipeline.config import Config
from pipeline.errors import CheckError, ConfigError, PipelineError, UserError, counted, listed
from pipeline.frontend.precision import in_precision
from pipeline.frontend.workloads.inputs import inputs
from pipeline.frontend.workloads.workload import Workload
from pipeline.ir.graph import Graph, Input
from pipeline.ir.graph_check import check
from pipeline.ir.graph_rule import GraphRule
from pipeline.ir.graph_types import TOO_LARGE
from pipeline.machine.contestant import contestant
from pipeline.machine.cpu import CpuMachine
from pipeline.machine.cuda_measured import MeasuredCuda
from pipeline.machine.cuda_predicted import PredictedCuda
from pipeline.machine.machine import VERSION, Feeds, Machine
from pipeline.machine.module_choice import fastest_module
from pipeline.measurement.host import memory_of_host
from pipeline.measurement.protocol import Builder, Runner
from pipeline.measurement.task_reference import task_reference
from pipeline.registry import Component
from pipeline.report.compare import compare
from pipeline.report.console import Progress, summary_lines
from pipeline.report.mugraph_page import page
from pipeline.report.peers.peer import Peer, PeerModel
from pipeline.report.run_summary import Finished, run_summary
from pipeline.report.summary import KernelFacts, PeerSummary, Summary, write_summary
from pipeline.report.superopt_report import outcome_lines
from pipeline.report.vote import vote
from pipeline.schedule.rule import Rule
from pipeline.schedule.sketch import Sketch
from pipeline.search.contest import Contest, contest
from pipeline.search.cost_model import CostModel
from pipeline.search.strategy import Strategy
from pipeline.search.tuner import Budget, Chosen, Report, TaskState, Tuner, stream
from pipeline.space.generate import generate
from pipeline.space.lower import lower
from pipeline.space.partition import Partition, partition
from pipeline.store.store import Store
from pipeline.superopt.enumeration.searching import Algebra, Searching
from pipeline.superopt.rewrites import Change, Rewrite, rewritten_where_faster
from pipeline.superopt.stage import Effort, Outcome, look_for_alternatives
from pipeline.superopt.subprograms import Limits

log = logging.getLogger("pipeline")
T = TypeVar("T")
U = TypeVar("U")


def run(config: Config, run_folder: Path) -> Summary:
    """Runs all stages; what it makes lies in `run_folder`. An interrupted run has a complete result too."""
    return Run(config, run_folder).all()


class Run:
    """One run, stage by stage."""

    def __init__(self, config: Config, folder: Path) -> None:
        self.config, self.folder = config, folder

    def all(self) -> Summary:
        workload: Workload = self._part(Workload, self.config.workload, "workload")
        model = in_precision(self._built(workload), self.config.precision)
        described = workload.describe()
        if self.config.precision != "model":
            described += f", products of {self.config.precision}"
        refuse_too_large(model, memory_of_host())
        machine = machine_of(self.config)
        graph, rewrites = self._rewritten(model, machine)
        machine.refuse_too_large(graph)
        ordinary = partition(graph, by_feed=machine.target.kind == "cpu")
        log.info(
            "%s: %s, %s, %s", described, counted(len(graph.nodes), "operations"),
            counted(len(ordinary.tasks), "tasks"), counted(len(ordinary.instances), "kernels"),
        )  # fmt: skip
        rules = self._rules()
        with Store(self.config.store.url) as store:
            sketches = self._sketches(ordinary, machine, rules)
            outcome = self._superoptimized(graph, ordinary, machine, rules, store)
            outcome = replace(outcome, rewrites=rewrites)
            both = contest(graph, ordinary, sketches, outcome.alternatives, machine.target)
            tuner, near, kernels = self._tuned(both, machine, store, outcome.interrupted)
        provenance = {"workload": described, "seed": self.config.seed, "compiler": machine.compiler}
        feeds = inputs(model, self.config.seed)

        def make(name: str) -> Path:
            parts, states = both.decided()
            own = [kernels[state.task.key].kernel for state in states]
            return machine.save(assemble(graph, parts, own, machine.target, provenance), self.folder / name)

        artifact = self._fastest(tuner, both, near, kernels.keys(), make, machine, feeds)
        peer_model = self._peer_model(model, feeds)
        with machine.open(artifact) as module:
            memory = module.memory
            log.info(
                "memory: %.1f MiB for intermediates, at least %.1f MiB are alive at once",
                memory.arena_bytes / 2**20, memory.lower_bound / 2**20,
            )  # fmt: skip
            with self._steps("sets of inputs") as steps:
                check = partial(machine.verified, model, both.decided()[0], module, feeds, steps.step)
                verification = _after_interrupts(
                    tuner, check, partial(check, least=True), "the module is checked on one set of inputs, and no more"
                )
            for case in verification.failures[:3]:
                log.error("%s on feeds %s: %s", case.output, case.feeds, case.verdict.reason)
            if self.config.verification.vote and not machine.predicted:
                ask = partial(vote, peer_model, module.run(None, feeds))
                _after_interrupts(tuner, ask, lambda: None, "other runtimes are not asked", again=True)
            time_it = partial(machine.latency, module, feeds, tuner.total, self.folder)
            latency = _after_interrupts(tuner, time_it, time_it, "the module is timed once more")
        summary = run_summary(Finished(
            described, self.config.seed, machine.predicted, machine.unchecked, model, tuner, both,
            outcome if self.config.superopt.enabled else None, verification, latency,
            peers=self._compared(tuner, peer_model, machine, artifact),
            facts=self._kept(both, kernels, machine), machine=machine.facts(), target=machine.target,
            versions={"muschedule": VERSION, **machine.versions()}, artifact=artifact,
        ))  # fmt: skip
        write_summary(summary, self.folder / "summary.json")
        if summary.superopt is not None and summary.superopt.subprograms:
            text = page(summary.workload, summary.superopt)
            (self.folder / "mugraphs.html").write_text(text, encoding="utf-8")
        if self.config.report.console:
            for line in summary_lines(summary):
                log.info("%s", line)
        return summary

    # ------------------------------------------------------------------ stages

    def _built(self, workload: Workload) -> Graph:
        """The model. That a dtype lacks an operation (exp of int8) is the user's mistake where it was chosen."""
        try:
            return workload.build(self.config.seed)
        except CheckError as error:
            if error.what == TOO_LARGE:
                raise _too_large(error.why or "") from error
            dtype = self.config.workload.arguments.get("dtype")
            if dtype is None:
                raise
            raise UserError(
                f"the workload cannot be computed in {dtype}",
                where="workload.dtype",
                why=error.why,
                todo="Choose float32, float16 or bfloat16",
            ) from error

    def _rewritten(self, graph: Graph, machine: Machine) -> tuple[Graph, tuple[Rewrite, ...]]:
        """After the rules that every graph goes through, and those of the superoptimizer that save time."""
        settings = self.config.superopt
        rules = self._graph_rules(self.config.rules.graph, "rules.graph")

        def ordinary(graph: Graph) -> Graph:
            for _, rule in rules:
                graph = rule(graph)
            return graph

        graph = ordinary(graph)
        if not settings.enabled:
            return graph, ()
        own = self._graph_rules(settings.rewrites, "superopt.rewrites")
        return rewritten_where_faster(graph, own, ordinary, machine.target)

    def _graph_rules(self, components: Sequence[Component], key: str) -> list[tuple[str, Change]]:
        """Each with the name of its class."""
        made: list[tuple[str, Change]] = []
        for number, component in enumerate(components):
            where = f"{key}[{number}]"
            rule: GraphRule = self._part(GraphRule, component, where)
            made.append((type(rule).__name__, partial(rewritten, rule, where=where)))
        return made

    def _rules(self) -> list[Rule]:
        config = self.config
        return [
            self._part(Rule, component, f"rules.{key}[{number}]")
            for key, given in (("schedule", config.rules.schedule), ("extra", config.rules.extra))
            for number, component in enumerate(given)
        ]

    def _sketches(self, parts: Partition, machine: Machine, rules: Sequence[Rule]) -> list[tuple[Sketch, ...]]:
        """Of each task. That the rules are those of another kind of target is the user's mistake."""
        made = []
        for task in parts.tasks:
            made.append(generate(lower(task.graph, task.name, task.constants), rules, machine.target))
            missing = [machine.unfinished(sketch.program) for sketch in made[-1]]
            if None not in missing:
                raise ConfigError(
                    f"these rules make nothing of {task.name} that can be compiled for {machine.target.name}",
                    where="rules.schedule",
                    why=missing[0] or "",
                    todo="Choose the rules of the target: rules=cpu for a CPU, rules=cuda for a GPU",
                )
        return made

    def _superoptimized(
        self, graph: Graph, parts: Partition, machine: Machine, rules: Sequence[Rule], store: Store
    ) -> Outcome:
        """Fused kernels for what several tasks do, proven and ready to be tuned."""
        settings = self.config.superopt
        if not settings.enabled:
            return Outcome()
        search = Searching.of(
            self._part(Algebra, settings.algebra, "superopt.algebra"), machine.target, seed=self.config.seed,
            workers=settings.workers or machine.threads, tests=settings.tests, patience=settings.patience,
        )  # fmt: skip
        limits = Limits(settings.anchors, settings.nodes)
        effort = Effort(settings.seconds, settings.subprograms, settings.graphs, limits, search.version)
        with _progress(None, settings.seconds, "subprograms", shown=self.config.report.progress) as progress:
            outcome = look_for_alternatives(graph, parts, machine.target, rules, effort, search, store, progress.step)
        for line in outcome_lines(outcome):
            log.info("%s", line)
        return outcome

    def _tuned(
        self, both: Contest, machine: Machine, store: Store, interrupted: bool
    ) -> tuple[Tuner, list[tuple[int, float]], dict[str, Chosen]]:
        """The other choices that are near, where modules can be called to tell; and by the task's key a kernel for each
        task of the module, and of those: the best that was found within the budget."""
        config, search, verification = self.config, self.config.search, self.config.verification
        parts = machine.parts(config.measurement)
        batch = min(search.batch, parts.batch or search.batch)
        budget = Budget(
            search.trials, search.seconds, batch, search.trials_per_task, search.patience, search.min_gain,
            search.candidates, config.measurement.finalists, config.measurement.rounds,
        )  # fmt: skip
        builder = self._part(
            Builder, config.measurement.builder, "measurement.builder", function=parts.function, target=machine.target,
            workers=parts.workers, options=parts.options,
        )  # fmt: skip
        runner = self._part(Runner, parts.runner, "measurement.runner", target=machine.target, **parts.given)
        with builder, runner, _progress(search.trials, search.seconds) as progress:
            tuner = Tuner(
                both.states, builder=builder, runner=runner, store=store,
                strategy=self._part(Strategy, search.strategy, "search.strategy"),
                cost=self._part(CostModel, config.cost_model, "cost_model", seed=config.seed), budget=budget,
                reference=lambda task: task_reference(
                    task, stream(config.seed, f"inputs/{task.key}"), rounds=verification.random_inputs,
                    hostile=verification.hostile, factor=verification.tolerance_factor),
                target_key=machine.fingerprint, version=machine.compiler, seed=config.seed,
                report=_shown(progress) if config.report.progress else _silent, whole=both.seconds,
                predicted=machine.predicted,
            )  # fmt: skip
            if config.store.resume:
                tuner.resume()
            if interrupted:
                tuner.interrupted = True
            else:
                tuner.run()
            tuner.ensure()
            progress.erase()
            with self._steps("tasks measured again") as steps:
                tuner.finish(steps.step)
            kernels: dict[str, Chosen] = {}
            near: list[tuple[int, float]] = []

            def every_kernel() -> None:
                self._built_for({}, both, tuner, kernels)
                for state, factor in [] if machine.predicted else both.near():
                    self._built_for({state: factor}, both, tuner, kernels)
                    near.append((state, factor))

            needed = partial(self._built_for, {}, both, tuner, kernels)
            _after_interrupts(tuner, every_kernel, needed, "other choices of fused kernels are not tried")
            both.factors = {}
        return tuner, near, kernels

    def _built_for(self, factors: dict[int, float], both: Contest, tuner: Tuner, kernels: dict[str, Chosen]) -> None:
        """Adds the kernels of a choice; those that an earlier run has found are built again."""
        both.factors = factors
        both.confirm(stream(self.config.seed, "full extents"))
        for state in both.decided()[1]:
            if state.task.key not in kernels:
                kernels[state.task.key] = self._chosen(tuner, state)

    def _fastest(
        self, tuner: Tuner, both: Contest, near: Sequence[tuple[int, float]], kernels: Collection[str],
        make: Callable[[str], Path], machine: Machine, feeds: Feeds,
    ) -> Path:  # fmt: skip
        """The module, chosen by calls of whole ones where kernels alone cannot tell, which takes seconds for each."""
        with self._steps("modules compared") as progress:
            path, interrupted = fastest_module(both, near, kernels, make, machine, feeds, progress)
        tuner.interrupted |= interrupted
        return path

    def _chosen(self, tuner: Tuner, state: TaskState) -> Chosen:
        chosen = tuner.chosen(state)
        if chosen is None:
            why = "; ".join(dict.fromkeys(state.complaints[-9:])) or "none was proposed"
            limits = {"timeout": "timeout_s", "memory": "memory_mb"}
            if state.failures and set(state.failures) <= set(limits):
                keys = listed(
                    f"measurement.{p}.{limits[kind]}" for kind in state.failures for p in ("builder", "runner")
                )
                todo = f"Raise the limit that it is, of {keys}"
                what = "no candidate of a task stays within the limits"
                raise UserError(what, where=state.task.name, why=why, todo=todo)
            todo = "This is a defect of the code generator or of a rule: please report it with pipeline.log"
            raise PipelineError("no candidate of a task works", where=state.task.name, why=why, todo=todo)
        return chosen

    def _kept(self, both: Contest, kernels: Mapping[str, Chosen], machine: Machine) -> dict[str, KernelFacts]:
        """Writes the listings of the chosen kernels, for people; gives what is known of them, by the task's key."""
        folder = self.folder / "kernels"
        facts: dict[str, KernelFacts] = {}
        for number, state in enumerate(both.decided()[1]):
            each = kernels[state.task.key]
            best = each.observation
            space = state.history.spaces[best.candidate.sketch]
            program = space.program(np.array(best.candidate.row, np.int64))
            known = machine.facts_of(program, each.kernel)
            if known is not None:
                facts[state.task.key] = known
            if not self.config.codegen.keep:
                continue
            values = ", ".join(f"{k}={v}" for k, v in zip(space.space.columns, best.candidate.row, strict=True))
            said = f"{state.task.name}: {(best.seconds or 0.0) * 1e3:.4f} ms, {values or 'no parameters'}"
            folder.mkdir(exist_ok=True)
            for ending, text in machine.listings(program, each.kernel, said).items():
                (folder / f"{number:02d}_{state.task.name[:60]}{ending}").write_text(text, encoding="utf-8")
        return facts

    def _peer_model(self, model: Graph, feeds: Feeds) -> PeerModel:
        path = self.config.workload.arguments.get("path")
        return PeerModel(model, feeds, Path(path) if path and self.config.precision == "model" else None)

    def _compared(self, tuner: Tuner, model: PeerModel, machine: Machine, artifact: Path) -> dict[str, PeerSummary]:
        """Other runtimes on the same model and inputs, timed in turns with ours."""
        settings = self.config.compare
        if machine.predicted:
            why = f"no {machine.target.name} is here, and a prediction is compared with nothing"
            return {n: PeerSummary(median_ms=None, ratio=None, status="skipped", reason=why) for n in settings.peers}
        peers: list[Peer] = [
            self._part(Peer, settings.plugins[name], f"compare.plugins.{name}") for name in settings.peers
        ]
        if not peers:
            return {}
        with machine.open(artifact) as module:
            ours = contestant(module, model.outputs())
            with self._steps("turns") as steps:
                hold = partial(compare, ours, peers, model, machine.threads, seconds=settings.seconds, step=steps.step)
                found = _after_interrupts(tuner, hold, lambda: None, "other runtimes are not compared", again=True)
        if found is None:
            return {
                n: PeerSummary(median_ms=None, ratio=None, status="skipped", reason="interrupted")
                for n in settings.peers
            }
        return {
            name: PeerSummary(
                median_ms=r.median_ms,
                ratio=r.ratio,
                ours_ms=None if r.median_ms is None else found.ours_ms,
                status=r.status,
                reason=r.reason,
            )
            for name, r in found.peers.items()
        }

    def _steps(self, unit: str) -> Progress:
        """Of a stage after the search; its number of steps, of that unit, is told with the first of them."""
        return _progress(None, None, unit, shown=self.config.report.progress)

    def _part(self, role: type[Any], component: Component, where: str, **given: Any) -> Any:
        return self.config.plugins.build(role, component, where, **given)


def machine_of(config: Config) -> Machine:
    """The machine of the configuration's target; for a GPU, whether a device of its architecture is here decides."""
    target = config.target.resolve()
    if target.kind == "cpu":
        return CpuMachine(config, target)
    absent = why_absent(target.cpu)
    return MeasuredCuda(config, target) if absent is None else PredictedCuda(config, target, absent)


def refuse_too_large(model: Graph, memory: int) -> None:
    """Raises a `UserError` where the values that a check must hold at once, in float64, exceed the memory in bytes."""
    ends = {number for _, number in model.outputs}
    sizes = [math.prod(node.type.shape) for node in model.nodes]
    kept = sum(size for n, size in enumerate(sizes) if n in ends or isinstance(model.nodes[n].op, Input))
    needed = 8 * max([kept, *sizes])
    if needed > memory:
        raise _too_large(
            f"its inputs and outputs, or one value of it, take {needed / 2**30:,.1f} GiB in float64, "
            f"and this machine has {memory / 2**30:,.1f} GiB"
        )


def _too_large(why: str) -> UserError:
    what, todo = "the model is too large for this machine", "Choose smaller sizes"
    return UserError(what, where="workload", why=why, todo=todo)


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


def _progress(trials: int | None, seconds: float | None, unit: str = "trials", *, shown: bool = True) -> Progress:
    columns = shutil.get_terminal_size((100, 24)).columns
    return Progress(sys.stderr if shown else None, trials=trials, seconds=seconds, columns=columns, unit=unit)


def _after_interrupts(
    tuner: Tuner, stage: Callable[[], T], least: Callable[[], U], said: str, *, again: bool = False
) -> T | U:
    """What a stage at the end of a run gives or, once it is interrupted, the least that the result needs of it.

    A second interrupt of the run ends it, unless (`again`) what is given then is had for nothing.
    """
    try:
        return stage()
    except KeyboardInterrupt:
        if tuner.interrupted and not again:
            raise
        tuner.interrupted = True
        log.warning("interrupted: %s", said)
        return least()


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
