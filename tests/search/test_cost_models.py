"""Every cost model of conf/cost_model meets one contract, whatever it has or has not learned."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml

from pipeline.ir.graph import Graph
from pipeline.registry import Component, Registry
from pipeline.schedule.variables import Rows
from pipeline.search.candidates import Candidate, History, Observation, SketchSpace
from pipeline.search.catboost_cost import CatboostCost
from pipeline.search.cost_model import CostModel
from pipeline.search.roofline import Roofline
from tests.search import spaces as small

FILES = sorted((small.CONF / "cost_model").glob("*.yaml"))
every = pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)


def made(path: Path, seed: int = 0) -> CostModel:
    """A cost model as the engine makes it: with the seed of the run."""
    component = Component.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    return Registry().build(CostModel, component, "cost_model", seed=seed)


def drawn(space: SketchSpace, count: int, seed: int = 0) -> Rows:
    return space.draw(count, np.random.default_rng(seed))


def observed(graph: Graph, *seconds: float | None, seed: int = 4) -> History:
    """The first sketch's candidates, with these times."""
    history = small.history(graph)
    rows = drawn(history.spaces[0], max(len(seconds), 1), seed)
    for row, time in zip(rows, seconds, strict=False):
        history.observations.append(Observation(Candidate(0, tuple(int(v) for v in row)), time))
    return history


def check(cost: CostModel, graph: Graph) -> list[np.ndarray]:
    """Predictions for all sketches: one number a row, finite and positive."""
    predictions = []
    for space in small.spaces(graph):
        for count in (0, 1, 50):
            seconds = cost.predict(space, drawn(space, count, seed=count)[:count])
            assert isinstance(seconds, np.ndarray) and seconds.dtype == np.float64
            assert seconds.shape == (count,)
            assert np.isfinite(seconds).all() and (seconds > 0).all()
            predictions.append(seconds)
    return predictions


HISTORIES: dict[str, tuple[float | None, ...]] = {
    "nothing": (),
    "one": (1e-5,),
    "one failure": (None,),
    "failures alone": (None,) * 20,
    "equal times": (1e-5,) * 20,
    "few": (1e-5, 2e-5, None),
    "many": tuple(1e-6 * (1 + i) for i in range(30)),
    "times of all sizes": tuple(10.0**-i for i in range(12)),
    "times of nothing": (0.0, 1e-300) * 10,
}


@every
@pytest.mark.parametrize("name", HISTORIES)
@pytest.mark.parametrize("graph", [small.gmm(), small.softmax()], ids=["gmm", "softmax"])
def test_predictions_are_finite_and_positive_whatever_was_learned(path: Path, name: str, graph: Graph) -> None:
    cost = made(path)
    check(cost, graph)
    cost.learn(observed(graph, *HISTORIES[name]))
    check(cost, graph)
    check(cost, small.gmm(8, 9, 10))


@every
def test_the_same_candidate_may_be_learned_twice(path: Path) -> None:
    cost = made(path)
    history = observed(small.gmm(), *(1e-5 * (1 + i % 3) for i in range(12)))
    history.observations += history.observations
    cost.learn(history)
    cost.learn(history)
    check(cost, small.gmm())


@every
def test_a_history_that_grows_may_be_learned_again_and_again(path: Path) -> None:
    cost, history = made(path), small.history(small.gmm())
    for number, row in enumerate(drawn(history.spaces[0], 12)):
        history.observations.append(Observation(Candidate(0, tuple(int(v) for v in row)), 1e-6 * (1 + number)))
        cost.learn(history)
    check(cost, small.gmm())


@every
def test_two_models_with_one_seed_predict_the_same(path: Path) -> None:
    def run() -> list[np.ndarray]:
        cost = made(path, seed=7)
        before = check(cost, small.gmm())
        cost.learn(observed(small.gmm(), *HISTORIES["many"]))
        cost.learn(observed(small.softmax(), 1e-6))
        return before + check(cost, small.gmm())

    for one, other in zip(run(), run(), strict=True):
        assert np.array_equal(one, other)


@every
def test_predicting_changes_no_history_and_no_rows(path: Path) -> None:
    cost, history = made(path), observed(small.gmm(), *HISTORIES["few"])
    rows = drawn(history.spaces[0], 20)
    before = rows.copy()
    cost.learn(history)
    cost.predict(history.spaces[0], rows)
    assert np.array_equal(rows, before)
    assert len(history.observations) == 3


def test_every_cost_model_of_the_package_has_a_configuration() -> None:
    named = {yaml.safe_load(path.read_text(encoding="utf-8"))["_target_"] for path in FILES}
    assert named == {
        "pipeline.search.catboost_cost.CatboostCost", "pipeline.search.random_cost.RandomCost",
        "pipeline.search.roofline.Roofline",
    }  # fmt: skip


def test_what_was_measured_corrects_the_analytic_model() -> None:
    """A machine on which the largest register tiles are slow: the trees learn it, the roofline cannot."""
    (space, *_) = small.spaces(small.gmm(256, 256, 256))
    rows = space.space.unique(drawn(space, 160))
    truth = Roofline().predict(space, rows) * (1.0 + 3.0 * (rows.prod(axis=1) > np.median(rows.prod(axis=1))))
    learned, unseen = rows[:100], rows[100:]
    history = History((space,))
    for row, seconds in zip(learned, truth[:100], strict=True):
        history.observations.append(Observation(Candidate(0, tuple(int(v) for v in row)), float(seconds)))
    cost = CatboostCost()
    cost.learn(history)
    error = np.abs(np.log(cost.predict(space, unseen) / truth[100:])).mean()
    assert error < np.abs(np.log(Roofline().predict(space, unseen) / truth[100:])).mean() / 2


def test_what_failed_is_predicted_to_be_slow() -> None:
    (space, *_) = small.spaces(small.gmm(256, 256, 256))
    rows = space.space.unique(drawn(space, 120))
    analytic = Roofline().predict(space, rows)
    bad = rows[:, 0] > np.median(rows[:, 0])
    history = History((space,))
    for row, seconds, fails in zip(rows, analytic, bad, strict=True):
        time = None if fails else float(seconds)
        history.observations.append(Observation(Candidate(0, tuple(int(v) for v in row)), time))
    cost = CatboostCost()
    cost.learn(history)
    ratio = cost.predict(space, rows) / analytic
    assert np.median(ratio[bad]) > 2 * np.median(ratio[~bad])


def test_what_others_taught_does_not_move_a_task_that_was_not_measured() -> None:
    cost, (fresh, *_) = CatboostCost(), small.spaces(small.softmax())
    rows = drawn(fresh, 20)
    cost.learn(observed(small.gmm(), *HISTORIES["many"]))
    np.testing.assert_array_equal(cost.predict(fresh, rows), Roofline().predict(fresh, rows))
