"""Tests of the tuning loop where times are a model's: they stay apart from measured ones, and lead the way to those."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.measurement.protocol import Built, MeasureResult, Reference
from pipeline.search.random import Random
from pipeline.search.roofline import Roofline
from pipeline.search.tuner import Tuner
from pipeline.store.store import Store
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
