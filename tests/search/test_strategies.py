"""Every strategy of conf/search meets one contract: valid, new and different candidates, the same ones for one seed."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import yaml
from numpy.typing import NDArray

from pipeline.ir.graph import Graph
from pipeline.ir.poly import Poly
from pipeline.registry import Component, Registry
from pipeline.schedule.constraint import AtMost
from pipeline.schedule.sketch import Sketch
from pipeline.schedule.variables import Rows
from pipeline.search.candidates import Candidate, History, Observation, SketchSpace
from pipeline.search.cost_model import CostModel
from pipeline.search.evolutionary import Evolutionary
from pipeline.search.replay import Replay
from pipeline.search.roofline import Roofline
from pipeline.search.strategy import Strategy
from tests.search import spaces as small

FILES = sorted((small.CONF / "search").glob("*.yaml"))
POOL = 128
every = pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
graphs = pytest.mark.parametrize("graph", [small.gmm(), small.softmax()], ids=["gmm", "softmax"])


def made(path: Path) -> Strategy:
    """A strategy as the configuration makes it."""
    node = yaml.safe_load(path.read_text(encoding="utf-8"))["strategy"]
    return Registry().build(Strategy, Component.model_validate(node), "search.strategy")


def proposed(
    strategy: Strategy, history: History, count: int, seed: int = 0, cost: CostModel | None = None
) -> list[Candidate]:
    return strategy.propose(history, cost or Roofline(), count, POOL, np.random.default_rng(seed))


def observe(history: History, candidates: list[Candidate]) -> None:
    """As if they had been measured: the more columns add up to, the slower; every fifth one fails."""
    for candidate in candidates:
        seconds = None if len(history.observations) % 5 == 4 else 1e-6 * (1 + sum(candidate.row))
        history.observations.append(Observation(candidate, seconds))


@every
@graphs
def test_candidates_are_valid_and_new_and_different(path: Path, graph: Graph) -> None:
    history, strategy = small.history(graph), made(path)
    rng = np.random.default_rng(3)
    for _ in range(4):
        candidates = strategy.propose(history, Roofline(), 7, POOL, rng)
        assert len(candidates) <= 7
        keys = [candidate.key for candidate in candidates]
        assert len(set(keys)) == len(keys)
        assert not set(keys) & history.seen()
        for candidate in candidates:
            space = history.spaces[candidate.sketch].space
            row = np.array(candidate.row, np.int64).reshape(1, -1)
            assert row.shape[1] == len(space.columns)
            assert space.valid(row).all()
            assert (space.repair(row) == row).all(), "a variable does not allow this value"
        observe(history, candidates)


@every
def test_as_many_candidates_come_as_were_asked_for_while_the_space_has_them(path: Path) -> None:
    for count in (1, 2, 5, 16):
        assert len(proposed(made(path), small.history(small.gmm()), count)) == count


@every
def test_a_space_is_proposed_whole_and_then_nothing_more(path: Path) -> None:
    """Tiles of a 2 x 3 product are few enough to be counted."""
    history, strategy = small.history(small.gmm(2, 3, 2)), made(path)
    rng = np.random.default_rng(0)
    every_row = {
        (space.number, tuple(int(v) for v in row))
        for space in history.spaces for row in space.space.draw(3000, np.random.default_rng(1))
    }  # fmt: skip
    assert 4 < len(every_row) < 100
    for _ in range(200):
        candidates = strategy.propose(history, Roofline(), 8, POOL, rng)
        if not candidates:
            break
        observe(history, candidates)
    assert history.seen() == every_row


@every
def test_a_sketch_without_parameters_is_proposed_once(path: Path) -> None:
    history, strategy = small.history(small.without_parameters()), made(path)
    (only,) = proposed(strategy, history, 8)
    assert only.row == ()
    observe(history, [only])
    assert proposed(strategy, history, 8, seed=1) == []


@every
def test_a_space_in_which_nothing_is_valid_gives_nothing_and_harms_no_other(path: Path) -> None:
    first = small.spaces(small.gmm())[0].sketch
    symbol = Poly.symbol(first.variables[0].symbols[0])
    impossible = first.require(AtMost("impossible", symbol, 0))
    alone = History((SketchSpace(0, impossible, small.TARGET),))
    assert proposed(made(path), alone, 4) == []
    both = History((*alone.spaces, SketchSpace(1, first, small.TARGET)))
    assert {candidate.sketch for candidate in proposed(made(path), both, 4)} == {1}


@every
def test_a_task_without_sketches_gives_nothing(path: Path) -> None:
    assert proposed(made(path), History(()), 4) == []


@every
@graphs
def test_the_same_seed_gives_the_same_candidates_in_the_same_order(path: Path, graph: Graph) -> None:
    def run() -> list[tuple[int, tuple[int, ...]]]:
        history, strategy, rng = small.history(graph), made(path), np.random.default_rng(11)
        for _ in range(3):
            observe(history, strategy.propose(history, Roofline(), 6, POOL, rng))
        return [observation.candidate.key for observation in history.observations]

    assert run() == run()


@every
def test_another_seed_gives_other_candidates(path: Path) -> None:
    history = small.history(small.gmm(1021, 509, 127))
    keys = [{c.key for c in proposed(made(path), history, 8, seed=seed)} for seed in range(3)]
    assert not keys[0] == keys[1] == keys[2]


@every
def test_a_strategy_leaves_the_history_as_it_is(path: Path) -> None:
    history = small.history(small.gmm())
    observe(history, proposed(made(path), history, 6))
    before = [(o.candidate.key, o.seconds) for o in history.observations]
    proposed(made(path), history, 6)
    assert [(o.candidate.key, o.seconds) for o in history.observations] == before


def test_every_strategy_of_the_package_has_a_configuration() -> None:
    named = {yaml.safe_load(path.read_text(encoding="utf-8"))["strategy"]["_target_"] for path in FILES}
    assert named == {
        "pipeline.search.evolutionary.Evolutionary", "pipeline.search.random.Random", "pipeline.search.replay.Replay",
    }  # fmt: skip


def test_breeding_finds_faster_candidates_than_chance() -> None:
    """By the model that ranks them: the best of evolution is at least as good as the best of as many draws."""
    (space, *_) = small.spaces(small.gmm(512, 512, 512))
    history = History((space,))
    rows = space.space.draw(POOL, np.random.default_rng(5))
    drawn = Roofline().predict(space, rows).min()
    best = proposed(Evolutionary(), history, 1, seed=5)[0]
    assert Roofline().predict(space, np.array([best.row], np.int64))[0] <= drawn


def test_the_batch_of_a_task_with_one_sketch_is_its_best_ones() -> None:
    """No share is kept for sketches that are not there: all but the random share are the best of what was bred."""
    (space, *_) = small.spaces(small.gmm(512, 512, 512))
    greedy = proposed(Evolutionary(explore=0.0), History((space,)), 12)
    seconds = Roofline().predict(space, np.array([c.row for c in greedy], np.int64))
    assert (np.diff(seconds) >= 0).all()


def test_no_two_of_a_batch_differ_in_one_variable_alone() -> None:
    """What the model has wrong of one of them it has wrong of all."""
    (space, *_) = small.spaces(small.gmm(512, 512, 512))
    rows = [c.row for c in proposed(Evolutionary(explore=0.0), History((space,)), 12)]
    assert len(rows) == 12
    assert min(space.space.differing(a, b) for a, b in combinations(rows, 2)) >= 2


def test_what_was_good_elsewhere_joins_the_population() -> None:
    """A cost model that likes that one candidate: among millions it is found only because it was told."""
    (space, *_) = small.spaces(small.gmm(1021, 509, 127))
    told = Candidate(0, tuple(int(v) for v in space.draw(1, np.random.default_rng(99))[0]))

    class Likes(Roofline):
        """Prefers one row to all others."""

        def predict(self, space: SketchSpace, rows: Rows) -> NDArray[np.float64]:
            return np.where((rows == np.array(told.row)).all(axis=1), 1e-12, 1.0)

    for hints, found in (((told,), True), ((), False)):
        history = History((space,), hints=hints)
        (best,) = proposed(Evolutionary(generations=0), history, 1, cost=Likes())
        assert (best.key == told.key) == found


def test_replay_offers_what_other_runs_found_before_anything_else() -> None:
    history = small.history(small.gmm())
    known = proposed(made(small.CONF / "search" / "random.yaml"), history, 3, seed=9)
    told = replace(history, hints=tuple(known))
    assert proposed(Replay(), told, 8) == known
    observe(told, known)
    assert not {c.key for c in proposed(Replay(), told, 8)} & {c.key for c in known}


def test_a_sketch_that_is_no_program_of_the_space_is_never_made() -> None:
    """Every candidate that is proposed can be instantiated: no parameter is left free."""
    history = small.history(small.gmm())
    for candidate in proposed(Evolutionary(), history, 8):
        program = history.spaces[candidate.sketch].program(np.array(candidate.row, np.int64))
        assert program.params == () and program.derived == ()
        assert isinstance(history.spaces[candidate.sketch].sketch, Sketch)
