"""Reorder: loops of a perfect nest change places."""

from __future__ import annotations

from itertools import permutations

import pytest

from pipeline.schedule.steps import (
    CacheWrite,
    ComputeAt,
    DecomposeReduction,
    Parallel,
    Reorder,
    ReverseComputeAt,
    Split,
    Step,
)
from tests.schedule.programs import applied, feed_forward, golden, keeps_meaning, matmul, refuses, running_sum


def test_named_loops_take_each_others_places() -> None:
    program = applied(matmul(), Reorder(("mm_k", "mm_m")))
    golden(program, "reorder/outer_and_inner")
    keeps_meaning(matmul(), program)


@pytest.mark.parametrize("order", list(permutations(("mm_m", "mm_n", "mm_k"))))
def test_a_reduction_may_run_in_any_order(order: tuple[str, ...]) -> None:
    keeps_meaning(matmul(), applied(matmul(), Reorder(order)))


def test_loops_around_a_write_cache_can_change_places() -> None:
    tiles = (
        Split("mm_m", (4,), ("m0", "m1")),
        Split("mm_k", (3,), ("k0", "k1")),
        Reorder(("m0", "k0", "mm_n", "m1", "k1")),
    )
    steps = (*tiles, CacheWrite("mm", "local", "mm_n"), Reorder(("mm_n", "k0")))
    keeps_meaning(matmul(), applied(matmul(), *steps))


def test_a_scan_may_move_across_other_loops() -> None:
    keeps_meaning(running_sum(), applied(running_sum(), Reorder(("run_j", "run_i"))))


@pytest.mark.parametrize(
    ("before", "step", "why"),
    [
        ((), Reorder(("mm_m",)), "two or more"),
        ((), Reorder(("mm_m", "mm_m")), "two or more"),
        ((), Reorder(("mm_m", "q")), "there is no loop q"),
        ((DecomposeReduction("mm", "mm_k"),), Reorder(("mm_k", "mm_n")), "not in one perfect nest"),
        ((Parallel("mm_m"),), Reorder(("mm_n", "mm_m")), "keeps its place"),
    ],
)
def test_an_order_that_is_not_one_of_a_perfect_nest_is_refused(
    before: tuple[Step, ...], step: Reorder, why: str
) -> None:
    refuses(applied(matmul(), *before), step, why)


def test_the_parts_of_a_scan_keep_their_order() -> None:
    program = applied(running_sum(), Split("run_j", (4,), ("j0", "j1")))
    refuses(program, Reorder(("j1", "j0")), "must keep their order: block run scans along j")
    keeps_meaning(running_sum(), applied(program, Reorder(("j0", "run_i"))))


def test_loops_do_not_move_across_what_an_earlier_iteration_produces() -> None:
    """The consumer reads what earlier iterations of both loops stored: in another order it would read too early."""
    steps = (Split("mm_n", (4,), ("n0", "n1")), Reorder(("n0", "mm_m", "n1")), ReverseComputeAt("bias", "mm_m"))
    program = applied(feed_forward(), *steps)
    keeps_meaning(feed_forward(), applied(program, Reorder(("mm_m", "n0"))))


def test_loops_in_different_nests_do_not_change_places() -> None:
    program = applied(feed_forward(), ComputeAt("act", "out_i"))
    refuses(program, Reorder(("act_0", "out_j")), "is not in one perfect nest")
    refuses(program, Reorder(("act_0", "out_i")), "is not in one perfect nest")
