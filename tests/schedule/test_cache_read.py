"""CacheRead: a copy of the box that a block reads."""

from __future__ import annotations

import pytest

from pipeline.ir.poly import Poly
from pipeline.schedule.sketch import Sketch
from pipeline.schedule.steps import (
    CacheRead,
    ComputeAt,
    Inline,
    Parallel,
    Reorder,
    Split,
    Step,
    TransformLayout,
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


def test_the_copy_has_the_shape_of_the_box_that_is_read() -> None:
    sketch = Sketch(convolution(stride=2)).declare(Tile(("t",), 3, (1,), (3,)))
    sketch = sketch.apply(Split("conv_w", (Poly.symbol("t"),), ("w0", "w1"))).apply(Reorder(("conv_h", "w0", "w1")))
    sketch = sketch.apply(CacheRead("conv", "P", "shared", "w0"))
    assert [str(extent) for extent in sketch.program.buffer("P_shared").shape] == ["3", "1 + 2*t", "3"]
    golden(sketch.program, "cache_read/window")
    keeps_meaning(convolution(stride=2), sketch)


def test_several_loads_share_one_box() -> None:
    program = applied(stencil(), Split("blur_i", (4,), ("i0", "i1")), CacheRead("blur", "D", "local", "i0"))
    assert [str(extent) for extent in program.buffer("D_local").shape] == ["6"]
    golden(program, "cache_read/union")
    keeps_meaning(stencil(), program)


def test_a_padded_load_copies_only_what_is_in_bounds() -> None:
    steps = (Inline("pad"), Split("conv_h", (2,), ("h0", "h1")), CacheRead("conv", "X", "shared", "h0"), Parallel("h0"))
    keeps_meaning(convolution(), applied(convolution(), *steps))


@pytest.mark.parametrize("size", [1, 2, 7, 13])
def test_a_ragged_tile_is_copied_at_any_size(size: int) -> None:
    steps = (
        Split("mm_k", (4,), ("k0", "k1")),
        CacheRead("mm", "A", "shared", "k0"),
        CacheRead("mm", "B", "local", "k0"),
    )
    keeps_meaning(matmul(k=size), applied(matmul(k=size), *steps))


@pytest.mark.parametrize(
    ("before", "step", "why"),
    [
        ((), CacheRead("x", "A", "shared", "mm_m"), "there is no block x"),
        ((), CacheRead("mm", "A", "shared", "x"), "there is no loop x"),
        ((), CacheRead("mm", "A", "global", "mm_m"), "local or shared"),
        ((), CacheRead("mm", "Q", "shared", "mm_m"), "block mm does not read Q"),
        ((), CacheRead("mm", "A", "shared", "mm_m", "B"), "there is a buffer B already"),
        ((Vectorize("mm_k"),), CacheRead("mm", "A", "shared", "mm_k"), "loop mm_k is vectorized"),
    ],
)
def test_a_copy_that_makes_no_sense_is_refused(before: tuple[Step, ...], step: CacheRead, why: str) -> None:
    refuses(applied(matmul(), *before), step, why)


def test_what_is_being_written_is_not_copied() -> None:
    refuses(running_sum(), CacheRead("run", "Y", "shared", "run_i"), "block run writes Y in the same statement")
    program = applied(feed_forward(), ComputeAt("mm", "bias_i"))
    refuses(program, CacheRead("bias", "T", "shared", "bias_j"), "block mm writes T in the same region")


def test_elements_that_nobody_writes_are_not_copied() -> None:
    program = applied(feed_forward(), TransformLayout("T", (1, 4), (0, 1, 2)))
    refuses(program, CacheRead("bias", "T", "shared", "bias_i"), "some elements of T may never be written")
