"""The contest between tasks and alternatives: measured time decides, and a wrong µGraph leaves before it is used."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from pipeline.search.contest import LESS, MORE, MORE_WEIGHTS, contest
from pipeline.space.generate import generate
from pipeline.space.lower import lower
from pipeline.space.partition import partition
from pipeline.superopt.stage import Alternative, look_for_alternatives
from tests.search.contests import entered, measure, sketch_of
from tests.space.partition_runs import assert_whole
from tests.superopt.model_graphs import TARGET
from tests.superopt.stage_cases import RULES, WIDTH, Notes, Search, effort, fused, normalised, unlooped


def test_what_is_needed_is_no_option_and_an_alternative_is_one() -> None:
    made = entered(fused())
    assert [state.optional for state in made.states] == [False, False, True]
    assert made.states[2].weight == 1 and [one.task for one in made.fused] == [2]
    assert all(trace.startswith('[{"kind":"Begin","key":"') for trace in made.states[2].traces)
    assert not any("Begin" in trace for state in made.states[:2] for trace in state.traces)


def test_the_faster_side_is_used() -> None:
    made = entered(fused())
    measure(made, 0, 4.0)
    measure(made, 1, 3.0)
    assert [state.task.name for state in made.decided()[1]] == [one.task.name for one in made.states[:2]]
    assert made.seconds([4.0, 3.0, math.inf]) == 7.0
    measure(made, 2, 6.5)
    parts, states = made.decided()
    assert states == [made.states[2]] and len(parts.instances) == 1
    assert_whole(made.graph, parts)
    (entrant,) = made.entrants
    assert (made.fused_seconds(entrant), made.ordinary_seconds(entrant)) == (6.5, 7.0)
    assert made.chosen_uses() == {2: 1} and [e for e, _ in made.winners()] == [entrant]


def test_a_slower_alternative_or_one_that_failed_is_not_used() -> None:
    for seconds in (7.5, None):
        made = entered(fused())
        for number, one in enumerate((4.0, 3.0, seconds)):
            measure(made, number, one)
        assert len(made.decided()[1]) == 2 and made.winners() == [] and 2 not in made.chosen_uses()


def test_before_anything_is_measured_the_module_takes_for_ever() -> None:
    made = entered(fused())
    assert made.seconds([state.best for state in made.states]) == math.inf
    measure(made, 2, 5.0)
    assert made.seconds([state.best for state in made.states]) == 5.0, "the alternative does all that there is"


def test_the_winner_is_tested_at_its_full_extents() -> None:
    made = entered(fused())
    for number, one in enumerate((4.0, 3.0, 5.0)):
        measure(made, number, one)
    made.confirm(np.random.default_rng(0))
    assert [proof.verdict for proof in made.full.values()] == ["equal"]
    assert made.chosen_uses() == {2: 1}


def test_a_wrong_winner_leaves_and_the_next_best_takes_its_place() -> None:
    made = entered(fused(2.0 / WIDTH), unlooped())
    measure(made, 0, 4.0)
    measure(made, 1, 3.0)
    measure(made, 2, 5.0, sketch_of(made, 0))
    measure(made, 2, 6.0, sketch_of(made, 1))
    made.confirm(np.random.default_rng(0))
    assert {graph: proof.verdict for (_, graph), proof in made.full.items()} == {0: "different", 1: "equal"}
    assert made.states[2].best == 6.0
    assert [graph for _, graph in made.winners()] == [1]


def test_where_every_winner_is_wrong_the_ordinary_tasks_are_used() -> None:
    made = entered(fused(2.0 / WIDTH))
    for number, one in enumerate((4.0, 3.0, 5.0)):
        measure(made, number, one)
    made.confirm(np.random.default_rng(0))
    assert made.winners() == [] and len(made.decided()[1]) == 2


def test_an_alternative_to_one_task_gives_that_task_more_sketches() -> None:
    """The whole graph as one task of a partition."""
    graph = normalised()
    ordinary = partition(graph)
    found = look_for_alternatives(graph, ordinary, TARGET, RULES, effort(), Search((fused(),)), Notes())
    (one,) = found.alternatives
    whole = replace(
        ordinary, tasks=(one.subprogram.task,), instances=(replace(one.subprogram.uses[0], task=0),)
    )  # fmt: skip
    own = generate(lower(one.subprogram.task.graph, "whole"), RULES, TARGET)
    made = contest(graph, whole, [own], [one], TARGET)
    assert len(made.states) == 1 and made.fused == [] and not made.states[0].optional
    (entrant,) = made.entrants
    assert entrant.inside and entrant.first == len(own)
    assert len(made.states[0].traces) == len(own) + len(one.sketches)
    measure(made, 0, 3.0, 0)
    measure(made, 0, 2.0, entrant.first)
    assert (made.fused_seconds(entrant), made.ordinary_seconds(entrant)) == (2.0, 3.0)
    assert made.winners() == [(entrant, 0)]
    measure(made, 0, 1.0, 0)
    assert made.winners() == []


def test_what_has_nothing_to_tune_does_not_enter() -> None:
    graph = normalised()
    found = look_for_alternatives(graph, partition(graph), TARGET, RULES, effort(), Search(), Notes())
    assert [one.sketches for one in found.alternatives] == [()]
    made = contest(graph, partition(graph), [(), ()], found.alternatives, TARGET)
    assert len(made.states) == 2 and made.entrants == [] and isinstance(found.alternatives[0], Alternative)


@pytest.mark.parametrize("weights", [(1, 1), (3, 2)])
def test_the_weights_of_the_tasks_are_those_in_the_module(weights: tuple[int, int]) -> None:
    made = entered(fused())
    for state, weight in zip(made.states, weights, strict=False):
        state.weight = weight
    for number, one in enumerate((4.0, 3.0, 9.0)):
        measure(made, number, one)
    assert [state.weight for state in made.decided()[1]] == [1, 1]


@pytest.mark.parametrize(
    ("seconds", "near"),
    [(0.5, []), (0.67, []), (0.69, [(2, MORE)]), (0.72, [(2, LESS)]), (0.75, []), (None, [])],
)
def test_the_other_choice_is_near_where_a_little_would_lead_to_it(
    seconds: float | None, near: list[tuple[int, float]]
) -> None:
    made = entered(fused())
    for number, one in enumerate((0.4, 0.3, seconds)):
        measure(made, number, one)
    assert made.near() == near


@pytest.mark.parametrize(("seconds", "near"), [(0.6, []), (0.62, [(2, MORE_WEIGHTS)]), (0.75, [])])
def test_what_is_used_and_reads_weights_is_near_for_longer(
    seconds: float, near: list[tuple[int, float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its weights come from memory in a module, and maybe twice."""
    made = entered(fused())
    for number, one in enumerate((0.4, 0.3, seconds)):
        measure(made, number, one)
    monkeypatch.setattr("pipeline.search.contest.weight_bytes", lambda task: TARGET.core_cache + 1)
    assert made.near() == near


@pytest.mark.parametrize("seconds", [0.69, 0.72])
def test_the_factor_of_a_near_choice_leads_to_it(seconds: float) -> None:
    made = entered(fused())
    for number, one in enumerate((0.4, 0.3, seconds)):
        measure(made, number, one)
    used = bool(made.winners())
    made.factors = dict(made.near())
    assert bool(made.winners()) is not used


def test_where_nothing_else_was_measured_no_other_choice_is_near() -> None:
    made = entered(fused())
    measure(made, 2, 1.0)
    assert made.near() == []
