"""Tests of the task scheduler: what is tuned next, and when there is nothing left to gain."""

from __future__ import annotations

import math
from itertools import pairwise

import hypothesis.strategies as st
from hypothesis import given

from pipeline.search.task_scheduler import Progress, choose, converged, expected_gain

PATIENCE, GAIN = 3, 0.01
times = st.one_of(st.floats(1e-9, 10.0), st.just(math.inf))


@st.composite
def progresses(draw: st.DrawFn) -> Progress:
    """Times after each batch never grow: they are the best so far."""
    bests = sorted(draw(st.lists(times, max_size=8)), reverse=True)
    return Progress(draw(st.integers(1, 50)), draw(st.floats(1e-9, 1.0)), tuple(bests))


def test_the_heaviest_task_comes_first() -> None:
    tasks = [Progress(1, 2e-3, ()), Progress(12, 1e-3, ()), Progress(2, 1e-3, ())]
    assert choose(tasks, [0, 1, 2], PATIENCE, GAIN) == 1


def test_every_task_gets_a_batch_before_any_gets_two() -> None:
    tasks = [Progress(1000, 1e-3, (1.0,)), Progress(1, 1e-9, ())]
    assert choose(tasks, [0, 1], PATIENCE, GAIN) == 1


def test_the_task_that_still_gains_comes_before_the_one_that_does_not() -> None:
    tasks = [Progress(1, 1e-4, (4e-3, 4e-3, 4e-3)), Progress(1, 1e-4, (8e-3, 6e-3, 4e-3))]
    assert choose(tasks, [0, 1], PATIENCE, GAIN) == 1


def test_a_task_that_counts_more_often_comes_first() -> None:
    tasks = [Progress(1, 1e-4, (1e-3,)), Progress(12, 1e-4, (1e-3,))]
    assert choose(tasks, [0, 1], PATIENCE, GAIN) == 1


def test_a_task_without_any_success_comes_before_those_that_work() -> None:
    tasks = [Progress(100, 1e-4, (1e-3,)), Progress(1, 1e-4, (math.inf,))]
    assert choose(tasks, [0, 1], PATIENCE, GAIN) == 1


def test_what_gains_more_in_a_second_comes_first() -> None:
    slow = Progress(1, 1e-3, (4e-3,), batch=20.0)
    quick = Progress(1, 1e-3, (3e-3,), batch=2.0)
    assert expected_gain(slow) > expected_gain(quick)
    assert choose([slow, quick], [0, 1], PATIENCE, GAIN) == 1


def test_an_option_that_is_behind_is_worth_what_it_may_gain_beyond_that() -> None:
    gains = [expected_gain(Progress(1, 1e-3, (4e-3,), behind)) for behind in (0.0, 1e-4, 1e-3, 1e-2)]
    assert all(less < more for more, less in pairwise(gains))
    assert gains[-1] < 1e-3 * gains[0]


def test_equal_tasks_are_taken_in_their_order() -> None:
    tasks = [Progress(1, 1e-4, (1e-3,))] * 3
    assert choose(tasks, [0, 1, 2], PATIENCE, GAIN) == 0
    assert choose(tasks, [2, 1], PATIENCE, GAIN) == 1


def test_what_has_converged_is_left_alone() -> None:
    still = Progress(1, 1e-4, (1e-3,) * (PATIENCE + 1))
    assert converged(still, PATIENCE, GAIN)
    assert choose([still], [0], PATIENCE, GAIN) is None
    assert choose([still, Progress(1, 1e-9, (1e-3,))], [0, 1], PATIENCE, GAIN) == 1


def test_a_gain_within_the_last_batches_is_worth_going_on() -> None:
    assert not converged(Progress(1, 1e-4, (2e-3, 1e-3, 1e-3, 1e-3)), PATIENCE, GAIN)


def test_a_task_in_which_nothing_works_is_given_up_in_the_end() -> None:
    assert not converged(Progress(1, 1e-4, (math.inf,) * (3 * PATIENCE - 1)), PATIENCE, GAIN)
    assert converged(Progress(1, 1e-4, (math.inf,) * (3 * PATIENCE)), PATIENCE, GAIN)


def test_no_task_at_all_is_the_end() -> None:
    assert choose([], [], PATIENCE, GAIN) is None


@given(st.lists(progresses(), min_size=1, max_size=6), st.data())
def test_the_choice_is_an_open_task_or_the_end(tasks: list[Progress], data: st.DataObject) -> None:
    open_ = data.draw(st.lists(st.sampled_from(range(len(tasks))), unique=True))
    chosen = choose(tasks, open_, PATIENCE, GAIN)
    if chosen is None:
        assert all(converged(tasks[i], PATIENCE, GAIN) for i in open_)
    else:
        assert chosen in open_
        assert not tasks[chosen].bests or not converged(tasks[chosen], PATIENCE, GAIN)


@given(progresses().filter(lambda p: p.bests), st.integers(2, 9))
def test_the_expected_gain_is_positive_and_grows_with_the_weight(progress: Progress, times_more: int) -> None:
    gain = expected_gain(progress)
    assert gain > 0
    heavier = Progress(progress.weight * times_more, progress.roofline, progress.bests)
    assert expected_gain(heavier) >= gain


@given(st.floats(1e-6, 1.0), st.integers(2, 40))
def test_a_task_that_stands_still_is_worth_less_with_every_batch(best: float, batches: int) -> None:
    gains = [expected_gain(Progress(1, best / 2, (best,) * n)) for n in range(1, batches + 1)]
    assert all(later < earlier for earlier, later in pairwise(gains))


@given(st.integers(1, 4), st.floats(0.0, 0.5))
def test_the_search_ends_when_nothing_improves(patience: int, min_gain: float) -> None:
    tasks = [Progress(w, 1e-4, ()) for w in (1, 5, 2)]
    for _ in range(200):
        chosen = choose(tasks, range(len(tasks)), patience, min_gain)
        if chosen is None:
            return
        old = tasks[chosen]
        tasks[chosen] = Progress(old.weight, old.roofline, (*old.bests, 1e-3))
    raise AssertionError("it never ends")
