"""Rfactor: partial results side by side."""

from __future__ import annotations

import pytest

from pipeline.ir.poly import Poly
from pipeline.schedule.sketch import Sketch
from pipeline.schedule.steps import (
    CacheWrite,
    DecomposeReduction,
    Fuse,
    Parallel,
    Reorder,
    Rfactor,
    Split,
    Step,
    Vectorize,
)
from pipeline.schedule.variables import Choice
from tests.schedule.programs import applied, feed_forward, golden, keeps_meaning, matmul, normalise, refuses


def test_each_iteration_of_the_loop_has_an_element_of_its_own() -> None:
    sketch = Sketch(matmul()).declare(Choice("t", (1, 2, 3, 7, 8)))
    sketch = sketch.apply(Split("mm_k", (Poly.symbol("t"),), ("k0", "k1"))).apply(Rfactor("mm", "k1", 1))
    golden(sketch.program, "rfactor/lanes")
    keeps_meaning(matmul(), sketch, samples=12)


def test_the_factored_loop_is_parallel_and_vectorized() -> None:
    steps = (Split("mm_k", (4,), ("k0", "k1")), Rfactor("mm", "k0"), Reorder(("k0", "mm_m", "mm_n")), Parallel("k0"))
    keeps_meaning(matmul(), applied(matmul(), *steps))
    keeps_meaning(
        matmul(), applied(matmul(), Split("mm_k", (4,), ("k0", "k1")), Rfactor("mm", "k1", 2), Vectorize("k1"))
    )


def test_an_initial_value_that_is_not_neutral_counts_once() -> None:
    keeps_meaning(normalise(), applied(normalise(), Split("total_j", (3,), ("j0", "j1")), Rfactor("total", "j1", 1)))
    keeps_meaning(normalise(), applied(normalise(), Split("top_j", (3,), ("j0", "j1")), Rfactor("top", "j0", 0)))


@pytest.mark.parametrize(
    ("before", "step", "why"),
    [
        ((), Rfactor("x", "mm_k"), "there is no block x"),
        ((), Rfactor("mm", "x"), "there is no loop x"),
        ((), Rfactor("mm", "mm_m"), "loop mm_m is not a reduction loop"),
        ((), Rfactor("mm", "mm_k", 3), "one of 0 to 2, not 3"),
        ((DecomposeReduction("mm", "mm_m"),), Rfactor("mm", "mm_k"), "was decomposed"),
        ((Fuse(("mm_n", "mm_k")),), Rfactor("mm", "mm_n"), "factor before fusing"),
        ((CacheWrite("mm", "local", "mm_m"),), Rfactor("mm", "mm_k"), "not alone in its region"),
        ((Split("mm_k", (4,), ("k0", "k1")), Split("k1", (3,), ("k1", "k2"))), Rfactor("mm", "k2"), "has a condition"),
    ],
)
def test_a_loop_that_cannot_be_factored_is_refused(before: tuple[Step, ...], step: Rfactor, why: str) -> None:
    refuses(applied(matmul(), *before), step, why)


def test_only_a_reduction_is_factored() -> None:
    refuses(feed_forward(), Rfactor("bias", "bias_i"), "block bias is not a reduction")
