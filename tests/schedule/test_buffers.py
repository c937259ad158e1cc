"""TransformLayout, SetScope and Pad: where and how intermediate buffers are stored."""

from __future__ import annotations

import pytest

from pipeline.schedule.steps import (
    CacheWrite,
    ComputeAt,
    DecomposeReduction,
    Pad,
    Parallel,
    Reorder,
    ReverseComputeAt,
    SetScope,
    Split,
    Step,
    TransformLayout,
)
from tests.schedule.programs import applied, convolution, feed_forward, golden, keeps_meaning, refuses, stencil

FOLLOWED = (Split("mm_m", (4,), ("m0", "m1")), Reorder(("m0", "mm_n", "m1")), ReverseComputeAt("bias", "m0"))


def test_every_access_follows_the_layout() -> None:
    program = applied(feed_forward(), TransformLayout("T", (1, 4), (1, 0, 2)))
    golden(program, "transform_layout/tiles")
    keeps_meaning(feed_forward(), program)


def test_a_transposed_buffer_needs_no_division() -> None:
    keeps_meaning(convolution(), applied(convolution(), TransformLayout("P", (1, 1, 1), (2, 0, 1))))


def test_a_cache_has_a_layout_too() -> None:
    steps = (CacheWrite("mm", "local", "mm_m"), TransformLayout("T_local", (1, 4), (1, 0, 2)))
    keeps_meaning(feed_forward(), applied(feed_forward(), *steps))


@pytest.mark.parametrize("tile", [2, 3, 8, 64])
def test_a_tile_need_not_divide_the_extent(tile: int) -> None:
    keeps_meaning(
        stencil(), applied(stencil(), TransformLayout("D", (tile,), (1, 0)), TransformLayout("Q", (tile,), (0, 1)))
    )


@pytest.mark.parametrize(
    ("step", "why"),
    [
        (TransformLayout("x", (1, 1), (0, 1)), "there is no buffer x"),
        (TransformLayout("A", (1, 1), (0, 1)), "A is global and input"),
        (TransformLayout("C", (1, 1), (0, 1)), "C is global and output"),
        (TransformLayout("T", (1,), (0,)), "1 tiles are given, but T has 2 dimensions"),
        (TransformLayout("T", (1, 0), (0, 1)), "a tile is below 1"),
        (TransformLayout("T", (1, 4), (0, 1)), "does not name each of the parts 0 to 2 once"),
        (Pad("x", 0, 8), "there is no buffer x"),
        (Pad("A", 0, 8), "A is global and input"),
        (Pad("T", 2, 8), "dimensions 0 to 1, not 2"),
        (Pad("T", 1, 0), "at least 1"),
    ],
)
def test_a_layout_that_is_not_ours_to_choose_is_refused(step: Step, why: str) -> None:
    refuses(feed_forward(), step, why)


def test_rows_are_padded_to_a_multiple() -> None:
    program = applied(feed_forward(), Pad("T", 1, 16), Pad("U", 1, 8))
    assert [str(extent) for extent in program.buffer("T").shape] == ["10", "16"]
    keeps_meaning(feed_forward(), program)


def test_a_buffer_that_one_iteration_fills_and_reads_shrinks() -> None:
    program = applied(feed_forward(), *FOLLOWED, SetScope("T", "shared", "m0"))
    assert [str(extent) for extent in program.buffer("T").shape] == ["4", "13"]
    golden(program, "set_scope/shrunk")
    keeps_meaning(feed_forward(), applied(program, SetScope("T", "local"), Parallel("m0")))


def test_initial_values_move_with_the_buffer() -> None:
    steps = (*FOLLOWED, DecomposeReduction("mm", "mm_k"), SetScope("T", "local", "m0"))
    keeps_meaning(feed_forward(), applied(feed_forward(), *steps))


@pytest.mark.parametrize(
    ("before", "step", "why"),
    [
        ((), SetScope("x", "local"), "there is no buffer x"),
        ((), SetScope("T", "global"), "shared or local, not global"),
        ((), SetScope("T", "local"), "T is global: say at which loop it shall live"),
        ((), SetScope("T", "local", "x"), "there is no loop x"),
        ((), SetScope("A", "local", "mm_m"), "A is input"),
        ((), SetScope("T", "local", "mm_m"), "block bias uses T outside loop mm_m"),
        (FOLLOWED, SetScope("T", "local", "mm_n"), "block bias uses T outside loop mm_n"),
        ((CacheWrite("mm", "local", "mm_m"),), SetScope("T_local", "local"), "T_local is local already"),
        ((CacheWrite("mm", "local", "mm_m"),), SetScope("T_local", "shared", "mm_n"), "T_local is local already"),
    ],
)
def test_a_buffer_that_must_stay_where_it_is_is_refused(before: tuple[Step, ...], step: SetScope, why: str) -> None:
    refuses(applied(feed_forward(), *before), step, why)


def test_what_an_earlier_iteration_stored_stays_global() -> None:
    steps = (Split("conv_h", (2,), ("h0", "h1")), ComputeAt("pad", "h0"))
    program = applied(convolution(), *steps)
    assert SetScope("P", "shared", "h0").why_not(program) is None
    keeps_meaning(convolution(), applied(program, SetScope("P", "shared", "h0")))
