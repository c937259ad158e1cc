"""What loops carry: nothing, a reduction, or an order."""

from __future__ import annotations

import pytest

from pipeline.ir.program import Program
from pipeline.ir.program_parse import from_text
from pipeline.schedule.dependence import carried
from pipeline.schedule.nest import axes_of, extents, loop_at
from pipeline.schedule.steps import CacheWrite, ComputeAt, DecomposeReduction, Reorder, ReverseComputeAt, Split, Step
from tests.schedule.programs import applied, convolution, feed_forward, matmul, running_sum, stencil

TILES = (
    Split("mm_m", (3,), ("m0", "m1")),
    Split("mm_k", (3,), ("k0", "k1")),
    Reorder(("k0", "m0", "mm_n", "m1", "k1")),
)


def kind(program: Program, name: str) -> str:
    loop, _ = loop_at(program, name)
    return carried(loop.body, loop.axes[0], {}).kind


@pytest.mark.parametrize(
    ("program", "steps", "loop", "expected"),
    [
        (matmul(), (), "mm_m", "none"),
        (matmul(), (), "mm_k", "reduction"),
        (matmul(), TILES, "m0", "none"),
        (matmul(), TILES, "m1", "none"),
        (matmul(), TILES, "k0", "reduction"),
        (matmul(), (*TILES, CacheWrite("mm", "local", "mm_n")), "k0", "reduction"),
        (matmul(), (*TILES, CacheWrite("mm", "local", "mm_n")), "m0", "none"),
        (matmul(), (*TILES, CacheWrite("mm", "local", "mm_n")), "k1", "reduction"),
        (matmul(), (DecomposeReduction("mm", "mm_k"),), "mm_n", "none"),
        (matmul(1, 1, 1), (), "mm_k", "none"),
        (running_sum(), (), "run_i", "none"),
        (running_sum(), (), "run_j", "order"),
        (running_sum(), (Split("run_j", (2,), ("j0", "j1")),), "j1", "order"),
        (convolution(), (), "conv_h", "none"),
        (convolution(), (), "conv_r", "reduction"),
        (convolution(), (ComputeAt("pad", "conv_h"),), "conv_h", "order"),
        (convolution(), (ComputeAt("pad", "conv_h", "shared"),), "conv_h", "none"),
        (feed_forward(), (ReverseComputeAt("bias", "mm_m"),), "mm_m", "none"),
        (stencil(), (ComputeAt("blur", "first_i"),), "first_i", "none"),
    ],
)
def test_a_loop_carries_what_its_accesses_say(
    program: Program, steps: tuple[Step, ...], loop: str, expected: str
) -> None:
    assert kind(applied(program, *steps), loop) == expected


def test_varying_outer_loops_may_meet_where_a_fixed_one_does_not() -> None:
    """At one m1 the inner part tells iterations apart; with m0 varying as well only both together do."""
    program = applied(matmul(), Split("mm_m", (3,), ("m0", "m1")))
    outer, place = loop_at(program, "m0")
    inside = loop_at(program, "m1")[0]
    assert carried(inside.body, inside.axes[0], extents(outer.axes)).kind == "none"
    assert carried(inside.body, outer.axes[0], extents(axes_of((inside,)))).kind == "none"
    assert not place.path


def test_what_one_block_stores_at_indices_that_are_not_affine_is_told_apart_by_its_iterations() -> None:
    program = from_text("""program turned():
    input X: float32[6]
    output Y: float32[3, 2]
    body:
        for a in serial(6):
            block turn:
                spatial i in range(6) = a
                Y[i // 2, i % 2] = X[i]
""")
    assert kind(program, "a") == "none"


def test_a_block_that_reads_what_it_stores_is_not_told_apart_so() -> None:
    program = from_text("""program turned():
    input X: float32[6]
    output Y: float32[3, 2]
    body:
        for a in serial(6):
            block turn:
                spatial i in range(6) = a
                Y[i // 2, i % 2] = X[i] + guard(i >= 1, Y[0, 0], 0.0:float32)
""")
    assert kind(program, "a") == "order"
