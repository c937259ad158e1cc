"""Tests of the tuning loop, with times that a formula gives: what is asked for, recorded, resumed and chosen."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pipeline.errors import UserError
from pipeline.ir.graph_builder import GraphBuilder
from pipeline.measurement.failure import Failure
from pipeline.measurement.protocol import Built, Case, MeasureRequest, MeasureResult, Reference
from pipeline.search.candidates import Candidate, History, Observation
from pipeline.search.cost_model import CostModel
from pipeline.search.evolutionary import Evolutionary
from pipeline.search.random import Random
from pipeline.search.replay import Replay
from pipeline.search.roofline import Roofline
from pipeline.search.tuner import KEPT, NEAR, OF_EACH, Report, Tuner, close_behind, make_state, stream
from pipeline.space.task import Task
from pipeline.store.record import Record
from pipeline.store.store import Store
from tests.search import spaces as small
from tests.search.formula_measurement import FormulaRunner, keys, tuner

CHECKOUT = Path(__file__).resolve().parents[2]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An empty store in a file."""
    with Store(f"sqlite:///{tmp_path}/store.sqlite") as made:
        yield made


def run(made: Tuner) -> Tuner:
    """What the engine does with a tuner."""
    made.resume()
    made.run()
    made.ensure()
    made.finish()
    return made


def test_the_same_seed_gives_the_same_candidates_byte_for_byte_in_every_process() -> None:
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.search.proposal_log"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            cwd=CHECKOUT, env={**os.environ, "PYTHONHASHSEED": hash_seed},
        ) for hash_seed in ("1", "987654321")
    ]  # fmt: skip
    said = [process.communicate() for process in running]
    assert [process.returncode for process in running] == [0, 0], said[0][1].decode()
    one, other = said[0][0], said[1][0]
    assert one == other
    lines = one.decode().splitlines()
    assert len({line.partition(":")[0] for line in lines}) == 18
    assert len(lines) > 18 * 10


def test_every_trial_is_recorded_once(store: Store) -> None:
    made, *_ = tuner(small.two_tasks(), Random(), Roofline(), store=store)
    run(made)
    records = store.everything()
    assert len(records) == made.trials == 24
    assert len({record.candidate_key for record in records}) == 24
    assert made.trials == sum(state.trials for state in made.states)
    assert made.invalid == 0
    failed = [record for record in records if record.status == "failed"]
    assert failed and all(record.reason == "wrong: planted" for record in failed)
    assert sum((state.failures for state in made.states), Counter())["wrong"] == len(failed)
    assert store.problems() == []


def test_a_second_run_measures_nothing_again_and_ends_with_the_same_best(store: Store) -> None:
    first, *_ = tuner(small.two_tasks(), Evolutionary(), Roofline(), store=store)
    run(first)
    second, builder, runner = tuner(small.two_tasks(), Evolutionary(), Roofline(), store=store)
    run(second)
    assert (second.trials, runner.measured) == (0, [])
    assert [state.best for state in second.states] == pytest.approx([state.best for state in first.states])
    assert [state.resumed for state in second.states] == [state.trials for state in first.states]
    assert builder.asked == []
    assert all(second.chosen(state) is not None for state in second.states)
    assert len(builder.asked) == 2, "one kernel a task is built from its record"


def test_a_run_that_was_cut_short_is_completed_to_its_budget(store: Store) -> None:
    first, *_ = tuner(small.gmm(), Random(), Roofline(), store=store, trials=10)
    run(first)
    second, *_ = tuner(small.gmm(), Random(), Roofline(), store=store, trials=25)
    run(second)
    assert (first.trials, second.trials) == (10, 15)
    assert len(store.everything()) == 25
    assert len(set(keys(second.states[0].history))) == 25


