"""Inline and ReverseInline: producers and consumers that vanish."""

from __future__ import annotations

import pytest

from pipeline.schedule.steps import (
    CacheWrite,
    DecomposeReduction,
    Inline,
    Parallel,
    ReverseInline,
    Split,
    Step,
    TransformLayout,
)
from tests.schedule.programs import (
    applied,
    convolution,
    feed_forward,
    golden,
    keeps_meaning,
    normalise,
    refuses,
    running_sum,
    stencil,
)


def test_a_producer_is_inlined_at_every_place_where_it_is_read() -> None:
    program = applied(stencil(), Inline("double"), Inline("blur"))
    golden(program, "inline/offsets")
    keeps_meaning(stencil(), program)


def test_a_padded_producer_becomes_a_guard() -> None:
    program = applied(convolution(), Inline("pad"))
    golden(program, "inline/padding")
    keeps_meaning(convolution(), program)


def test_what_two_blocks_read_is_inlined_in_both() -> None:
    keeps_meaning(normalise(), applied(normalise(), Inline("square")))


@pytest.mark.parametrize(
    ("before", "step", "why"),
    [
        ((), Inline("x"), "there is no block x"),
        ((), Inline("mm"), "block mm is a reduction"),
        ((), Inline("out"), "C is output"),
        ((Split("bias_i", (4,), ("i0", "i1")), Split("i1", (3,), ("i1", "i2"))), Inline("bias"), "has a condition"),
        ((TransformLayout("U", (1, 4), (0, 1, 2)),), Inline("bias"), "does not store in U at its iterations"),
        ((CacheWrite("bias", "local", "bias_i"),), Inline("bias"), "does not store in U_local"),
        ((DecomposeReduction("mm", "mm_k"),), Inline("mm_init"), "block mm_init is not the only one"),
    ],
)
def test_a_producer_that_is_more_than_an_expression_is_refused(
    before: tuple[Step, ...], step: Inline, why: str
) -> None:
    refuses(applied(feed_forward(), *before), step, why)


def test_a_scan_is_not_inlined() -> None:
    refuses(running_sum(), Inline("run"), "Y is output")


def test_an_epilogue_is_merged_into_the_write_back() -> None:
    steps = (CacheWrite("mm", "local", "mm_m"), Inline("bias"), Inline("act"), ReverseInline("out"))
    program = applied(feed_forward(), *steps)
    golden(program, "reverse_inline/epilogue")
    keeps_meaning(feed_forward(), applied(program, Parallel("mm_m")))


def test_an_epilogue_is_merged_block_by_block() -> None:
    steps = (CacheWrite("mm", "local", "mm_n"), ReverseInline("bias"), ReverseInline("act", "U"), ReverseInline("out"))
    keeps_meaning(feed_forward(), applied(feed_forward(), *steps))


def test_a_part_of_what_is_stored_is_merged_with_a_condition() -> None:
    program = applied(stencil(), ReverseInline("first"))
    golden(program, "reverse_inline/offset")
    keeps_meaning(stencil(), program)


@pytest.mark.parametrize(
    ("before", "step", "why"),
    [
        ((), ReverseInline("x"), "there is no block x"),
        ((), ReverseInline("bias"), "block mm combines into T: cache its writes first"),
        ((), ReverseInline("mm"), "block mm is a reduction"),
        ((), ReverseInline("out", "R"), "R is input"),
        ((), ReverseInline("out", "T"), "block out does not read T"),
        (
            (DecomposeReduction("mm", "mm_k"),),
            ReverseInline("bias"),
            "T is stored by 2 blocks (mm_init, mm), not by one",
        ),
        (
            (TransformLayout("T", (1, 4), (0, 1, 2)), CacheWrite("mm", "local", "mm_m")),
            ReverseInline("bias"),
            "at one of its",
        ),
    ],
)
def test_a_consumer_that_cannot_be_merged_is_refused(before: tuple[Step, ...], step: ReverseInline, why: str) -> None:
    refuses(applied(feed_forward(), *before), step, why)


def test_a_buffer_that_others_read_does_not_vanish() -> None:
    refuses(normalise(), ReverseInline("out", "E"), "block total reads E, too")
    refuses(stencil(), ReverseInline("second", "D"), "block blur reads D, too")
