"""Blockize: a nest becomes one unit that later steps leave whole."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.ir.interpret import interpret
from pipeline.ir.program_check import check
from pipeline.schedule.steps import (
    Blockize,
    CacheRead,
    CacheWrite,
    ComputeAt,
    DecomposeReduction,
    Fuse,
    Pack,
    Parallel,
    Reorder,
    ReverseComputeAt,
    Rfactor,
    Split,
    Step,
    Unroll,
    Vectorize,
)
from tests.schedule.byte_products import byte_feeds, byte_product, exact, tiled, united
from tests.schedule.programs import applied, feed_forward, golden, keeps_meaning, matmul, refuses


def test_a_unit_runs_as_the_loops_it_consists_of() -> None:
    program = applied(matmul(), Blockize("mm_n"))
    golden(program, "blockize/two")
    keeps_meaning(matmul(), program)


def test_the_loops_around_a_unit_may_change() -> None:
    steps = (*united(), Split("k0", (2,), ("k00", "k01")), Unroll("k01"), Fuse(("mm_m", "n0")), Parallel("mm_m"))
    program = applied(byte_product(), *steps)
    check(program)
    feeds = byte_feeds(program)
    np.testing.assert_array_equal(interpret(program, feeds)["C"], exact(feeds))


def test_the_loops_around_a_unit_may_change_their_order() -> None:
    program = applied(byte_product(), *tiled()[:4], Blockize("n1"), Reorder(("k0", "mm_m", "n0")))
    check(program)
    feeds = byte_feeds(program)
    np.testing.assert_array_equal(interpret(program, feeds)["C"], exact(feeds))


def test_a_unit_may_collect_its_sums_in_a_cache_around_it() -> None:
    program = applied(byte_product(), *tiled()[:4], Blockize("n1"), CacheWrite("mm", "local", "n0"),
                      DecomposeReduction("mm", "k0"))  # fmt: skip
    check(program)
    feeds = byte_feeds(program)
    np.testing.assert_array_equal(interpret(program, feeds)["C"], exact(feeds))


@pytest.mark.parametrize(
    ("before", "step", "why"),
    [
        ((), Blockize("x"), "there is no loop x"),
        ((Unroll("mm_k"),), Blockize("mm_n"), "loop mm_k is unrolled: a unit is made of serial loops"),
        ((Fuse(("mm_n", "mm_k")),), Blockize("mm_m"), "loop mm_n is fused of mm_n, mm_k"),
        ((DecomposeReduction("mm", "mm_k"),), Blockize("mm_n"), "is not a perfect nest around one block"),
        ((Blockize("mm_k"),), Blockize("mm_n"), "loop mm_k is part of the unit mm_k"),
        ((Blockize("mm_n"),), Blockize("mm_k"), "loop mm_k is part of the unit mm_n"),
        ((Blockize("mm_n"),), Split("mm_k", (2,), ("k0", "k1")), "part of the unit mm_n, which stays whole"),
        ((Blockize("mm_n"),), Fuse(("mm_n", "mm_k")), "it cannot be fused"),
        ((Blockize("mm_n"),), Fuse(("mm_m", "mm_n")), "it cannot be fused"),
        ((Blockize("mm_n"),), Reorder(("mm_k", "mm_n")), "it cannot be reordered"),
        ((Blockize("mm_n"),), Reorder(("mm_n", "mm_m")), "it cannot be reordered"),
        ((Blockize("mm_n"),), Unroll("mm_k"), "it cannot be unrolled"),
        ((Blockize("mm_n"),), Vectorize("mm_k"), "it cannot be vectorized"),
        ((Blockize("mm_m"),), Parallel("mm_m"), "it cannot be parallel"),
        ((Blockize("mm_n"),), DecomposeReduction("mm", "mm_k"), "loop mm_k is inside the unit mm_n"),
        ((Blockize("mm_n"),), Rfactor("mm", "mm_k", 0), "it cannot be taken apart"),
        ((Blockize("mm_n"),), CacheWrite("mm", "local", "mm_n"), "choose a loop around it"),
        ((Blockize("mm_n"),), CacheRead("mm", "A", "local", "mm_n"), "choose a loop around it"),
        ((Blockize("mm_n"),), Pack("mm", "B", ("mm_k",), "P", "mm_n"), "choose a loop around it"),
    ],
)
def test_what_would_take_a_unit_apart_is_refused(before: tuple[Step, ...], step: Step, why: str) -> None:
    refuses(applied(matmul(), *before), step, why)


def test_the_block_of_a_unit_is_not_moved() -> None:
    refuses(applied(feed_forward(), Blockize("bias_j")), ReverseComputeAt("bias", "mm_n"), "it cannot be taken apart")
    refuses(applied(feed_forward(), Blockize("bias_j")), ComputeAt("bias", "act_j"), "it cannot be taken apart")


def test_nothing_is_computed_inside_a_unit() -> None:
    refuses(applied(feed_forward(), Blockize("act_j")), ComputeAt("bias", "act_j"), "choose a loop around it")
    refuses(applied(feed_forward(), Blockize("mm_n")), ReverseComputeAt("bias", "mm_n"), "choose a loop around it")
