"""Tests of sketches and histories as a search sees them."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.ir.interpret import interpret
from pipeline.search.candidates import Candidate, History, Observation
from pipeline.search.nest_model import FEATURES
from pipeline.space.lower import lower
from tests.rules.schedule.sketches import feeds
from tests.search import spaces as small


def told(*seconds: float | None) -> History:
    """A history of candidates that are not looked at, with these times."""
    observations = [Observation(Candidate(0, (i,)), time) for i, time in enumerate(seconds)]
    return History(small.spaces(small.gmm()), observations)


def test_the_best_is_the_fastest_that_succeeded_and_the_earliest_of_equals() -> None:
    best = told(None, 3.0, 2.0, 2.0, None).best()
    assert best is not None and best.candidate.row == (2,)


@pytest.mark.parametrize("seconds", [(), (None,), (None, None)])
def test_where_nothing_succeeded_there_is_no_best(seconds: tuple[None, ...]) -> None:
    assert told(*seconds).best() is None
    assert told(*seconds).ranked() == []


def test_candidates_are_ranked_by_time_and_failures_left_out() -> None:
    assert [o.candidate.row for o in told(3.0, None, 1.0, 2.0).ranked()] == [(2,), (3,), (0,)]


def test_what_failed_counts_as_seen() -> None:
    assert told(None, 1.0).seen() == {(0, (0,)), (0, (1,))}


def test_no_rows_have_no_times_and_no_features() -> None:
    for space in small.spaces(small.gmm()):
        seconds, features = space.analyse(np.empty((0, len(space.space.columns)), np.int64))
        assert seconds.shape == (0,) and features.shape == (0, len(FEATURES))


def test_the_program_of_a_row_computes_the_task() -> None:
    (task, *_) = small.parts(small.gmm()).tasks
    program = lower(task.graph, task.name, task.constants)
    given = feeds(program, 0)
    for space in small.spaces(small.gmm()):
        (row,) = space.draw(1, np.random.default_rng(0))
        found = interpret(space.program(row), given)
        for name, wanted in interpret(program, given).items():
            assert np.array_equal(found[name], wanted)
