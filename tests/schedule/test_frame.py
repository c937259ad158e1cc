"""Frame and Flatten: products as matrices of whole tiles, and one loop of several."""

from __future__ import annotations

import pytest

from pipeline.ir.poly import Poly
from pipeline.schedule.codec import decode, encode
from pipeline.schedule.sketch import Sketch
from pipeline.schedule.steps import (
    STEPS,
    ComputeAt,
    DecomposeReduction,
    Flatten,
    Frame,
    Fuse,
    Inline,
    Reorder,
    ReverseComputeAt,
    ReverseInline,
    SetScope,
    Split,
    Step,
)
from pipeline.schedule.trace import replay
from pipeline.schedule.variables import Choice
from tests.schedule.programs import (
    applied,
    convolution,
    feed_forward,
    golden,
    keeps_meaning,
    matmul,
    normalise,
    refuses,
    stencil,
)

PLAIN = Frame("mm", ("mm_m",), ("mm_n",), ("mm_k",), (4, 8, 4))
WINDOWS = Frame("conv", ("conv_h", "conv_w"), ("conv_f",), ("conv_r", "conv_s", "conv_c"), (8, 8, 16), "mk", "nk")


def test_a_product_gets_zeros_around_its_operands_and_its_result() -> None:
    program = applied(matmul(), PLAIN)
    golden(program, "frame/matmul")
    keeps_meaning(matmul(), program)


@pytest.mark.parametrize("left", ["mk", "km"])
@pytest.mark.parametrize("right", ["kn", "nk"])
def test_operands_may_be_turned(left: str, right: str) -> None:
    step = Frame("mm", ("mm_m",), ("mm_n",), ("mm_k",), (4, 8, 4), left, right)  # type: ignore[arg-type]
    keeps_meaning(matmul(), applied(matmul(), step))


def test_what_counts_the_rows_may_count_the_columns() -> None:
    keeps_meaning(matmul(), applied(matmul(), Frame("mm", ("mm_n",), ("mm_m",), ("mm_k",), (8, 4, 4))))


@pytest.mark.parametrize("sizes", [(1, 1, 1), (8, 16, 4), (17, 33, 40), (3, 2, 9)])
def test_tiles_may_be_parameters_of_any_size(sizes: tuple[int, int, int]) -> None:
    m, n, k = sizes
    sketch = Sketch(matmul(m, n, k)).declare(Choice("bm", (1, 4, 16))).declare(Choice("bk", (2, 8)))
    sketch = sketch.apply(Frame("mm", ("mm_m",), ("mm_n",), ("mm_k",), (Poly.symbol("bm"), 8, Poly.symbol("bk"))))
    assert replay(matmul(m, n, k), sketch.trace).program == sketch.program
    keeps_meaning(matmul(m, n, k), sketch)


@pytest.mark.parametrize("stride", [1, 2])
def test_a_convolution_becomes_a_product_of_matrices(stride: int) -> None:
    program = applied(convolution(stride=stride), Inline("pad"), WINDOWS)
    golden(program, f"frame/convolution_{stride}")
    keeps_meaning(convolution(stride=stride), program)


def test_every_part_goes_where_its_tile_is_needed() -> None:
    steps = (
        PLAIN,
        Split("mm_m", (4,), ("m0", "m1")),
        Split("mm_n", (8,), ("n0", "n1")),
        Split("mm_k", (4,), ("k0", "k1")),
        Reorder(("m0", "n0", "k0", "m1", "n1", "k1")),
        ReverseInline("bias"),
        ReverseComputeAt("mm_out", "n0"),
        SetScope("mm_tile", "local", "n0"),
        DecomposeReduction("mm", "k0"),
        ComputeAt("mm_left", "k0", "shared"),
        ComputeAt("mm_right", "k0", "shared"),
    )
    program = applied(feed_forward(), *steps)
    golden(program, "frame/tiles")
    keeps_meaning(feed_forward(), program)


def test_one_loop_takes_the_place_of_several() -> None:
    program = applied(convolution(), Flatten(("relu_h", "relu_w"), "m"))
    golden(program, "flatten/division")
    keeps_meaning(convolution(), program)


def test_an_index_that_counts_through_all_loops_needs_no_division() -> None:
    steps = (Inline("pad"), WINDOWS, ReverseInline("relu"), Flatten(("conv_out_0", "conv_out_1"), "m"))
    program = applied(convolution(), *steps)
    golden(program, "flatten/counted")
    keeps_meaning(convolution(), program)


@pytest.mark.parametrize("step", [PLAIN, WINDOWS, Flatten(("a", "b"), "m")])
def test_steps_survive_json(step: Step) -> None:
    assert decode(encode(step), STEPS) == step


def framed(**changed: object) -> Frame:
    fields: dict[str, object] = {"block": "mm", "rows": ("mm_m",), "columns": ("mm_n",), "sums": ("mm_k",)}
    return Frame(**{**fields, "tile": (4, 8, 4), **changed})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("before", "step", "why"),
    [
        ((), framed(block="x"), "there is no block x"),
        ((), framed(rows=("x",)), "loop x is not around block mm"),
        ((), framed(rows=()), "at least one of each"),
        ((), framed(rows=("mm_m", "mm_n")), "are different loops"),
        ((), framed(rows=("mm_k",), sums=("mm_m",)), "loop mm_m is not summed over"),
        ((), framed(tile=(0, 8, 4)), "the side 0 of the tile"),
        ((), framed(tile=(Poly.symbol("q"), 8, 4)), "q is not a parameter"),
        ((Split("mm_k", (4,), ("k0", "k1")),), framed(), "the iterations of block mm are not those of its loops"),
        ((Fuse(("mm_m", "mm_n")),), framed(), "not alone in a nest of serial loops"),
        ((DecomposeReduction("mm", "mm_k"),), framed(), "is not a complete sum"),
        ((PLAIN,), framed(rows=("mm_m",), columns=("mm_n",), sums=("mm_k",)), "is taken already"),
    ],
)
def test_a_frame_that_makes_no_sense_is_refused(before: tuple[Step, ...], step: Frame, why: str) -> None:
    refuses(applied(matmul(), *before), step, why)


def test_what_is_no_product_gets_no_frame() -> None:
    refuses(normalise(), Frame("total", ("total_i",), ("total_i",), ("total_j",), (4, 4, 4)), "are different loops")
    refuses(normalise(), Frame("square", ("square_i",), ("square_j",), ("x",), (4, 4, 4)), "not a complete sum")


@pytest.mark.parametrize(
    ("step", "why"),
    [
        (Flatten(("mm_m",), "x"), "it takes two loops"),
        (Flatten(("mm_m", "x"), "y"), "there is no loop x"),
        (Flatten(("mm_n", "mm_m"), "x"), "is not the whole body"),
        (Flatten(("mm_m", "mm_k"), "x"), "is not the whole body"),
        (Flatten(("mm_n", "mm_k"), "x"), "loop mm_k is no spatial iteration"),
        (Flatten(("mm_m", "mm_n"), "mm_k"), "the name mm_k is taken"),
    ],
)
def test_loops_that_cannot_be_one_are_refused(step: Flatten, why: str) -> None:
    refuses(matmul(), step, why)


def test_a_split_loop_is_not_flattened() -> None:
    split = (Split("blur_i", (4,), ("i0", "i1")),)
    refuses(applied(stencil(), *split), Flatten(("i0", "i1"), "m"), "loop i0 is no spatial iteration")
