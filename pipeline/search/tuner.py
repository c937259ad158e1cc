"""The tuning loop: propose, build, check and time, record, learn; task by task, until budget or gain run out."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import numpy as np

from pipeline.codegen.built_kernel import BuiltKernel
from pipeline.errors import UserError
from pipeline.ir.target import Target
from pipeline.measurement.failure import Failure
from pipeline.measurement.host import akin, memory_of_host
from pipeline.measurement.protocol import Builder, Built, MeasureRequest, MeasureResult, Reference, Runner
from pipeline.measurement.sampling import typical
from pipeline.progress import Step, untold
from pipeline.schedule.sketch import Sketch
from pipeline.schedule.trace import to_json
from pipeline.search.candidates import Candidate, History, Observation, SketchSpace
from pipeline.search.cost_model import CostModel
from pipeline.search.strategy import Strategy
from pipeline.search.task_scheduler import Progress, choose
from pipeline.space.lower import argument_name
from pipeline.space.task import Task, roofline_seconds, waits_for_weights, weight_bytes
from pipeline.store.record import Record, candidate_key
from pipeline.store.store import Store

log = logging.getLogger("pipeline")

HOPE = 0.3  # of its best time: what further tuning of a task can come to at most
CLOSE = 0.7  # of its time: a gain that measuring again, or a roofline that is wrong, may bring
# of what is kept to check candidates of several tasks: a sixteenth of the memory, within bounds for small containers
REFERENCE_BYTES = min(max(memory_of_host() // 16, 1 << 28), 3 << 29)
# Seconds that a candidate takes, beside those of its task's data: to build it, and so often the roofline to run it.
BUILT, RUNS = 0.1, 30.0
FEWEST = 8  # candidates of a batch, where time is short
NEAR = 1.25  # of the best time: candidates of which the caches may decide which one is faster
LEAD = 0.95  # of the time with empty caches of the one that is the fastest with full ones, at most
KEPT = 6  # built kernels of a task that are kept for the final comparison
OF_EACH = 3  # candidates of each sketch that are compared with empty caches: sketches differ in what they ask for ahead


@dataclass(frozen=True, slots=True)
class Budget:
    """See `pipeline.config.SearchSettings`."""

    trials: int | None
    seconds: float | None
    batch: int
    trials_per_task: int | None
    patience: int
    min_gain: float
    pool: int
    finalists: int
    rounds: int


@dataclass(slots=True)
class TaskState:
    """One task while it is tuned.

    traces     what tells its sketches apart in the store
    optional   the module can do without it: another way to compute what other tasks do
    seeds      candidates that a model has chosen before there was a clock: measured first
    measured   samples of this run by candidate, in order
    resumed    how many of its observations come from the store
    batch_seconds  that its last batch took, where the budget is one of time
    """

    task: Task
    weight: int
    roofline: float
    history: History
    traces: tuple[str, ...]
    optional: bool = False
    seeds: tuple[Candidate, ...] = ()
    bests: list[float] = field(default_factory=list)
    kernels: dict[tuple[int, tuple[int, ...]], tuple[float, Built]] = field(default_factory=dict)
    failures: Counter[str] = field(default_factory=Counter)
    details: list[str] = field(default_factory=list)
    trials: int = 0
    resumed: int = 0
    first_seconds: float | None = None
    best_at: int = 0
    exhausted: bool = False
    batch_seconds: float = 1.0

    @property
    def best(self) -> float:
        found = self.history.best()
        return found.seconds if found is not None and found.seconds is not None else float("inf")

    @property
    def complaints(self) -> list[str]:
        """What its failed candidates said, in a line each; a traceback says it in its last one."""
        made = []
        for detail in self.details:
            kind, _, said = detail.partition(": ")
            lines = said.strip().splitlines() or [""]
            made.append(f"{kind}: {lines[-1 if lines[0].startswith('Traceback') else 0].strip()}")
        return made

    def note(self, seconds: float | None) -> None:
        """Remembers the first time that was measured, and which trial was the best; before it joins the history."""
        if seconds is not None and self.first_seconds is None:
            self.first_seconds = seconds
        if seconds is not None and seconds < self.best:
            self.best_at = self.trials + self.resumed

    def progress(self, behind: float = 0.0) -> Progress:
        return Progress(self.weight, self.roofline, tuple(self.bests), behind, self.batch_seconds)


@dataclass(frozen=True, slots=True)
class Report:
    """What a progress bar shows: trials so far, the weighted sum of the best times, that of the
    first times (None while a task has none), and the task."""

    trials: int
    seconds: float
    total: float | None
    untuned: float | None
    task: str


@dataclass(frozen=True, slots=True)
class Chosen:
    """The kernel of a task in a module, and what was observed of the candidate that it was built of."""

    kernel: BuiltKernel
    observation: Observation = field(compare=False)


class Tuner:
    """Tunes the tasks of one model. Chance comes from streams that are named after the task; time from `clock`."""

    def __init__(
        self, states: Sequence[TaskState], *, builder: Builder, runner: Runner, store: Store | None,
        strategy: Strategy, cost: CostModel, budget: Budget, reference: Callable[[Task], Reference],
        target_key: str, version: str, seed: int, clock: Callable[[], float] = time.monotonic,
        report: Callable[[Report], None] = lambda _: None, whole: Callable[[Sequence[float]], float] | None = None,
        predicted: bool = False,
    ) -> None:  # fmt: skip
        """whole: the seconds of the module, given those of each task; else all tasks are used, by their weights.
        predicted: the runner's times are a model's, and so are the records that are resumed."""
        self.states = list(states)
        self._whole = self._sum if whole is None else whole
        self._builder, self._runner, self._store = builder, runner, store
        self._strategy, self._cost, self._budget = strategy, cost, budget
        self._make_reference, self._references = reference, dict[str, Reference]()
        self._target_key, self._version, self._seed = target_key, version, seed
        self._clock, self._report, self._predicted = clock, report, predicted
        self._rngs = [stream(seed, f"search/{state.task.key}") for state in self.states]
        self.trials = 0
        self.invalid = 0
        self.interrupted = False
        self.tuning_seconds = 0.0
        self._start = clock()

    def resume(self) -> None:
        """Takes in what the store knows of these tasks on this target: it is not measured again."""
        if self._store is None:
            return
        for state in self.states:
            sketches = {trace: number for number, trace in enumerate(state.traces)}
            known = self._store.records(state.task.key, self._target_key, self._version, predicted=self._predicted)
            for record in sorted(known, key=lambda r: (r.created, r.candidate_key)):
                candidate = _candidate(state, sketches, record)
                if candidate is None:
                    continue
                seconds = None if record.latency_ns is None else record.latency_ns * 1e-9
                state.resumed += 1
                state.note(seconds)
                state.history.observations.append(Observation(candidate, seconds))
                if state.resumed % self._budget.batch == 0:
                    state.bests.append(state.best)
            if state.resumed and (not state.bests or state.bests[-1] != state.best):
                state.bests.append(state.best)
            if state.resumed:
                self._cost.learn(state.history)

    def recall(self) -> None:
        """Takes in, as hints, what was fastest for these tasks on any machine and with any compiler: what is of our own
        kind first, since the times of predictions and of measurements say different things. Predictions for this GPU
        come before those for others of its architecture, at another clock say, and these before all others."""
        if self._store is None:
            return
        for state in self.states:
            sketches = {trace: number for number, trace in enumerate(state.traces)}
            known = [r for r in self._store.everything(state.task.key) if r.latency_ns is not None]
            known.sort(key=lambda r: (r.predicted != self._predicted, r.latency_ns or 0.0, r.candidate_key))
            found = (_candidate(state, sketches, record) for record in known)
            different = {candidate.key: candidate for candidate in found if candidate is not None}
            state.history.hints = tuple(different.values())
            if not self._predicted:
                near = sorted((r for r in known if r.predicted), key=self._distance)  # stable: fastest first in each
                chosen = (_candidate(state, sketches, record) for record in near)
                state.seeds = tuple({c.key: c for c in chosen if c is not None}.values())

    def _distance(self, record: Record) -> int:
        """How far the machine of a record is from ours: 0 the same, 1 of its architecture, 2 another."""
        return 0 if record.target == self._target_key else 1 if akin(record.target, self._target_key) else 2

    def run(self) -> None:
        """Until the budget is spent or every task has converged. An interrupt ends it with the best so far."""
        self._start = self._clock()
        try:
            self.recall()
            while (number := self._next()) is not None:
                self._batch(number)
        except KeyboardInterrupt:
            self.interrupted = True
        self.tuning_seconds = self.elapsed()

    def elapsed(self) -> float:
        return self._clock() - self._start

    @property
    def total(self) -> float:
        """Seconds of the module with the best kernels, infinite while it has none."""
        return self._whole([state.best for state in self.states])

    @property
    def untuned(self) -> float:
        """Seconds of the module with the first kernel of each task that it needs."""
        return self._whole([
            float("inf") if s.optional else s.best if s.first_seconds is None else s.first_seconds for s in self.states
        ])  # fmt: skip

    def _sum(self, seconds: Sequence[float]) -> float:
        return sum(state.weight * one for state, one in zip(self.states, seconds, strict=True))

    def finish(self, step: Step = untold) -> None:
        """Measures the fastest few of each task again, in turns, so that one lucky sample decides nothing. step: is
        told before each task how many are done, of how many, and its name."""
        everything = sum(state.weight * weight_bytes(state.task) for state in self.states if not state.optional)
        for number, state in enumerate(self.states):
            step(number, len(self.states), state.task.name)
            if self.interrupted or self._budget.finalists < 2 or not self._would_matter(state, CLOSE * state.best):
                continue
            try:
                if len(state.kernels) > 1:
                    self._finalists(state)
                if waits_for_weights(state.task, state.history.spaces[0].target, everything - weight_bytes(state.task)):
                    self._from_memory(state)
            except KeyboardInterrupt:
                self.interrupted = True

    def chosen(self, state: TaskState) -> Chosen | None:
        """The best kernel of a task, built again where it was measured in an earlier run; None where nothing works."""
        for observation in state.history.ranked():
            kept = state.kernels.get(observation.candidate.key)
            built = kept[1] if kept is not None else None
            if built is None or not isinstance(built.outcome, BuiltKernel):
                (built,) = self._build(state, [observation.candidate])
            if isinstance(built.outcome, BuiltKernel):
                return Chosen(built.outcome, observation)
        return None

    def ensure(self) -> None:
        """Every task without a working kernel gets its first candidates measured, whatever the budget says, and after a
        first interrupt, too."""
        for number, state in enumerate(self.states):
            attempts = 4 if state.optional else 0
            while state.history.best() is None and attempts < 4 and not state.exhausted:
                attempts += 1
                try:
                    self._batch(number, count=4)
                except KeyboardInterrupt:
                    if self.interrupted:
                        raise
                    self.interrupted = True

    # ------------------------------------------------------------------ one batch

    def _next(self) -> int | None:
        budget = self._budget
        if budget.trials is not None and self._spent() >= budget.trials:
            return None
        if budget.seconds is not None and self.elapsed() >= budget.seconds:
            return None
        open_ = [
            i for i, state in enumerate(self.states)
            if not state.exhausted
            and (budget.trials_per_task is None or state.trials + state.resumed < budget.trials_per_task)
        ]  # fmt: skip
        if any(not self.states[i].bests and not self.states[i].optional for i in open_):
            open_ = [i for i in open_ if not self.states[i].optional]  # what the module needs comes first
        else:
            open_ = [i for i in open_ if self._may_matter(i)]
            fresh = [i for i in open_ if not self.states[i].bests]
            open_ = fresh[:1] or open_  # of several options the one that was given first
        standing = [state.progress(self._behind(state)) for state in self.states]
        return choose(standing, open_, budget.patience, budget.min_gain)

    def _may_matter(self, number: int) -> bool:
        """Whether the module may become faster by this task: not where it loses to others by more than it can gain."""
        state = self.states[number]
        if len(state.bests) < 2:  # a first batch says little; but an option has lost where it is far behind
            far = state.optional and math.isfinite(state.best) and not self._would_matter(state, HOPE * state.best)
            return not far
        return self._would_matter(state, min(max(state.roofline, HOPE * state.best), CLOSE * state.best))

    def _would_matter(self, state: TaskState, seconds: float) -> bool:
        """Whether the module would be faster if the task took so many seconds."""
        total = self.total
        return total == float("inf") or self._whole([seconds if s is state else s.best for s in self.states]) < total

    def _worth(self, state: TaskState) -> float:
        """The seconds from which on the module does without a task that is an option; infinity for what it needs."""
        total = self.total
        if not state.optional or total == float("inf"):
            return float("inf")
        return (total - self._whole([0.0 if s is state else s.best for s in self.states])) / state.weight

    def _behind(self, state: TaskState) -> float:
        """The seconds by which an option is slower than what the module does without it; 0 where it is used."""
        best = state.best
        return max(0.0, best - self._worth(state)) if state.optional and math.isfinite(best) else 0.0

    def _spent(self) -> int:
        """Trials that count towards the budget: those of a run that was cut short need not be made again."""
        return self.trials + sum(state.resumed for state in self.states)

    def _batch(self, number: int, count: int | None = None) -> None:
        state, budget, start = self.states[number], self._budget, self._clock()
        count = self._affordable(state) if count is None else count
        if budget.trials is not None:
            count = max(1, min(count, budget.trials - self._spent()))
        if budget.trials_per_task is not None:
            count = max(1, min(count, budget.trials_per_task - state.trials - state.resumed))
        candidates = self._seeded(state, max(1, count // 2))
        candidates += self._strategy.propose(
            state.history, self._cost, max(1, count - len(candidates)), budget.pool, self._rngs[number]
        )
        candidates = list({candidate.key: candidate for candidate in candidates}.values())[:count]
        candidates = [candidate for candidate in candidates if self._valid(state, candidate)]
        if not candidates:
            state.exhausted = True
            state.bests.append(state.best)
            return
        built = self._build(state, candidates)
        best = min(state.best, self._worth(state))
        reference = self._reference(state.task)
        results = self._runner.run(built, reference, None if best == float("inf") else best * 1e9)
        self._take(state, candidates, built, results)
        self._cost.learn(state.history)
        state.bests.append(state.best)
        if budget.trials is None and budget.seconds is not None:  # else the same trials must come in the same order
            state.batch_seconds = max(self._clock() - start, 1e-3)
        total = self.total
        untuned = self.untuned if total != float("inf") else None
        self._report(Report(self.trials, self.elapsed(), None if untuned is None else total, untuned, state.task.name))

    def _affordable(self, state: TaskState) -> int:
        """Candidates of a batch: fewer in the first one of a large task where time is short, for the options' sake.
        Half of its share of what is left goes to the data that its candidates are checked on."""
        budget = self._budget
        if budget.trials is not None or budget.seconds is None or state.bests or state.optional:
            return budget.batch
        waiting = sum(not one.bests for one in self.states)
        share = (budget.seconds - self.elapsed()) / waiting / 2
        return min(budget.batch, max(FEWEST, int(share / (BUILT + RUNS * state.roofline))))

    def _seeded(self, state: TaskState, count: int) -> list[Candidate]:
        """The next of what a model has chosen."""
        seen = state.history.seen()
        fresh = [candidate for candidate in state.seeds if candidate.key not in seen]
        state.seeds = tuple(fresh[count:])
        return fresh[:count]

    def _valid(self, state: TaskState, candidate: Candidate) -> bool:
        """What breaks a constraint is counted and dropped: there should be none."""
        space = state.history.spaces[candidate.sketch].space
        good = bool(space.valid(np.array([candidate.row], np.int64).reshape(1, -1))[0])
        self.invalid += not good
        return good

    def _build(self, state: TaskState, candidates: Iterable[Candidate]) -> list[Built]:
        requests = []
        for candidate in candidates:
            space = state.history.spaces[candidate.sketch]
            program = space.program(np.array(candidate.row, np.int64))
            requests.append(MeasureRequest(program, f"{candidate.sketch}:{','.join(map(str, candidate.row))}"))
        return self._builder.build(requests)

    def _reference(self, task: Task) -> Reference:
        """Those of the tasks that were tuned last are kept as long as there is room: they are large, and take time."""
        kept = self._references
        found = kept.pop(task.key) if task.key in kept else self._make_reference(task)
        kept[task.key] = found
        while len(kept) > 1 and sum(one.nbytes for one in kept.values()) > REFERENCE_BYTES:
            del kept[next(iter(kept))]
        return found

    def _take(
        self,
        state: TaskState,
        candidates: Sequence[Candidate],
        built: Sequence[Built],
        results: Sequence[MeasureResult],
    ) -> None:
        """Records a batch in one transaction; keeps the fastest kernels."""
        records = []
        for candidate, made, result in zip(candidates, built, results, strict=True):
            self.trials += 1
            state.trials += 1
            seconds = None
            if result.failure is None and result.samples_ns:
                seconds = typical(result.samples_ns) * 1e-9
                state.note(seconds)
                self._keep(state, candidate, seconds, made)
            else:
                failure = result.failure or Failure("error", "no sample was taken")
                state.failures[failure.reason] += 1
                state.details.append(f"{failure.reason}: {failure.detail}")
            state.history.observations.append(Observation(candidate, seconds))
            records.append(self._record(state, candidate, result, seconds))
        if self._store is not None:
            try:
                self._store.add(records)
            except UserError as error:  # a lock that another program keeps, a full disk: what is measured stays
                self._store = None
                log.warning("%s. The run goes on, and nothing more of it is recorded", str(error).rstrip("."))

    def _keep(self, state: TaskState, candidate: Candidate, seconds: float, built: Built) -> None:
        state.kernels[candidate.key] = (seconds, built)
        if len(state.kernels) > KEPT:
            del state.kernels[max(state.kernels, key=lambda key: state.kernels[key][0])]

    def _record(self, state: TaskState, candidate: Candidate, result: MeasureResult, seconds: float | None) -> Record:
        space = state.history.spaces[candidate.sketch]
        failure = result.failure
        return Record(
            task_key=state.task.key, task_name=state.task.name, sketch=state.traces[candidate.sketch],
            values=dict(zip(space.space.columns, candidate.row, strict=True)), target=self._target_key,
            version=self._version, status="failed" if seconds is None else "ok", created=datetime.now(UTC),
            reason="" if seconds is not None else f"{failure.reason}: {failure.detail}" if failure else "no sample",
            samples=tuple(result.samples_ns), inner=result.inner,
            latency_ns=None if seconds is None else seconds * 1e9, max_error=result.max_absolute,
            tolerance=result.tolerance, seed=self._seed, predicted=result.predicted,
        )  # fmt: skip

    def _finalists(self, state: TaskState) -> None:
        ranked = [o for o in state.history.ranked() if o.candidate.key in state.kernels][: self._budget.finalists]
        if len(ranked) < 2:
            return
        built = [state.kernels[o.candidate.key][1] for o in ranked]
        results = self._runner.remeasure(built, self._reference(state.task), self._budget.rounds)
        for observation, result in zip(ranked, results, strict=True):
            seconds = None
            if result.failure is None and result.samples_ns:
                seconds = typical(result.samples_ns) * 1e-9
            state.history.correct(observation, seconds)

    def _from_memory(self, state: TaskState) -> None:
        """Of the fastest few those are out that are fast only while their weights are in the caches. Where that cannot
        be told, as the caches could not be emptied, all stay."""
        near = close_behind(state)
        if len(near) < 2:
            return
        built = [state.kernels[o.candidate.key][1] if o.candidate.key in state.kernels else None for o in near]
        again = iter(self._build(state, [o.candidate for o, kept in zip(near, built, strict=True) if kept is None]))
        kernels = [next(again) if kept is None else kept for kept in built]
        rounds = 2 * self._budget.rounds  # of one run each
        results = self._runner.remeasure(kernels, self._reference(state.task), rounds, cold=True)
        if any(result.failure is not None or result.cache != "cold" for result in results):
            return
        cold = [typical(result.samples_ns) for result in results]
        first = cold.index(min(cold))
        if cold[first] > LEAD * cold[0]:
            return
        for observation in near[:first]:
            state.history.correct(observation, None)


def close_behind(state: TaskState) -> list[Observation]:
    """The fastest few of a task, and of each sketch: those of which the caches may decide which one is faster."""
    near: list[Observation] = []
    of_sketch: Counter[int] = Counter()
    for one in state.history.ranked():
        if one.seconds is not None and one.seconds <= NEAR * state.best:
            of_sketch[one.candidate.sketch] += 1
            if len(near) < KEPT or (len(near) < 2 * KEPT and of_sketch[one.candidate.sketch] <= OF_EACH):
                near.append(one)
    return near


def _candidate(state: TaskState, sketches: Mapping[str, int], record: Record) -> Candidate | None:
    """The candidate of a record; None where the rules make that sketch no more, or it has other parameters now."""
    number = sketches.get(record.sketch)
    if number is None:
        return None
    columns = state.history.spaces[number].space.columns
    if set(columns) != set(record.values):
        return None
    return Candidate(number, tuple(record.values[name] for name in columns))


def stream(seed: int, name: str) -> np.random.Generator:
    """A generator of its own for each consumer of chance, the same in every process."""
    digest = hashlib.sha256(name.encode()).digest()
    return np.random.default_rng([seed, int.from_bytes(digest[:8], "big")])


def make_state(
    task: Task, weight: int, sketches: Sequence[Sketch], target: Target, *, begins: Sequence[str] = (),
    optional: bool = False,
) -> TaskState:  # fmt: skip
    """A task before it is tuned.

    begins  for each sketch the key of what its trace begins from; "": the program that the task is lowered to
    """
    fed = frozenset(argument_name(name) for name in task.fed)
    spaces = tuple(SketchSpace(number, sketch, target, fed) for number, sketch in enumerate(sketches))
    traces = tuple(began(sketch, begin) for sketch, begin in zip(sketches, begins or [""] * len(sketches), strict=True))
    return TaskState(task, weight, roofline_seconds(task.graph, target), History(spaces), traces, optional)


def began(sketch: Sketch, begin: str) -> str:
    """The trace of a sketch as JSON; one that begins from something else than its task's program says so first."""
    trace = to_json(sketch.trace)
    return (
        trace if not begin else json.dumps([{"kind": "Begin", "key": begin}, *json.loads(trace)], separators=(",", ":"))
    )


__all__ = ["Budget", "Chosen", "Report", "TaskState", "Tuner", "candidate_key", "make_state", "stream"]
