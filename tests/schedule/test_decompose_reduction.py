"""DecomposeReduction: where the initial value is stored."""

from __future__ import annotations

import pytest

from pipeline.schedule.steps import (
    CacheWrite,
    ComputeAt,
    DecomposeReduction,
    Fuse,
    Reorder,
    Split,
    Step,
    Vectorize,
)
from tests.schedule.programs import applied, feed_forward, golden, keeps_meaning, matmul, normalise, refuses

INNER = (Reorder(("mm_m", "mm_k", "mm_n")), Vectorize("mm_n"))


def test_the_initial_value_gets_a_nest_like_the_spatial_loops() -> None:
    program = applied(matmul(), *INNER, DecomposeReduction("mm", "mm_k"))
    golden(program, "decompose_reduction/vectorized")
    keeps_meaning(matmul(), program)


@pytest.mark.parametrize("loop", ["mm_m", "mm_n", "mm_k"])
def test_it_may_be_stored_before_any_loop_at_or_around_the_reduction(loop: str) -> None:
    keeps_meaning(matmul(), applied(matmul(), DecomposeReduction("mm", loop)))


def test_the_outermost_loop_makes_a_region_of_its_own() -> None:
    program = applied(matmul(), Reorder(("mm_k", "mm_m", "mm_n")), DecomposeReduction("mm", "mm_k"))
    assert len(program.body.body) == 2
    keeps_meaning(matmul(), program)


def test_only_the_spatial_axes_of_a_fused_loop_are_kept() -> None:
    steps = (Fuse(("mm_m", "mm_n")), Fuse(("mm_m", "mm_k")), DecomposeReduction("mm", "mm_m"))
    keeps_meaning(matmul(), applied(matmul(), *steps))


def test_conditions_on_spatial_loops_hold_for_the_initial_value_too() -> None:
    steps = (Split("mm_m", (5,), ("m0", "m1")), Split("m1", (2,), ("m1", "m2")), DecomposeReduction("mm", "m0"))
    keeps_meaning(matmul(), applied(matmul(), *steps))


@pytest.mark.parametrize(
    ("before", "step", "why"),
    [
        ((), DecomposeReduction("x", "mm_k"), "there is no block x"),
        ((), DecomposeReduction("mm", "x"), "there is no loop x"),
        (INNER, DecomposeReduction("mm", "mm_n"), "the reduction runs over mm_k, around loop mm_n"),
        ((DecomposeReduction("mm", "mm_k"),), DecomposeReduction("mm", "mm_k"), "it was decomposed already"),
        ((CacheWrite("mm", "local", "mm_n"),), DecomposeReduction("mm", "mm_n"), "lives only inside loop mm_n"),
    ],
)
def test_a_place_that_is_not_before_the_reduction_is_refused(
    before: tuple[Step, ...], step: DecomposeReduction, why: str
) -> None:
    refuses(applied(matmul(), *before), step, why)


def test_only_a_reduction_is_decomposed() -> None:
    refuses(feed_forward(), DecomposeReduction("bias", "bias_i"), "block bias is not a reduction")
    refuses(feed_forward(), DecomposeReduction("bias", "mm_m"), "loop mm_m is not around block bias")


def test_a_reduction_that_is_computed_again_in_each_iteration_keeps_its_initial_value_inside() -> None:
    program = applied(normalise(), ComputeAt("top", "square_j"))
    refuses(program, DecomposeReduction("top", "square_j"), "block top does not iterate over loop square_j")
    keeps_meaning(normalise(), applied(program, DecomposeReduction("top", "top_0")))
