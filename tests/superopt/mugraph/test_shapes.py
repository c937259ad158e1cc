"""Shapes of µGraphs: what a tile and a result measure, and what does not divide or fit."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pipeline.errors import CheckError
from pipeline.ir.algebra import FloatAlgebra
from pipeline.superopt.mugraph.builder import MuGraphBuilder
from pipeline.superopt.mugraph.check import check
from pipeline.superopt.mugraph.graph import (
    Accumulate,
    Concat,
    Contract,
    Fold,
    Map,
    RescaledSum,
    Scalar,
    Squeeze,
    Transpose,
    Unsqueeze,
)
from pipeline.superopt.mugraph.interpret import run_mugraph
from pipeline.superopt.mugraph.operator import result_shape
from pipeline.superopt.mugraph.shapes import shapes
from tests.superopt.expert_mugraphs import (
    EXPERT,
    EXPERT_SHAPES,
    online_attention,
    rmsnorm_linear,
    split_decoding,
    split_product,
)
from tests.superopt.random_mugraphs import RandomMuGraph, mugraphs, mutated


def test_tiles_are_what_grid_and_loops_leave() -> None:
    found = shapes(rmsnorm_linear(), {"x": (8, 64), "w": (64, 96)}, {"n": 6, "k": 4})
    assert found.tensors == ((8, 64), (64, 96), (8, 96))
    (block,) = found.blocks
    assert block is not None
    assert (block.grid, block.loops, block.points) == ((6,), (4,), 6)
    assert block.tiles == (
        *((8, 16), (16, 16), (8, 16)),
        *((8, 1), (8, 1), (8, 16), (8, 16), (), (8, 1), (8, 1), (8, 16)),
    )
    assert block.tile_bytes(2)[:3] == (256, 512, 256) and block.tile_bytes()[7] == 4


@pytest.mark.parametrize("name", EXPERT)
def test_what_an_expert_writes_has_shapes(name: str) -> None:
    inputs, extents = EXPERT_SHAPES[name]
    found = shapes(EXPERT[name], inputs, extents)
    assert found.tensors[: len(inputs)] == tuple(inputs.values())
    assert len(found.blocks) == len(EXPERT[name].nodes)


@given(mugraphs(kernels=2), st.integers(0, 2**32))
@settings(max_examples=150, deadline=None)
def test_what_is_valid_and_has_shapes_runs_and_has_those(made: RandomMuGraph, seed: int) -> None:
    """Also after a change that leaves it valid."""
    graph = mutated(made.graph, random.Random(seed))
    try:
        check(graph, {name: len(shape) for name, shape in made.inputs.items()})
        found = shapes(graph, made.inputs, made.extents)
    except CheckError:
        graph = made.graph
        found = shapes(graph, made.inputs, made.extents)
    assume(all(math.prod(shape) < 1e5 for block in found.blocks if block is not None for shape in block.tiles))
    feeds = {name: np.full(shape, 0.5) for name, shape in made.inputs.items()}
    results = run_mugraph(graph, feeds, FloatAlgebra(), made.extents)
    assert [result.shape for result in results] == [found.tensors[i] for i in graph.outputs]


def test_a_dimension_is_cut_by_the_grid_and_by_the_loop() -> None:
    graph = split_product()
    found = shapes(graph, {"x": (3, 30), "w": (30, 8)}, {"n": 2, "s": 3, "k": 5})
    (block,) = found.blocks
    assert block is not None and block.tiles[:2] == ((3, 2), (2, 4)) and block.results == ((3, 8),)


def test_stacked_axes_lead_the_result() -> None:
    found = shapes(split_decoding(), {"q": (4, 8), "k": (4, 20, 8), "v": (4, 20, 8)}, {"h": 2, "s": 5, "n": 2})
    assert found.tensors[3:] == ((5, 4, 1), (5, 4, 8), (1, 4, 1), (4, 1), (1, 4, 8), (4, 8), (4, 8))
    assert found.blocks[1:] == (None,) * 5


def test_concatenation_over_loops_counts_the_iterations_from_its_level_to_the_depth_of_its_operand() -> None:
    b = MuGraphBuilder()
    x, y = b.input("x", 3), b.input("y", 3)
    with b.kernel(loops={"i": 2, "j": 3, "l": 5}) as k:
        tx, ty = k.load(x, fmap={"i": 0, "j": 1}), k.load(y, fmap={"l": 2})
        inner = k.accumulate("concat", tx, axis=2, loop="j")
        first, second = k.store(k.accumulate("sum", inner)), k.store(k.accumulate("concat", ty, axis=2))
    found = shapes(b.finish(first, second), {"x": (4, 9, 1), "y": (1, 1, 10)})
    assert found.tensors[2:] == ((2, 3, 3), (1, 1, 60))


def test_online_attention_keeps_rows_and_columns_apart() -> None:
    found = shapes(online_attention(), {"q": (2, 6, 8), "k": (2, 10, 8), "v": (2, 10, 4)}, {"h": 2, "m": 3, "n": 5})
    block = found.blocks[0]
    assert block is not None and block.results == ((2, 6, 4),)
    assert block.tiles[3:6] == ((1, 2, 2), (1, 2, 1), (1, 2, 1)) and block.tiles[-1] == (1, 2, 4)


@pytest.mark.parametrize(
    ("inputs", "extents", "why"),
    [
        ({"x": (8, 64)}, {"n": 6, "k": 4}, "w not given"),
        ({"x": (8, 64), "w": (64, 96)}, {"n": 6}, "axis k"),
        ({"x": (8, 64), "w": (64, 96)}, {"n": 6, "k": 0}, "Its extent is 0"),
        ({"x": (8, 64), "w": (64, 96)}, {"n": 5, "k": 4}, "96 (dimension 1 of (64, 96)) is no multiple of 5"),
        ({"x": (8, 60), "w": (64, 96)}, {"n": 6, "k": 4}, "k is 15 and 16"),
    ],
)
def test_what_does_not_divide_or_fit_is_refused(inputs: dict, extents: dict, why: str) -> None:
    with pytest.raises(CheckError) as caught:
        shapes(rmsnorm_linear(), inputs, extents)
    assert why in str(caught.value)


def test_a_fixed_extent_is_taken_where_none_is_given() -> None:
    graph, inputs = rmsnorm_linear(loop=4), {"x": (8, 64), "w": (64, 96)}
    assert shapes(graph, inputs, {"n": 6}) == shapes(rmsnorm_linear(), inputs, {"n": 6, "k": 4})
    assert shapes(graph, inputs, {"n": 6, "k": 2}) == shapes(rmsnorm_linear(), inputs, {"n": 6, "k": 2})


@pytest.mark.parametrize(
    ("op", "operands", "result"),
    [
        (Scalar(1.0), (), ()),
        (Map("add"), ((3, 1), (2, 1, 5)), (2, 3, 5)),
        (Map("add"), ((0,), (1,)), (0,)),
        (Contract("ab,cb->ca"), ((2, 3), (5, 3)), (5, 2)),
        (Fold("sum", (0,)), ((6, 5),), (1, 5)),
        (Fold("sum", (0, 1), 2), ((6, 4),), (2, 2)),
        (Transpose((2, 0, 1)), ((2, 3, 5),), (5, 2, 3)),
        (Unsqueeze((0, 2)), ((2, 3),), (1, 2, 1, 3)),
        (Squeeze((0, 2)), ((1, 3, 1),), (3,)),
        (Concat(1), ((2, 3), (2, 5)), (2, 8)),
        (RescaledSum(), ((2, 3), (2, 1)), (2, 3)),
        (Accumulate("sum"), ((2, 3),), (2, 3)),
        (Accumulate("concat", 0, 1), ((2, 3),), (2, 12)),
    ],
    ids=str,
)
def test_the_shape_of_a_result_follows_from_the_operands(op, operands, result) -> None:  # type: ignore[no-untyped-def]
    assert result_shape(op, operands, 4) == result


@pytest.mark.parametrize(
    ("op", "operands"),
    [
        (Map("add"), ((3,), (2,))),
        (Contract("ab,cb->ca"), ((2, 3), (5, 1))),
        (Fold("sum", (0,), 4), ((6,),)),
        (Squeeze((0,)), ((2,),)),
        (Concat(1), ((2, 3), (3, 3))),
        (RescaledSum(), ((2, 1), (2, 3))),
    ],
    ids=str,
)
def test_operands_that_give_no_shape_are_refused(op, operands) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(CheckError):
        result_shape(op, operands)
