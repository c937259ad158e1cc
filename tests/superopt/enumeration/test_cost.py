"""The roofline model tells what is worth telling apart: traffic, balance, barriers and what fits."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from pipeline.ir.target import Cache, Target
from pipeline.superopt.enumeration.cost import BARRIER, estimate, seconds_at
from pipeline.superopt.mugraph.graph import (
    Accumulate,
    Axis,
    BlockGraph,
    BlockInput,
    BlockNode,
    BlockOutput,
    Contract,
    KernelNode,
    Map,
    MuGraph,
)

TARGET = Target(
    "cpu", "any", "x86_64-unknown-linux-gnu", "any", (), 4, 256, 16, 2.0, 4, 3.0, 40.0,
    (Cache(1, 32 << 10), Cache(2, 1 << 20), Cache(3, 16 << 20, 16, 4)),
)  # fmt: skip
PRODUCT = BlockGraph(
    (Axis("m"), Axis("n")),
    (Axis("k"),),
    (BlockInput((0, None), (1,)), BlockInput((None, 1), (0,))),
    (BlockNode(Contract("ab,bc->ac"), (0, 1)), BlockNode(Accumulate("sum"), (2,))),
    (BlockOutput(3, (0, 1)),),
)
ONE = MuGraph(("x", "w"), (KernelNode(PRODUCT, (0, 1)),), (2,))
SHAPES = {"x": (64, 2048), "w": (2048, 4096)}


def at(m: int, n: int, k: int) -> dict[str, int]:
    return {"m": m, "n": n, "k": k}


def test_work_that_only_some_cores_have_takes_longer() -> None:
    one, four, five = (seconds_at(ONE, SHAPES, at(1, n, 16), TARGET) for n in (1, 4, 5))
    assert one > 3 * four
    assert five > 1.3 * four, "the fifth block keeps one core busy while three wait"


def test_reading_the_weights_again_for_every_block_of_rows_costs_traffic() -> None:
    assert seconds_at(ONE, SHAPES, at(16, 4, 16), TARGET) > seconds_at(ONE, SHAPES, at(1, 64, 16), TARGET)


def test_no_estimate_beats_the_memory_or_the_arithmetic() -> None:
    best = estimate(ONE, SHAPES, TARGET)
    flops, read = 2 * 64 * 2048 * 4096, 4 * 2048 * 4096
    assert best.seconds >= max(flops / (TARGET.peak_gflops() * 1e9), read / (TARGET.bandwidth_gbs * 1e9)) + BARRIER
    assert best.seconds == pytest.approx(seconds_at(ONE, SHAPES, best.extents, TARGET))


def test_the_chosen_extents_keep_all_cores_busy() -> None:
    best = estimate(ONE, SHAPES, TARGET)
    assert best.extents["m"] * best.extents["n"] >= 4
    assert best.extents["n"] >= best.extents["m"], "the weights are far larger than the rows"


def test_an_axis_with_more_pieces_than_elements_is_refused() -> None:
    assert math.isinf(seconds_at(ONE, SHAPES, at(65, 1, 1), TARGET))
    assert math.isinf(seconds_at(ONE, SHAPES, at(1, 1, 4096), TARGET))


def test_pieces_that_do_not_divide_are_rounded_up() -> None:
    assert math.isfinite(seconds_at(ONE, {"x": (7, 13), "w": (13, 11)}, at(2, 4, 3), TARGET))


def test_a_second_kernel_costs_a_barrier_and_the_way_through_memory() -> None:
    epilogue = BlockGraph(
        (Axis("p"),), (), (BlockInput((0,), ()),), (BlockNode(Map("exp"), (0,)),), (BlockOutput(1, (0,)),)
    )
    two = MuGraph(("x", "w"), (KernelNode(PRODUCT, (0, 1)), KernelNode(epilogue, (2,))), (3,))
    inside = replace(PRODUCT, nodes=(*PRODUCT.nodes, BlockNode(Map("exp"), (3,))), outputs=(BlockOutput(4, (0, 1)),))
    fused = MuGraph(("x", "w"), (KernelNode(inside, (0, 1)),), (2,))
    apart, together = estimate(two, SHAPES, TARGET).seconds, estimate(fused, SHAPES, TARGET).seconds
    assert apart >= together + BARRIER


def test_a_fixed_extent_stays_as_it_is() -> None:
    fixed = replace(PRODUCT, grid=(Axis("m", 2), Axis("n")))
    assert estimate(MuGraph(("x", "w"), (KernelNode(fixed, (0, 1)),), (2,)), SHAPES, TARGET).extents["m"] == 2


def test_an_operator_on_whole_tensors_has_a_price_too() -> None:
    whole = MuGraph(("x", "w"), (KernelNode(Contract("ab,bc->ac"), (0, 1)),), (2,))
    assert BARRIER < estimate(whole, SHAPES, TARGET).seconds < 1.0


def test_tiles_that_do_not_fit_the_cache_cost_more() -> None:
    small = replace(TARGET, caches=(Cache(1, 32 << 10), Cache(2, 64 << 10), Cache(3, 16 << 20, 16, 4)))
    extents = at(1, 4, 16)  # 64 x 1024 elements of the result stay on each core
    assert seconds_at(ONE, SHAPES, extents, small) > 2 * seconds_at(ONE, SHAPES, extents, TARGET)


def test_a_result_cut_in_pieces_that_do_not_divide_meets_whole_tensors_again() -> None:
    gate = BlockGraph(
        (Axis("m2"), Axis("n2")),
        (),
        (BlockInput((0, 1), ()), BlockInput((0, 1), ())),
        (BlockNode(Map("mul"), (0, 1)),),
        (BlockOutput(2, (0, 1)),),
    )
    two = MuGraph(("x", "w", "b"), (KernelNode(PRODUCT, (0, 1)), KernelNode(gate, (3, 2))), (4,))
    odd = {"x": (1, 1021), "w": (1021, 1009), "b": (1, 1009)}
    assert math.isfinite(estimate(two, odd, TARGET).seconds)
    assert math.isfinite(seconds_at(two, odd, {**at(1, 8, 16), "m2": 1, "n2": 4}, TARGET))


def test_tiles_of_which_two_operands_round_up_differently_do_not_fit() -> None:
    joined = BlockGraph(
        (Axis("n"),),
        (Axis("k"),),
        (BlockInput((0,), (0,)), BlockInput((0,), (None,))),
        (BlockNode(Accumulate("concat", 0, 0), (0,)), BlockNode(Map("mul"), (2, 1))),
        (BlockOutput(3, (0,)),),
    )
    graph = MuGraph(("x", "y"), (KernelNode(joined, (0, 1)),), (2,))
    odd = {"x": (1009,), "y": (1009,)}
    assert math.isinf(seconds_at(graph, odd, {"n": 2, "k": 4}, TARGET))
    assert math.isfinite(seconds_at(graph, odd, {"n": 2, "k": 1}, TARGET))
    assert math.isfinite(estimate(graph, odd, TARGET).seconds)
