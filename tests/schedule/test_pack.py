"""Pack and Reindex: operands in the order in which they are read."""

from __future__ import annotations

import pytest

from pipeline.ir.poly import Poly
from pipeline.schedule.sketch import Sketch
from pipeline.schedule.steps import (
    CacheWrite,
    ComputeAt,
    Inline,
    Pack,
    Parallel,
    Reindex,
    Reorder,
    Split,
    Step,
    Vectorize,
)
from pipeline.schedule.variables import Tile
from tests.schedule.programs import (
    applied,
    convolution,
    feed_forward,
    golden,
    keeps_meaning,
    matmul,
    refuses,
    running_sum,
    stencil,
)

TILED = (
    Split("mm_n", (4,), ("n0", "n1")),
    Split("mm_k", (3,), ("k0", "k1")),
    Reorder(("mm_m", "n0", "k0", "k1", "n1")),
)
PACKED_B = Pack("mm", "B", ("n0", "k0", "k1", "n1"), "Bp")


def test_a_constant_is_packed_in_the_prologue() -> None:
    program = applied(matmul(), *TILED, PACKED_B)
    assert program.buffer("Bp").role == "packed" and len(program.prologue.body) == 1
    golden(program, "pack/constant")
    keeps_meaning(matmul(), program)


def test_an_input_is_packed_in_a_region_of_its_own() -> None:
    program = applied(matmul(), *TILED, Pack("mm", "A", ("mm_m", "k0", "k1"), "Ap"), Parallel("Ap_mm_m"))
    assert program.buffer("Ap").role == "intermediate" and len(program.body.body) == 2
    keeps_meaning(matmul(), program)


def test_a_copy_inside_a_loop_holds_what_one_iteration_reads() -> None:
    program = applied(matmul(), *TILED, Pack("mm", "B", ("k1", "n1"), "Bp", "k0"), Parallel("mm_m"))
    golden(program, "pack/at_a_loop")
    keeps_meaning(matmul(), program)


def test_both_operands_of_a_symbolic_register_tile_are_packed() -> None:
    sketch = Sketch(matmul())
    for symbols, extent in ((("tm",), 10), (("tn",), 13), (("tk",), 7)):
        sketch = sketch.declare(Tile(symbols, extent, (1,), (8,)))
    m, n, k = (Poly.symbol(name) for name in ("tm", "tn", "tk"))
    for step in (
        *(Split("mm_m", (m,), ("m0", "m1")), Split("mm_n", (n,), ("n0", "n1")), Split("mm_k", (k,), ("k0", "k1"))),
        *(Reorder(("m0", "n0", "k0", "k1", "m1", "n1")), CacheWrite("mm", "local", "n0")),
        *(Pack("mm", "B", ("n0", "k0", "k1", "n1"), "Bp"), Pack("mm", "A", ("k0", "k1", "m1"), "Ap", "m0")),
        *(Parallel("m0"), Vectorize("n1")),
    ):
        sketch = sketch.apply(step)
    golden(sketch.program, "pack/register_tile")
    keeps_meaning(matmul(), sketch, samples=12)


def test_a_packed_operand_can_be_packed_again() -> None:
    keeps_meaning(matmul(), applied(matmul(), *TILED, PACKED_B, Pack("mm", "Bp", ("k0", "n0", "k1", "n1"), "Bq")))


def test_the_padding_of_a_convolution_is_packed_with_it() -> None:
    program = applied(
        convolution(), Inline("pad"), Pack("conv", "X", ("conv_h", "conv_w", "conv_r", "conv_s", "conv_c"), "Xp")
    )
    golden(program, "pack/padding")
    keeps_meaning(convolution(), program)


def test_one_of_several_loads_is_packed() -> None:
    program = applied(stencil(), Pack("blur", "D", ("blur_i",), "shifted", number=1))
    keeps_meaning(stencil(), applied(program, Pack("blur", "D", ("blur_i",), "straight", number=0)))
    refuses(stencil(), Pack("blur", "D", ("blur_i",), "p", number=3), "there is no load 3")


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_a_window_becomes_a_plain_operand_at_any_size(size: int) -> None:
    steps = (Inline("pad"), Reindex("conv", "X", "columns"), Reindex("conv", "W", "Wp"))
    before = convolution(size, size, stride=2)
    keeps_meaning(before, applied(before, *steps))


def test_reindexing_puts_the_dimensions_in_the_order_of_the_loops() -> None:
    program = applied(matmul(), Reindex("mm", "B", "Bt"))
    golden(program, "reindex/transposed")
    keeps_meaning(matmul(), program)


@pytest.mark.parametrize(
    ("before", "step", "why"),
    [
        ((), Pack("x", "B", ("mm_n",), "Bp"), "there is no block x"),
        ((), Pack("mm", "Q", ("mm_n",), "Bp"), "reads Q 0 times in its value, not once"),
        ((), Pack("mm", "B", ("mm_n", "x"), "Bp"), "loop x is not around block mm"),
        ((), Pack("mm", "B", ("mm_n", "mm_n"), "Bp"), "not all different"),
        ((), Pack("mm", "B", ("mm_n",), "Bp"), "depends on loop mm_k: put it into the order"),
        ((), Pack("mm", "B", ("mm_k", "mm_n", "mm_m"), "Bp"), "does not depend on loop mm_m: leave it out"),
        ((), Pack("mm", "B", ("mm_k", "mm_n"), "A"), "there is a buffer A already"),
        ((), Pack("mm", "B", ("mm_n", "mm_k"), "Bp", "mm_n"), "loop mm_n is not inside loop mm_n"),
        ((), Pack("mm", "B", ("mm_k",), "Bp", "x"), "there is no loop x"),
        ((Vectorize("mm_k"),), Pack("mm", "B", (), "Bp", "mm_k"), "loop mm_k is vectorized"),
        ((), Reindex("x", "B", "Bp"), "there is no block x"),
        ((), Reindex("mm", "Q", "Bp"), "reads Q 0 times"),
    ],
)
def test_an_order_that_does_not_fit_the_operand_is_refused(before: tuple[Step, ...], step: Step, why: str) -> None:
    refuses(applied(matmul(), *before), step, why)


def test_an_operand_that_is_read_twice_is_not_packed() -> None:
    refuses(feed_forward(), Pack("act", "U", ("act_i", "act_j"), "Up"), "reads U 2 times")
    refuses(stencil(), Reindex("blur", "D", "Dp"), "reads D 3 times")


def test_what_is_written_in_the_same_nest_is_not_packed() -> None:
    refuses(running_sum(), Pack("run", "Y", ("run_i", "run_j"), "Yp"), "block run writes Y inside the same nest")
    program = applied(feed_forward(), ComputeAt("mm", "bias_i", "local"))
    refuses(program, Pack("bias", "T", ("bias_j",), "Tp", "bias_i"), "block mm writes T inside the same nest")
    refuses(program, Pack("bias", "T", ("bias_j",), "Tp"), "block mm writes T inside the same nest")
