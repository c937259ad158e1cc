"""Parallel, Vectorize and Unroll: which loops may run in which way."""

from __future__ import annotations

import pytest

from pipeline.schedule.steps import (
    CacheWrite,
    ComputeAt,
    DecomposeReduction,
    Fuse,
    Parallel,
    Reorder,
    Split,
    Step,
    Unroll,
    Vectorize,
)
from tests.schedule.programs import (
    applied,
    convolution,
    feed_forward,
    golden,
    keeps_meaning,
    matmul,
    refuses,
    running_sum,
    whole_sum,
)


def test_an_outermost_spatial_loop_runs_in_parallel() -> None:
    program = applied(matmul(), Fuse(("mm_m", "mm_n")), Parallel("mm_m"), Unroll("mm_k"))
    golden(program, "parallel/fused")
    keeps_meaning(matmul(), program)


def test_a_ragged_tile_is_as_parallel_as_the_loop_was() -> None:
    steps = (Split("mm_n", (5,), ("n0", "n1")), Reorder(("n0", "mm_m", "n1")), Parallel("n0"))
    keeps_meaning(matmul(), applied(matmul(), *steps))


def test_even_the_inner_part_of_a_ragged_tile_is_parallel() -> None:
    steps = (Split("mm_n", (5,), ("n0", "n1")), Reorder(("n1", "mm_m", "n0")), Parallel("n1"))
    keeps_meaning(matmul(), applied(matmul(), *steps))


def test_a_reduction_may_be_horizontal_in_lanes() -> None:
    program = applied(matmul(), Vectorize("mm_k"))
    golden(program, "vectorize/horizontal")
    keeps_meaning(matmul(), program)


def test_a_scan_may_be_unrolled() -> None:
    keeps_meaning(running_sum(), applied(running_sum(), Parallel("run_i"), Unroll("run_j")))


@pytest.mark.parametrize(
    ("before", "step", "why"),
    [
        ((), Parallel("x"), "there is no loop x"),
        ((), Parallel("mm_n"), "not the outermost of its region"),
        ((Parallel("mm_m"),), Parallel("mm_m"), "parallel already"),
        ((Reorder(("mm_k", "mm_m")),), Parallel("mm_k"), "carries a dependence: block mm combines along it into C"),
        ((Reorder(("mm_k", "mm_m", "mm_n")), Fuse(("mm_k", "mm_m"))), Parallel("mm_k"), "block mm combines"),
        ((), Vectorize("x"), "there is no loop x"),
        ((), Vectorize("mm_n"), "loop mm_k is inside loop mm_n"),
        ((Reorder(("mm_k", "mm_m", "mm_n")), Fuse(("mm_m", "mm_n"))), Vectorize("mm_m"), "one axis"),
        ((Unroll("mm_k"),), Vectorize("mm_k"), "unrolled already"),
        ((Vectorize("mm_k"),), Unroll("mm_k"), "vectorized already"),
        ((), Unroll("x"), "there is no loop x"),
    ],
)
def test_a_loop_that_cannot_run_so_is_refused(before: tuple[Step, ...], step: Step, why: str) -> None:
    refuses(applied(matmul(), *before), step, why)


def test_a_scan_runs_neither_in_parallel_nor_in_lanes() -> None:
    refuses(running_sum(), Vectorize("run_j"), "block run scans along j")
    refuses(applied(running_sum(), Reorder(("run_j", "run_i"))), Parallel("run_j"), "block run scans along j")


def test_iterations_that_store_in_one_scratch_buffer_are_not_parallel() -> None:
    """Two rows of the convolution read one padded row; each of them computes it in the buffer that all threads see."""
    program = applied(convolution(), ComputeAt("pad", "conv_h"))
    refuses(program, Parallel("conv_h"), "conv and pad may meet in the same element of P")
    keeps_meaning(convolution(), applied(convolution(), ComputeAt("pad", "conv_h", "shared"), Parallel("conv_h")))


def test_a_decomposed_reduction_is_parallel_along_its_spatial_loops() -> None:
    program = applied(feed_forward(), DecomposeReduction("mm", "mm_k"), Parallel("mm_m"), Parallel("bias_i"))
    keeps_meaning(feed_forward(), program)


def test_a_loop_with_a_buffer_inside_has_no_lanes() -> None:
    program = applied(whole_sum(), CacheWrite("sum", "local", "sum_j"))
    refuses(program, Vectorize("sum_j"), "buffer S_local lives inside loop sum_j")
    keeps_meaning(whole_sum(), program)
