"""Tests of the prover on mutated µGraphs: none is judged otherwise than floating point does."""

from __future__ import annotations

import numpy as np
import pytest

from tests.superopt.hand_mugraphs import HAND
from tests.superopt.mutations import judge_many, main, mutate, refuted

COUNT = 1500


def test_floating_point_agrees_with_the_verdict_on_every_mutant() -> None:
    counts, defects = judge_many(range(COUNT))
    assert not defects
    assert counts["different, refuted in float64"] > COUNT // 2
    assert counts["equal, agrees in float64"] > 10  # swapped operands of what commutes, say


@pytest.mark.parametrize("make", HAND, ids=lambda make: make.__name__)
def test_floating_point_does_not_refute_what_is_right(make: object) -> None:
    assert callable(make)
    case = make()
    assert not refuted(case, case.mugraph, np.random.default_rng(0))


def test_a_mutation_changes_one_thing_and_leaves_the_original() -> None:
    case = HAND[0]()
    before = case.mugraph
    for seed in range(50):
        kind, mutant = mutate(case.mugraph, np.random.default_rng(seed))
        assert kind and mutant != before
    assert case.mugraph == before == HAND[0]().mugraph


def test_the_long_command_runs_in_processes_and_succeeds_without_defects(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["20", "--first", "7"]) == 0
    assert "0 defects" in capsys.readouterr().out
