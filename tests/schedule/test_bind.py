"""Bind: which loops become a grid or the threads of a block."""

from __future__ import annotations

import pytest

from pipeline.ir.poly import Poly
from pipeline.ir.program import Program
from pipeline.schedule.sketch import Sketch
from pipeline.schedule.steps import (
    Bind,
    CacheRead,
    CacheWrite,
    ComputeAt,
    Fuse,
    Parallel,
    Reorder,
    Split,
    Step,
    Vectorize,
)
from pipeline.schedule.variables import Tile
from tests.schedule.programs import (
    applied,
    feed_forward,
    golden,
    keeps_meaning,
    matmul,
    refuses,
    running_sum,
    whole_sum,
)


def test_a_fused_loop_in_ragged_tiles_is_a_grid_of_blocks_of_threads() -> None:
    start = Sketch(matmul()).declare(Tile(("t",), 13, (1,), (13,)))
    steps = (Split("mm_n", (Poly.symbol("t"),), ("n0", "n1")), Fuse(("mm_m", "n0")), Bind("mm_m", "blockIdx.x"),
             Bind("n1", "threadIdx.x"))  # fmt: skip
    for step in steps:
        start = start.apply(step)
    keeps_meaning(matmul(), start)


def test_a_parallel_loop_becomes_a_grid() -> None:
    program = applied(matmul(), Parallel("mm_m"), Bind("mm_m", "blockIdx.x"), Bind("mm_n", "threadIdx.x"))
    golden(program, "bind/parallel")
    keeps_meaning(matmul(), program)


def test_a_grid_has_up_to_three_directions_and_a_block_too() -> None:
    program = applied(
        matmul(), Split("mm_m", (3,), ("m0", "m1")), Split("mm_n", (4,), ("n0", "n1")),
        Reorder(("m0", "n0", "m1", "n1")),
        Bind("m0", "blockIdx.y"), Bind("n0", "blockIdx.x"), Bind("m1", "threadIdx.y"), Bind("n1", "threadIdx.x"),
    )  # fmt: skip
    keeps_meaning(matmul(), program)


def test_a_scan_runs_inside_a_thread() -> None:
    keeps_meaning(running_sum(), applied(running_sum(), Bind("run_i", "threadIdx.x")))


def test_threads_copy_into_shared_memory_before_they_multiply() -> None:
    program = applied(
        matmul(), Split("mm_m", (4,), ("m0", "m1")), Bind("m0", "blockIdx.x"), CacheRead("mm", "A", "shared", "m0"),
        Fuse(("A_shared_0", "A_shared_1")), Bind("A_shared_0", "threadIdx.x"), Fuse(("m1", "mm_n")),
        Bind("m1", "threadIdx.x"),
    )  # fmt: skip
    keeps_meaning(matmul(), program)


@pytest.mark.parametrize(
    ("before", "step", "why"),
    [
        ((), Bind("nowhere", "blockIdx.x"), "there is no loop nowhere"),
        ((), Bind("mm_m", "blockIdx.w"), "a loop is bound to one of blockIdx.x"),  # type: ignore[arg-type]
        ((), Bind("mm_n", "blockIdx.x"), "not the outermost of its region"),
        ((), Bind("mm_k", "threadIdx.x"), "carries a dependence: block mm combines along it into C"),
        ((Vectorize("mm_n"),), Bind("mm_n", "threadIdx.x"), "mm_n is vectorized already"),
        ((Parallel("mm_m"),), Bind("mm_m", "threadIdx.x"), "mm_m is parallel already"),
        ((Parallel("mm_m"),), Bind("mm_n", "threadIdx.x"), "bind that to blockIdx first"),
        ((Bind("mm_m", "threadIdx.x"),), Bind("mm_n", "threadIdx.x"), "loop mm_m around loop mm_n is threadIdx.x"),
        ((Bind("mm_n", "threadIdx.x"),), Bind("mm_m", "threadIdx.x"), "loop mm_n inside loop mm_m is threadIdx.x"),
        ((Bind("mm_m", "blockIdx.x"),), Bind("mm_n", "blockIdx.x"), "loop mm_m around loop mm_n is blockIdx.x"),
        ((Bind("mm_m", "threadIdx.x"),), Bind("mm_n", "blockIdx.y"), "not the outermost of its region"),
        ((CacheRead("mm", "A", "shared", "mm_m"),), Bind("mm_m", "threadIdx.x"), "would share A_shared"),
        ((CacheWrite("mm", "local", "mm_m"),), Bind("mm_n", "threadIdx.x"), "has a C_local of its own"),
    ],
)
def test_a_binding_is_refused_with_its_reason(before: tuple[Step, ...], step: Bind, why: str) -> None:
    program = matmul()
    if before and before[0] == Vectorize("mm_n"):
        program = applied(program, Reorder(("mm_m", "mm_k", "mm_n")))
    refuses(applied(program, *before), step, why)


def test_more_threads_than_any_block_has_are_refused() -> None:
    refuses(matmul(m=1025), Bind("mm_m", "threadIdx.x"), "has 1025 iterations: threadIdx.x counts 1024")
    refuses(matmul(m=65), Bind("mm_m", "threadIdx.z"), "has 65 iterations: threadIdx.z counts 64")
    applied(matmul(m=64), Bind("mm_m", "threadIdx.z"))
    applied(matmul(m=65), Bind("mm_m", "threadIdx.y"))


@pytest.mark.parametrize("program", [whole_sum(), running_sum()])
def test_what_must_stay_in_order_is_no_grid(program: Program) -> None:
    inner = {"whole_sum": "sum_i", "running_sum": "run_j"}[program.name]
    step = Bind(inner, "blockIdx.x" if program.name == "whole_sum" else "threadIdx.x")
    refuses(program, step, "carries a dependence")


def test_what_moves_into_a_grid_must_not_race() -> None:
    """Every block would fill the same elements of a global buffer."""
    program = applied(feed_forward(), Reorder(("out_j", "out_i")), Bind("act_i", "blockIdx.x"))
    refuses(applied(program, Bind("out_j", "blockIdx.x")), Reorder(("out_i", "out_j")), "keeps its place")
    program = applied(feed_forward(), Bind("out_i", "blockIdx.x"))
    keeps_meaning(feed_forward(), applied(program, ComputeAt("act", "out_i", "shared")))
