"""Fuse: nested loops become one whose variables stay."""

from __future__ import annotations

import pytest

from pipeline.schedule.steps import DecomposeReduction, Fuse, Split, Step, Vectorize
from tests.schedule.programs import applied, convolution, golden, keeps_meaning, matmul, refuses


def test_a_fused_loop_keeps_its_variables_and_extents() -> None:
    program = applied(matmul(), Fuse(("mm_m", "mm_n")))
    golden(program, "fuse/two")
    keeps_meaning(matmul(), program)


def test_a_fused_loop_can_be_fused_again() -> None:
    keeps_meaning(convolution(), applied(convolution(), Fuse(("conv_h", "conv_w")), Fuse(("conv_h", "conv_f"))))


def test_ragged_tiles_can_be_fused() -> None:
    steps = (Split("mm_m", (3,), ("m0", "m1")), Split("mm_n", (5,), ("n0", "n1")), Fuse(("m1", "n0")))
    keeps_meaning(matmul(), applied(matmul(), *steps))


@pytest.mark.parametrize(
    ("before", "step", "why"),
    [
        ((), Fuse(("mm_m",)), "it takes two loops"),
        ((), Fuse(("mm_m", "x")), "there is no loop x"),
        ((), Fuse(("mm_m", "mm_k")), "loop mm_k is not the whole body of loop mm_m"),
        ((), Fuse(("mm_n", "mm_m")), "loop mm_m is not the whole body of loop mm_n"),
        ((Vectorize("mm_k"),), Fuse(("mm_n", "mm_k")), "loop mm_k is vectorized"),
        ((DecomposeReduction("mm", "mm_k"),), Fuse(("mm_n", "mm_k")), "not the whole body"),
    ],
)
def test_loops_that_are_not_a_perfect_nest_are_not_fused(before: tuple[Step, ...], step: Fuse, why: str) -> None:
    refuses(applied(matmul(), *before), step, why)