def test_a_store_that_fails_midway_costs_the_records_and_not_the_run(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Another program holds the lock, say."""
    made, *_ = tuner(small.two_tasks(), Random(), Roofline(), store=store)
    add, asked = store.add, []

    def failing(records: Sequence[Record]) -> None:
        asked.append(len(records))
        if len(asked) > 1:
            raise UserError("cannot use the tuning store", why="database is locked")
        add(records)

    monkeypatch.setattr(store, "add", failing)
    with caplog.at_level("WARNING", "pipeline"):
        run(made)
    assert len(asked) == 2 and made.trials == 24 > len(store.everything()) == asked[0]
    assert all(made.chosen(state) is not None for state in made.states)
    (said,) = caplog.messages
    assert "database is locked. The run goes on" in said


def test_a_failed_candidate_is_not_tried_again(store: Store) -> None:
    first, *_ = tuner(small.gmm(5, 7, 3), Random(), Roofline(), store=store, trials=20, failing=2)
    run(first)
    failed = {o.candidate.key for o in first.states[0].history.observations if o.seconds is None}
    assert failed
    second, *_ = tuner(small.gmm(5, 7, 3), Random(), Roofline(), store=store, trials=40, failing=2)
    run(second)
    assert second.trials > 0
    assert not failed & set(keys(second.states[0].history)[20:])


@pytest.mark.parametrize("other", [{"target_key": "there"}, {"version": "2"}])
def test_records_of_another_machine_or_compiler_are_not_taken_for_ours(store: Store, other: dict[str, str]) -> None:
    run(tuner(small.gmm(), Random(), Roofline(), store=store)[0])
    made, *_ = tuner(small.gmm(), Random(), Roofline(), store=store, **other)
    run(made)
    assert (made.trials, made.states[0].resumed) == (24, 0)
    assert len(store.everything()) == 48


def test_records_of_another_seed_serve_this_one_too(store: Store) -> None:
    """A time does not depend on who proposed the candidate; the seed of a record says who did."""
    run(tuner(small.gmm(), Random(), Roofline(), store=store, seed=1)[0])
    made, *_ = tuner(small.gmm(), Random(), Roofline(), store=store, seed=2, trials=40, patience=100)
    run(made)
    assert (made.states[0].resumed, made.trials) == (24, 16)
    assert Counter(record.seed for record in store.everything()) == {1: 24, 2: 16}


def test_records_of_a_sketch_that_is_made_no_more_are_left_alone(store: Store) -> None:
    run(tuner(small.gmm(), Random(), Roofline(), store=store)[0])
    for record in store.everything():
        store.add([replace(record, sketch="[]"), replace(record, values={"other": 1})])
    made, *_ = tuner(small.gmm(), Random(), Roofline(), store=store)
    run(made)
    assert made.states[0].resumed == 24


def test_replay_measures_on_this_machine_what_was_best_on_another(store: Store) -> None:
    there, *_ = tuner(small.gmm(), Random(), Roofline(), store=store, target_key="there")
    run(there)
    here, *_ = tuner(small.gmm(), Replay(), Roofline(), store=store, trials=5)
    run(here)
    best = [observation.candidate.key for observation in there.states[0].history.ranked()]
    assert keys(here.states[0].history) == best[:5]


def test_replay_without_resuming_measures_the_best_of_the_store_again(store: Store) -> None:
    first, *_ = tuner(small.gmm(), Random(), Roofline(), store=store)
    run(first)
    again, *_ = tuner(small.gmm(), Replay(), Roofline(), store=store, trials=5)
    again.run()
    best = [observation.candidate.key for observation in first.states[0].history.ranked()]
    assert keys(again.states[0].history) == best[:5]
    assert len(store.everything()) == 24, "the first measurement of a candidate stays the record"


def test_no_task_takes_more_trials_than_it_may(store: Store) -> None:
    first, *_ = tuner(small.two_tasks(), Random(), Roofline(), store=store, trials=None, per_task=7)
    run(first)
    assert [state.trials for state in first.states] == [7, 1]  # the second one has no parameters
    second, *_ = tuner(small.two_tasks(), Random(), Roofline(), store=store, trials=None, per_task=9)
    run(second)
    assert [state.trials + state.resumed for state in second.states] == [9, 1]


@pytest.mark.parametrize("trials", [1, 2, 5, 6, 7, 24])
def test_the_budget_is_met_to_the_trial(trials: int) -> None:
    made, *_ = tuner(small.gmm(), Random(), Roofline(), trials=trials, failing=0)
    run(made)
    assert made.trials == trials


def test_a_search_that_gains_nothing_ends_by_itself() -> None:
    made, *_ = tuner(small.two_tasks(), Random(), Roofline(), trials=None, patience=2)
    run(made)
    assert 0 < made.trials < 2000


def test_every_task_gets_a_kernel_even_if_the_budget_is_smaller_than_the_number_of_tasks() -> None:
    made, *_ = tuner(small.two_tasks(), Random(), Roofline(), trials=1, failing=0)
    run(made)
    assert all(made.chosen(state) is not None for state in made.states)


def test_the_reported_best_never_gets_worse() -> None:
    seen: list[Report] = []
    made, *_ = tuner(small.two_tasks(), Evolutionary(), Roofline(), report=seen.append)
    run(made)
    totals = [report.total for report in seen if report.total is not None]
    assert totals and totals == sorted(totals, reverse=True)
    assert [report.trials for report in seen] == sorted({report.trials for report in seen})


def test_the_best_is_the_fastest_that_was_measured() -> None:
    made, _, _ = tuner(small.gmm(), Random(), Roofline())
    run(made)
    state = made.states[0]
    times = [o.seconds for o in state.history.observations if o.seconds is not None]
    assert state.best == min(times)
    chosen = made.chosen(state)
    assert chosen is not None and float(chosen.kernel.object_code) == pytest.approx(min(times))
    assert chosen.observation is state.history.best()


def ends(made: Tuner) -> list[Observation]:
    """Those that may be chosen by what the caches hold, before that is known."""
    made.resume()
    made.run()
    made.ensure()
    state = made.states[0]
    near = close_behind(state)
    made.finish()
    return near


def test_of_what_waits_for_its_weights_the_fastest_with_empty_caches_is_chosen(store: Store) -> None:
    """Whatever tells the best of a task says the same; and so does a run that finds all of them in the store."""
    made, _, runner = tuner(small.weights(), Random(), Roofline(), trials=64, store=store, failing=0)
    near = ends(made)
    state = made.states[0]
    assert runner.cold == [len(near)] and len(near) > 1
    chosen = made.chosen(state)
    assert chosen is not None and chosen.observation is state.history.best()
    assert chosen.observation.candidate.key == near[-1].candidate.key and state.best == near[-1].seconds
    assert float(chosen.kernel.object_code) == pytest.approx(near[-1].seconds)
    again, _, _ = tuner(small.weights(), Random(), Roofline(), trials=0, store=store, failing=0)
    found = run(again).chosen(again.states[0])
    assert found is not None and found.observation.candidate.key == chosen.observation.candidate.key


def test_some_of_each_sketch_are_among_those_that_empty_caches_may_change() -> None:
    made, _, _ = tuner(small.weights(), Random(), Roofline(), trials=64, failing=0)
    run(made)
    state = made.states[0]
    near = close_behind(state)
    ranked = [o for o in state.history.ranked() if o.seconds is not None and o.seconds <= NEAR * state.best]
    assert near[:KEPT] == ranked[:KEPT] and KEPT < len(near) <= 2 * KEPT
    for sketch in {one.candidate.sketch for one in ranked}:
        ours = [one for one in ranked if one.candidate.sketch == sketch]
        taken = [one for one in near if one.candidate.sketch == sketch]
        assert taken == ours[: len(taken)]
        assert len(taken) >= min(OF_EACH, len(ours)) or len(near) == 2 * KEPT


def test_beside_many_other_weights_those_of_many_rows_are_tried_with_empty_caches_too() -> None:
    alone, _, runner = tuner(small.weights(128), Random(), Roofline(), failing=0)
    run(alone)
    assert runner.cold == []
    b = GraphBuilder()
    matrices = [b.constant(np.full((768, 768), value, np.float32)) for value in (1.0, 2.0)]
    inner = b.matmul(b.input("a", (128, 768), "float32"), matrices[0])
    both, _, runner = tuner(b.finish([("c", b.matmul(b.relu(inner), matrices[1]))]), Random(), Roofline(), failing=0)
    run(both)
    assert len(both.states) == len(runner.cold) == 2


@pytest.mark.parametrize("trouble", ["the caches stay full", "one fails"])
def test_where_caches_could_not_be_emptied_the_fastest_is_chosen(trouble: str) -> None:
    made, _, runner = tuner(small.weights(), Random(), Roofline(), trials=64, failing=0)
    if trouble == "one fails":
        runner.remeasure = lambda built, reference, rounds, *, cold=False: [  # type: ignore[method-assign]
            MeasureResult(each.key, (1e9 * (9 - i),) * 3, cache="cold") if i else MeasureResult(
                each.key, failure=Failure("memory", "not enough")) for i, each in enumerate(built)
        ] if cold else FormulaRunner(0).run(built, reference)  # fmt: skip
    else:
        runner.empties = False
    near = ends(made)
    chosen = made.chosen(made.states[0])
    assert chosen is not None and chosen.observation.candidate.key == near[0].candidate.key


def test_what_caches_hold_is_not_measured_with_empty_ones() -> None:
    made, _, runner = tuner(small.gmm(), Random(), Roofline())
    run(made)
    assert runner.cold == []


def test_where_the_best_cannot_be_built_again_the_next_is_chosen_and_named() -> None:
    made, builder, _ = tuner(small.gmm(), Random(), Roofline())
    run(made)
    state = made.states[0]
    first, second, *_ = state.history.ranked()
    state.kernels.clear()
    builder._fails = (f"{first.candidate.sketch}:{','.join(map(str, first.candidate.row))}",)
    chosen = made.chosen(state)
    assert chosen is not None and chosen.observation is second
    assert float(chosen.kernel.object_code) == pytest.approx(second.seconds)


class Breaking:
    """Proposes, among good candidates, rows that no constraint allows, and counts what it was asked."""

    def propose(
        self, history: History, cost: CostModel, count: int, pool: int, rng: np.random.Generator
    ) -> list[Candidate]:
        good = Random().propose(history, cost, count, pool, rng)
        return [Candidate(c.sketch, tuple(1 << 20 for _ in c.row)) if i % 2 else c for i, c in enumerate(good)]


def test_what_candidates_are_checked_with_is_kept_for_as_many_tasks_as_there_is_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tasks = small.two_tasks()
    made, _, _ = tuner(tasks, Random(), Roofline())
    asked: list[str] = []

    def reference(task: Task) -> Reference:
        asked.append(task.key)
        return Reference(task.key, {"w": np.zeros(100, np.uint8)}, (Case({"x": np.zeros(20, np.uint8)}, {}, {}),))

    made._make_reference = reference
    one, other = (state.task for state in made.states)
    for room, made_again in ((240, []), (239, [one.key, other.key, one.key])):
        monkeypatch.setattr("pipeline.search.tuner.REFERENCE_BYTES", room)
        made._references.clear()
        asked.clear()
        for task in (one, other, one, one, other, one):
            assert made._reference(task).task_id == task.key
        assert asked == [one.key, other.key, *made_again]


def test_an_invalid_candidate_is_counted_and_never_measured() -> None:
    made, builder, _ = tuner(small.gmm(), Breaking(), Roofline(), trials=12)
    run(made)
    assert made.invalid > 0
    assert made.trials == 12
    assert not any(str(1 << 20) in line for line in builder.asked)


class Interrupting:
    """A runner in which the user presses Ctrl-C at the n-th batch."""

    def __init__(self, inner: object, at: int) -> None:
        self.inner, self.left = inner, at

    def run(self, built: Sequence[Built], reference: Reference, best_ns: float | None = None) -> list[MeasureResult]:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt
        return self.inner.run(built, reference, best_ns)  # type: ignore[attr-defined]

    def remeasure(
        self, built: Sequence[Built], reference: Reference, rounds: int, *, cold: bool = False
    ) -> list[MeasureResult]:
        return self.inner.remeasure(built, reference, rounds, cold=cold)  # type: ignore[attr-defined]


@pytest.mark.parametrize("batch", [1, 2, 3])
def test_an_interrupt_ends_the_search_with_the_best_so_far(batch: int, store: Store) -> None:
    made, _, runner = tuner(small.two_tasks(), Random(), Roofline(), store=store, failing=0)
    made._runner = Interrupting(runner, batch)  # type: ignore[assignment]
    run(made)
    assert made.interrupted
    assert made.trials < 24
    assert len(store.everything()) == made.trials
    assert all(made.chosen(state) is not None for state in made.states), "each task has a kernel all the same"


def test_an_interrupt_while_tasks_get_their_first_kernel_leaves_none_without(store: Store) -> None:
    """The budget was smaller than the number of tasks. A second interrupt ends it."""
    made, _, runner = tuner(small.two_tasks(), Random(), Roofline(), store=store, failing=0, trials=0)
    made._runner = Interrupting(runner, 1)  # type: ignore[assignment]
    run(made)
    assert made.interrupted and all(made.chosen(state) is not None for state in made.states)
    made, _, runner = tuner(small.two_tasks(), Random(), Roofline(), failing=0, trials=0)
    made._runner = Interrupting(runner, 1)  # type: ignore[assignment]
    made.interrupted = True
    with pytest.raises(KeyboardInterrupt):
        made.ensure()


def test_the_streams_of_chance_differ_by_name_and_by_seed() -> None:
    drawn = {tuple(stream(seed, name).integers(1 << 30, size=4)) for seed in (0, 1) for name in ("a", "b")}
    assert len(drawn) == 4
    assert stream(3, "a").integers(1 << 30) == stream(3, "a").integers(1 << 30)


def test_a_builder_gets_programs_without_free_parameters() -> None:
    seen: list[MeasureRequest] = []
    made, builder, _ = tuner(small.gmm(), Random(), Roofline(), trials=6)
    inner = builder.build
    builder.build = lambda requests: (seen.extend(requests), inner(requests))[1]  # type: ignore[method-assign]
    run(made)
    assert len(seen) == 6
    assert all(request.program.params == () for request in seen)  # type: ignore[attr-defined]


def with_an_option(seconds: float, **given: object) -> tuple[Tuner, list[float]]:
    """Two tasks, and a third that could take the place of both: it is the first one again, slower or faster."""
    wholes: list[float] = []
    made, _, _ = tuner(small.two_tasks(), Random(), Roofline(), failing=0, **given)  # type: ignore[arg-type]
    first = made.states[0]
    option = make_state(
        first.task, 1, small.sketches(first.task), small.TARGET, begins=["k"] * len(first.traces), optional=True
    )
    made.states.append(option)
    made._rngs.append(stream(0, "option"))

    def whole(bests: Sequence[float]) -> float:
        wholes.append(min(bests[0] + bests[1], bests[2] * seconds))
        return wholes[-1]

    made._whole = whole
    return made, wholes


def test_what_is_optional_waits_for_what_is_needed() -> None:
    made, _ = with_an_option(1.0, trials=18)
    order: list[str] = []
    inner = made._batch
    made._batch = lambda number, count=None: (order.append(number), inner(number, count))[1]  # type: ignore
    run(made)
    assert set(order[:2]) == {0, 1} and set(order[2:]) == {2}


def test_an_option_is_given_no_kernel_where_the_budget_has_not_reached_it() -> None:
    made, _ = with_an_option(1.0, trials=1)
    run(made)
    assert made.states[0].trials and made.states[1].trials and not made.states[2].trials
    assert made.total < float("inf")


@pytest.mark.parametrize(("seconds", "first"), [(None, 12), (1e6, 12), (12.0, 10), (0.01, 8)])
def test_where_time_is_short_a_large_task_begins_with_few_candidates_and_an_option_with_all(
    seconds: float | None, first: int
) -> None:
    """Three tasks share the time, and half of each share goes to the data; a candidate takes 0.1 s and 30 rooflines."""
    made, _ = with_an_option(1.0, batch=12)
    made._budget = replace(made._budget, trials=None, seconds=seconds)
    for state in made.states:
        state.roofline = 0.1 / 30
    assert [made._affordable(state) for state in made.states] == [first, first, 12]
    made.states[0].bests.append(1.0)
    assert made._affordable(made.states[0]) == 12, "a later batch is a whole one"


def test_an_option_that_cannot_win_any_more_is_left_alone() -> None:
    hopeless, _ = with_an_option(1000.0, trials=72)
    run(hopeless)
    assert hopeless.states[2].trials == 6, "one batch"
    close, _ = with_an_option(2.0, trials=72)
    run(close)
    assert close.states[2].trials >= 12, "a second batch may do better"
    promising, _ = with_an_option(0.5, trials=72)
    run(promising)
    assert promising.states[2].trials > 12


def test_an_option_is_cut_where_it_is_far_slower_than_what_it_replaces() -> None:
    made, _ = with_an_option(1.0, trials=72)
    cuts: dict[str, list[float | None]] = {"needed": [], "option": []}
    inner_run, inner_batch = made._runner.run, made._batch
    now = ["needed"]

    def batch(number: int, count: int | None = None) -> None:
        now[0] = "option" if number == 2 else "needed"
        inner_batch(number, count)

    def measured(built: Sequence[Built], reference: Reference, best_ns: float | None = None) -> list[MeasureResult]:
        cuts[now[0]].append(best_ns)
        return inner_run(built, reference, best_ns)

    made._batch, made._runner.run = batch, measured  # type: ignore[method-assign]
    run(made)
    assert cuts["needed"][:2] == [None, None], "nothing is known of the first batches"
    replaced = sum(state.bests[0] for state in made.states[:2])
    assert cuts["option"][0] == pytest.approx(replaced * 1e9)


def test_what_the_module_takes_is_what_it_is_told() -> None:
    made, wholes = with_an_option(1.0, trials=24)
    run(made)
    bests = [state.best for state in made.states]
    assert made.total == min(bests[0] + bests[1], bests[2]) and wholes
    assert made.untuned == sum(state.first_seconds or 0.0 for state in made.states[:2])


def test_a_sketch_that_begins_elsewhere_is_another_one_in_the_store(store: Store) -> None:
    made, *_ = tuner(small.gmm(), Random(), Roofline(), store=store, trials=6)
    run(made)
    task = made.states[0].task
    others = make_state(task, 1, small.sketches(task), small.TARGET, begins=["k"] * len(made.states[0].traces))
    assert not set(others.traces) & set(made.states[0].traces)
    again, *_ = tuner(small.gmm(), Random(), Roofline(), store=store, trials=6)
    again.states = [others]
    again.resume()
    assert others.resumed == 0, "what was measured of the ordinary sketches says nothing of these"
    assert [json.loads(trace)[1:] for trace in others.traces] == [json.loads(t) for t in made.states[0].traces]
