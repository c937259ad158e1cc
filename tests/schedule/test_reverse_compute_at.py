"""ReverseComputeAt: consumers in the loops of their producers."""

from __future__ import annotations

import pytest

from pipeline.ir.poly import Poly
from pipeline.schedule.sketch import Sketch
from pipeline.schedule.steps import (
    CacheWrite,
    DecomposeReduction,
    Parallel,
    Reorder,
    ReverseComputeAt,
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
    normalise,
    refuses,
    stencil,
)


def test_a_consumer_handles_what_one_iteration_produced() -> None:
    sketch = Sketch(feed_forward()).declare(Tile(("t",), 13, (1,), (13,)))
    sketch = sketch.apply(Split("mm_n", (Poly.symbol("t"),), ("n0", "n1"))).apply(Reorder(("n0", "mm_m", "n1")))
    sketch = sketch.apply(ReverseComputeAt("bias", "n0"))
    golden(sketch.program, "reverse_compute_at/tile")
    keeps_meaning(feed_forward(), sketch, samples=8)


def test_a_chain_of_consumers_moves_one_after_another() -> None:
    steps = (ReverseComputeAt("bias", "mm_m"), ReverseComputeAt("act", "mm_m"), ReverseComputeAt("out", "act_0"))
    keeps_meaning(feed_forward(), applied(feed_forward(), *steps, Parallel("mm_m")))


def test_a_consumer_of_a_part_is_clipped_to_it() -> None:
    keeps_meaning(stencil(), applied(stencil(), Split("blur_i", (4,), ("i0", "i1")), ReverseComputeAt("first", "i0")))


def test_a_write_cache_is_followed_by_the_consumer() -> None:
    steps = (CacheWrite("mm", "local", "mm_m"), ReverseComputeAt("bias", "mm_m"), Parallel("mm_m"))
    keeps_meaning(feed_forward(), applied(feed_forward(), *steps))


@pytest.mark.parametrize("size", [1, 3, 8])
def test_a_relu_follows_its_convolution_at_any_size(size: int) -> None:
    before = convolution(size, size + 1)
    steps = (Split("conv_w", (3,), ("w0", "w1")), ReverseComputeAt("relu", "w0"), Parallel("conv_h"))
    keeps_meaning(before, applied(before, *steps))


@pytest.mark.parametrize(
    ("before", "step", "why"),
    [
        ((), ReverseComputeAt("x", "mm_m"), "there is no block x"),
        ((), ReverseComputeAt("bias", "x"), "there is no loop x"),
        ((), ReverseComputeAt("bias", "mm_k"), "block mm is not complete in one iteration: it reduces over mm_k"),
        ((), ReverseComputeAt("act", "mm_m"), "nothing in loop mm_m writes what block act reads"),
        ((), ReverseComputeAt("bias", "bias_i"), "is in the region of loop bias_i already"),
        ((), ReverseComputeAt("mm", "bias_i"), "block mm is a reduction"),
        (
            (Split("bias_i", (4,), ("i0", "i1")), Split("i1", (3,), ("i1", "i2"))),
            ReverseComputeAt("bias", "mm_m"),
            "has a condition",
        ),
        (
            (Split("mm_m", (4,), ("m0", "m1")), Split("m1", (3,), ("m1", "m2"))),
            ReverseComputeAt("bias", "m0"),
            "a condition of block mm leaves out part",
        ),
        (
            (Split("mm_m", (2, 3), ("m0", "m1", "m2")), Reorder(("m2", "m0", "m1"))),
            ReverseComputeAt("bias", "m0"),
            "leaves gaps along m",
        ),
        (
            (DecomposeReduction("mm", "mm_k"), Vectorize("mm_k")),
            ReverseComputeAt("bias", "mm_k"),
            "loop mm_k is vectorized",
        ),
    ],
)
def test_a_consumer_that_cannot_follow_is_refused(before: tuple[Step, ...], step: ReverseComputeAt, why: str) -> None:
    refuses(applied(feed_forward(), *before), step, why)


def test_a_consumer_that_reads_around_a_point_does_not_follow() -> None:
    refuses(stencil(), ReverseComputeAt("blur", "double_i"), "reads D at 3 places, not at one")


def test_a_consumer_waits_for_its_other_operands() -> None:
    refuses(normalise(), ReverseComputeAt("out", "square_i"), "block total writes S, which block out reads, too late")
