"""ComputeAt: producers in the loops of their consumers."""

from __future__ import annotations

import pytest

from pipeline.ir.poly import Poly
from pipeline.schedule.sketch import Sketch
from pipeline.schedule.steps import (
    ComputeAt,
    DecomposeReduction,
    Parallel,
    Reorder,
    Split,
    Step,
    TransformLayout,
    Unroll,
    Vectorize,
)
from pipeline.schedule.variables import Tile
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


def test_a_producer_computes_the_box_that_its_consumer_reads() -> None:
    sketch = Sketch(convolution()).declare(Tile(("t",), 7, (1,), (7,)))
    sketch = sketch.apply(Split("conv_h", (Poly.symbol("t"),), ("h0", "h1"))).apply(ComputeAt("pad", "h0", "shared"))
    assert [str(extent) for extent in sketch.program.buffer("P").shape] == ["2 + t", "7", "3"]
    golden(sketch.program, "compute_at/halo")
    keeps_meaning(convolution(), sketch.apply(Parallel("h0")), samples=7)


def test_a_reduction_keeps_its_loops_inside() -> None:
    program = applied(feed_forward(), ComputeAt("mm", "bias_i", "local"))
    golden(program, "compute_at/reduction")
    keeps_meaning(feed_forward(), applied(program, Parallel("bias_i"), Unroll("mm_k")))


def test_a_global_buffer_stays_as_it_is() -> None:
    program = applied(feed_forward(), ComputeAt("bias", "act_j"), ComputeAt("mm", "bias_0"))
    assert program.buffer("T").scope == "global"
    refuses(program, ComputeAt("mm", "act_i"), "shares it with bias, act")
    keeps_meaning(feed_forward(), program)


def test_a_chain_is_computed_row_by_row() -> None:
    refuses(normalise(), ComputeAt("square", "out_i", "shared"), "block total reads E outside loop out_i")
    chain = (
        ComputeAt("total", "out_i", "local"),
        ComputeAt("square", "out_i", "shared"),
        ComputeAt("top", "out_i", "local"),
    )
    program = applied(normalise(), *chain, Parallel("out_i"))
    golden(program, "compute_at/chain")
    keeps_meaning(normalise(), program)


def test_consumers_that_read_around_a_point_share_a_box() -> None:
    steps = (Split("blur_i", (5,), ("i0", "i1")),)
    refuses(applied(stencil(), *steps), ComputeAt("double", "i0"), "block second reads D outside loop i0")
    keeps_meaning(stencil(), applied(stencil(), ComputeAt("blur", "first_i", "local")))


def test_an_index_that_is_not_affine_takes_the_whole_dimension() -> None:
    steps = (TransformLayout("V", (1, 4), (0, 1, 2)), ComputeAt("bias", "act_j"), ComputeAt("mm", "act_j", "shared"))
    keeps_meaning(feed_forward(), applied(feed_forward(), *steps))


@pytest.mark.parametrize("size", [1, 2, 5, 7])
def test_a_producer_is_tiled_with_its_consumer_at_any_size(size: int) -> None:
    before = feed_forward(size, size + 1, size)
    tiles = (Split("bias_i", (3,), ("i0", "i1")), Split("bias_j", (2,), ("j0", "j1")))
    steps = (*tiles, Reorder(("i0", "j0", "i1", "j1")), ComputeAt("mm", "j0", "local"))
    keeps_meaning(before, applied(before, *steps))


@pytest.mark.parametrize(
    ("before", "step", "why"),
    [
        ((), ComputeAt("x", "bias_i"), "there is no block x"),
        ((), ComputeAt("mm", "x"), "there is no loop x"),
        ((), ComputeAt("mm", "bias_i", "fragment"), "global, shared or local, not fragment"),
        ((), ComputeAt("mm", "act_i"), "block bias reads T outside loop act_i"),
        ((), ComputeAt("out", "act_i"), "C is global and output"),
        ((), ComputeAt("mm", "mm_m"), "block bias reads T outside loop mm_m"),
        ((DecomposeReduction("mm", "mm_k"),), ComputeAt("mm", "bias_i"), "shares it with mm_init"),
        ((DecomposeReduction("mm", "mm_m"),), ComputeAt("mm", "bias_i"), "block mm was decomposed"),
        (
            (TransformLayout("T", (1, 4), (0, 1, 2)),),
            ComputeAt("mm", "bias_i"),
            "does not store in T at its iterations",
        ),
        ((Vectorize("bias_j"),), ComputeAt("mm", "bias_j"), "loop bias_j is vectorized"),
        ((Parallel("bias_i"),), ComputeAt("mm", "bias_i"), None),
        (
            (Split("mm_m", (5,), ("m0", "m1")), Split("m1", (2,), ("m1", "m2"))),
            ComputeAt("mm", "bias_i"),
            "has a condition on a spatial loop",
        ),
    ],
)
def test_a_producer_that_cannot_move_is_refused(before: tuple[Step, ...], step: ComputeAt, why: str | None) -> None:
    program = applied(feed_forward(), *before)
    if why is None:
        assert step.why_not(program) is None
    else:
        refuses(program, step, why)


def test_threads_do_not_share_a_buffer_that_each_of_them_computes() -> None:
    program = applied(convolution(), Parallel("conv_h"))
    refuses(program, ComputeAt("pad", "conv_w"), "conv and pad may meet in the same element of P")


def test_a_scan_stays_where_it_is() -> None:
    refuses(running_sum(), ComputeAt("run", "run_i"), "Y is global and output")
