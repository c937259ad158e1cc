"""Tests of the tuning loop where times are a model's: they stay apart from measured ones, and lead the way to those."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.measurement.host import fingerprint
from pipeline.measurement.protocol import Built, MeasureResult, Reference
from pipeline.search.random import Random
from pipeline.search.roofline import Roofline
from pipeline.search.tuner import Tuner
from pipeline.store.record import candidate_key
from pipeline.store.store import Store
from tests.known_gpus import gpu
from tests.search import spaces as small
from tests.search.formula_measurement import FormulaRunner, keys, tuner


class PredictingRunner(FormulaRunner):
    """The times of the formula as predictions."""

    def run(self, built: Sequence[Built], reference: Reference, best_ns: float | None = None) -> list[MeasureResult]:
        return [replace(result, predicted=True) for result in super().run(built, reference, best_ns)]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(f"sqlite:///{tmp_path}/store.sqlite") as made:
        yield made


def run(store: Store, *, predicted: bool, trials: int = 12, batch: int = 6, seed: int = 0) -> Tuner:
    made, *_ = tuner(small.two_tasks(), Random(), Roofline(), store=store, trials=trials, batch=batch, seed=seed)
    made._predicted = predicted
    made._runner = PredictingRunner() if predicted else FormulaRunner()
    made.resume()
    made.run()
    return made


def test_records_say_whether_they_are_predicted(store: Store) -> None:
    run(store, predicted=True)
    assert {record.predicted for record in store.everything()} == {True}
    run(store, predicted=False)
    assert [record.predicted for record in store.everything()] == [True] * 12 + [False] * 12


def test_a_run_resumes_what_is_of_its_own_kind(store: Store) -> None:
    run(store, predicted=True)
    measured = run(store, predicted=False)
    assert measured.trials == 12
    assert all(state.resumed == 0 for state in measured.states)
    again = run(store, predicted=True)
    assert again.trials == 0
    assert sum(state.resumed for state in again.states) == 12


def test_what_a_model_chose_is_measured_first_the_best_first(store: Store) -> None:
    predicted = run(store, predicted=True)
    measured = run(store, predicted=False, seed=1)
    for before, after in zip(predicted.states, measured.states, strict=True):
        best = [observation.candidate.key for observation in before.history.ranked()]
        assert keys(after.history)[:3] == best[:3], "half of a batch of six"


def test_seeds_are_of_this_gpu_first_then_of_its_architecture_then_of_others(store: Store) -> None:
    """Each machine knows other candidates; the farther it is, the faster are they there."""
    ours, slower, another = (
        fingerprint(target) for target in (gpu("a100"), replace(gpu("a100"), clock_ghz=1.0), gpu("h100"))
    )
    run(store, predicted=True, trials=24, batch=12)
    known = store.everything()
    places = {}
    with Store("sqlite://") as apart:
        for number, record in enumerate(record for record in known if record.latency_ns is not None):
            far = number % 3
            places[record.candidate_key] = far
            apart.add(
                [replace(record, target=(ours, slower, another)[far], latency_ns=(record.latency_ns or 0) / 9**far)]
            )
        made, *_ = tuner(small.two_tasks(), Random(), Roofline(), store=apart, target_key=ours)
        made.recall()
    seen = set()
    for state in made.states:
        times = {record.candidate_key: record.latency_ns for record in known}
        keys_ = [
            candidate_key(
                state.task.key, state.traces[seed.sketch],
                dict(zip(state.history.spaces[seed.sketch].space.columns, seed.row, strict=True)),
            )
            for seed in state.seeds
        ]  # fmt: skip
        order = [(places[key], times[key]) for key in keys_]
        assert order == sorted(order)
        seen.add(tuple(dict.fromkeys(far for far, _ in order)))
    assert (0, 1, 2) in seen


def test_what_was_measured_is_no_seed_of_a_prediction(store: Store) -> None:
    run(store, predicted=False)
    predicted = run(store, predicted=True, seed=1)
    assert all(state.seeds == () for state in predicted.states)
    fresh = run(Store("sqlite://"), predicted=True, seed=1)
    assert [keys(state.history) for state in predicted.states] == [keys(state.history) for state in fresh.states]


def test_hints_of_the_same_kind_come_before_those_of_the_other(store: Store) -> None:
    run(store, predicted=True)
    run(store, predicted=False, seed=1)
    made, *_ = tuner(small.two_tasks(), Random(), Roofline(), store=store)
    made.recall()
    for state in made.states:
        kinds = {
            (record.sketch, tuple(sorted(record.values.items()))): record.predicted
            for record in store.records(state.task.key, "here", "1", predicted=False)
        }
        first = state.history.hints[0]
        columns = state.history.spaces[first.sketch].space.columns
        named = (state.traces[first.sketch], tuple(sorted(zip(columns, first.row, strict=True))))
        assert kinds[named] is False
