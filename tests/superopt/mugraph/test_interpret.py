"""Tests of running µGraphs: what each map, loop, accumulator and omap means, and errors that name their place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pipeline.errors import CheckError, UserError
from pipeline.ir import graph as g
from pipeline.ir.algebra import FloatAlgebra
from pipeline.superopt.mugraph.graph import (
    Accumulate,
    Axis,
    BlockGraph,
    BlockInput,
    BlockNode,
    BlockOutput,
    Concat,
    Contract,
    Fold,
    KernelNode,
    Map,
    MuGraph,
    RescaledSum,
    Running,
    Scalar,
    Squeeze,
    Transpose,
    Unsqueeze,
)
from pipeline.superopt.mugraph.interpret import run_mugraph
from pipeline.superopt.mugraph.shape_algebra import result_shapes
from pipeline.superopt.proof.witness import float_feeds
from tests.superopt.hand_mugraphs import HAND, HandMuGraph, axes, nodes, one_kernel

X = np.arange(24.0).reshape(4, 6)


def run(graph: MuGraph, extents: Mapping[str, int] | None = None, **feeds: np.ndarray) -> np.ndarray:
    return run_mugraph(graph, feeds, FloatAlgebra(), extents)[0]


def block(
    written: Sequence[Any], omap: Sequence[Any], value: int | None = None, *, grid: Sequence[Axis] = (),
    loops: Sequence[Axis] = (), imap: Sequence[int | None] = (), fmap: Sequence[int | None] = (),
) -> MuGraph:  # fmt: skip
    """One kernel on X."""
    body = nodes(*written)
    last = len(body) if value is None else value
    tile = BlockInput(tuple(imap), tuple(fmap))
    return one_kernel(("X",), BlockGraph(tuple(grid), tuple(loops), (tile,), body, (BlockOutput(last, tuple(omap)),)))


def test_grid_points_take_equal_consecutive_pieces_and_put_theirs_side_by_side() -> None:
    graph = block([(Fold("sum", (1,)), (0,))], (1,), grid=[Axis("g", 3)], imap=[1])
    np.testing.assert_array_equal(run(graph, X=X), X.reshape(4, 3, 2).sum(2))


def test_a_dimension_is_cut_by_the_grid_first_and_then_by_the_loops_in_order() -> None:
    graph = block(
        [(Accumulate("concat", 0, 1), (0,))], (0,), grid=[Axis("g", 2)], loops=[Axis("a", 3), Axis("b", 2)],
        imap=[0], fmap=[0, 0],
    )  # fmt: skip
    out = run(graph, X=np.arange(24.0).reshape(24, 1))
    np.testing.assert_array_equal(out, np.arange(24.0).reshape(2, 6, 2).transpose(0, 2, 1).reshape(4, 6))


def test_an_axis_that_partitions_nothing_repeats_and_its_sum_counts_every_point() -> None:
    copies = block([(Map("identity"), (0,))], (0,), grid=[Axis("g", 3)], imap=[None])
    np.testing.assert_array_equal(run(copies, X=X), np.concatenate([X] * 3))
    total = block([(Map("identity"), (0,))], ("sum",), grid=[Axis("g", 3)], imap=[None])
    np.testing.assert_array_equal(run(total, X=X), 3 * X)


@pytest.mark.parametrize(
    ("omap", "expected"),
    [
        (("sum", "stack"), X.reshape(2, 2, 3, 2).sum(0).transpose(1, 0, 2)),
        (("stack", "stack"), X.reshape(2, 2, 3, 2).transpose(0, 2, 1, 3)),
        (("max", 1), X.reshape(2, 2, 6).max(0)),
        ((0, "max"), X.reshape(4, 3, 2).max(1)),
        ((1, 0), X.reshape(2, 2, 3, 2).transpose(2, 1, 0, 3).reshape(6, 4)),
        ((0, 1), X),
    ],
)
def test_tiles_are_joined_as_the_omap_says(omap: tuple[Any, ...], expected: np.ndarray) -> None:
    graph = block([(Map("identity"), (0,))], omap, grid=[Axis("a", 2), Axis("b", 3)], imap=[0, 1])
    np.testing.assert_array_equal(run(graph, X=X), expected)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("sum", X.reshape(2, 2, 6).sum(0)), ("max", X[2:]), ("min", X[:2]), ("prod", X[:2] * X[2:]), ("last", X[2:])],
)
def test_accumulators_combine_what_their_operand_is_in_the_loop(kind: Any, expected: np.ndarray) -> None:
    graph = block([(Accumulate(kind), (0,))], (), loops=[Axis("k", 2)], fmap=[0])
    np.testing.assert_array_equal(run(graph, X=X), expected)


def test_an_accumulator_of_an_inner_loop_starts_anew_in_each_iteration_of_the_outer_one() -> None:
    written = [(Accumulate("sum", 1), (0,)), (Map("mul"), (1, 1)), (Accumulate("sum", 0), (2,))]
    graph = block(written, (), loops=[Axis("a", 2), Axis("b", 3)], fmap=[0, 1])
    np.testing.assert_array_equal(run(graph, X=X), (X.reshape(2, 2, 3, 2).sum(2) ** 2).sum(0))


def test_a_running_maximum_is_read_in_the_loop_and_its_last_value_after_it() -> None:
    data = np.array([[3.0], [1.0], [5.0], [2.0]])
    running = [(Running("max"), (0,)), (Accumulate("sum"), (1,)), (Accumulate("last"), (1,))]
    assert run(block(running, (), 2, loops=[Axis("k", 4)], fmap=[0]), X=data).item() == 3 + 3 + 5 + 5
    assert run(block(running, (), 3, loops=[Axis("k", 4)], fmap=[0]), X=data).item() == 5


def test_a_rescaled_sum_is_the_sum_as_seen_from_the_last_maximum() -> None:
    data = np.array([[3.0], [1.0], [5.0], [2.0]])
    written = [(Running("max"), (0,)), (Map("sub"), (0, 1)), (Map("exp"), (2,)), (RescaledSum(), (3, 1))]
    out = run(block(written, (), loops=[Axis("k", 4)], fmap=[0]), X=data).item()
    assert out == pytest.approx(np.exp(data - 5).sum(), rel=1e-15)


def test_tile_operators_do_what_they_say() -> None:
    graph = MuGraph(
        ("X",),
        (
            KernelNode(Unsqueeze((0, 2)), (0,)),  # 1: (1, 4, 1, 6)
            KernelNode(Transpose((3, 1, 0, 2)), (1,)),  # (6, 4, 1, 1)
            KernelNode(Squeeze((2, 3)), (2,)),  # (6, 4)
            KernelNode(Fold("sum", (0,), 2), (3,)),  # (2, 4)
            KernelNode(Concat(0), (3, 4)),  # (8, 4)
            KernelNode(Scalar(2.0), ()),
            KernelNode(Map("mul"), (5, 6)),
            KernelNode(Contract("ij,kl->ki"), (7, 0)),  # sums j and l
        ),
        (8,),
    )
    t = X.T
    whole = 2 * np.concatenate([t, t[0::2].sum(0, keepdims=True), t[1::2].sum(0, keepdims=True)])
    np.testing.assert_array_equal(run(graph, X=X), np.outer(X.sum(1), whole.sum(1)))


def test_an_extent_that_is_given_comes_before_the_one_that_is_fixed() -> None:
    graph = block([(Fold("sum", (0,)), (0,))], (0,), grid=[Axis("g", 2)], imap=[0])
    assert run(graph, X=X).shape == (2, 6)
    assert run(graph, {"g": 4}, X=X).shape == (4, 6)


def pointwise(graph: MuGraph, feeds: Mapping[str, np.ndarray], extents: Mapping[str, int]) -> list[np.ndarray]:
    """Every grid point by itself, as a block without a grid: what the interpreter must give for all at once."""
    tensors = [feeds[name] for name in graph.inputs]
    for kernel in graph.nodes:
        operands = [tensors[i] for i in kernel.inputs]
        if not isinstance(kernel.op, BlockGraph):
            alone = MuGraph(tuple(f"{i}" for i in range(len(operands))), (replace(kernel, inputs=tuple(
                range(len(operands)))),), (len(operands),))  # fmt: skip
            tensors += run_mugraph(alone, {f"{i}": x for i, x in enumerate(operands)}, FloatAlgebra(), extents)
        else:
            tensors += _points(kernel.op, operands, extents)
    return [tensors[i] for i in graph.outputs]


def _points(body: BlockGraph, operands: list[np.ndarray], extents: Mapping[str, int]) -> list[np.ndarray]:
    grid = tuple(extents[axis.name] for axis in body.grid)
    names = tuple(f"{i}" for i in range(len(operands)))
    inner = replace(
        body, grid=(), inputs=tuple(replace(tile, imap=()) for tile in body.inputs),
        outputs=tuple(replace(out, omap=()) for out in body.outputs),
    )  # fmt: skip
    count = len(operands)
    alone = MuGraph(names, (KernelNode(inner, tuple(range(count))),), tuple(range(count, count + len(body.outputs))))
    made: list[dict[tuple[int, ...], np.ndarray]] = [{} for _ in body.outputs]
    for point in np.ndindex(*grid):
        feeds = {}
        for name, x, tile in zip(names, operands, body.inputs, strict=True):
            for at, extent, dim in zip(point, grid, tile.imap, strict=True):
                if dim is not None:
                    x = np.split(x, extent, axis=dim)[at]
            feeds[name] = x
        for results, value in zip(made, run_mugraph(alone, feeds, FloatAlgebra(), extents), strict=True):
            results[point] = value
    return [_join(results, grid, out.omap) for results, out in zip(made, body.outputs, strict=True)]


def _join(results: Mapping[tuple[int, ...], np.ndarray], grid: tuple[int, ...], omap: tuple[Any, ...]) -> np.ndarray:
    if not grid:
        return results[()]
    tail = [
        _join({point[1:]: x for point, x in results.items() if point[0] == at}, grid[1:], omap[1:])
        for at in range(grid[0])
    ]
    stacked = sum(how == "stack" for how in omap[1:])
    match omap[0]:
        case "sum":
            return np.sum(tail, axis=0)
        case "max":
            return np.max(tail, axis=0)
        case "stack":
            return np.stack(tail)
        case dim:
            return np.concatenate(tail, axis=stacked + dim)


@pytest.mark.parametrize("make", HAND, ids=lambda make: make.__name__)
def test_all_grid_points_at_once_give_what_each_gives_by_itself(make: Any) -> None:
    case: HandMuGraph = make()
    inputs = {node.op.name: node.type for node in case.spec.nodes if isinstance(node.op, g.Input)}
    feeds = next(float_feeds(inputs, np.random.default_rng(0)))
    found = run_mugraph(case.mugraph, feeds, FloatAlgebra(), case.extents)
    for have, want in zip(found, pointwise(case.mugraph, feeds, case.extents), strict=True):
        np.testing.assert_allclose(have, want, rtol=1e-13)


@pytest.mark.parametrize("make", HAND, ids=lambda make: make.__name__)
def test_shapes_are_those_of_the_values(make: Any) -> None:
    case: HandMuGraph = make()
    shapes = {node.op.name: node.type.shape for node in case.spec.nodes if isinstance(node.op, g.Input)}
    found = run_mugraph(
        case.mugraph, {key: np.ones(shape) for key, shape in shapes.items()}, FloatAlgebra(), case.extents
    )
    assert result_shapes(case.mugraph, shapes, case.extents) == tuple(x.shape for x in found)


LOOP = [Axis("k", 2)]
BAD: dict[str, tuple[MuGraph, str]] = {
    "read_in_its_loop": (
        block([(Accumulate("sum"), (0,)), (Map("add"), (0, 1)), (Accumulate("sum"), (2,))], (), loops=LOOP, fmap=[0]),
        r"kernel 0, node 1 \(Map\): an accumulator is read inside its own loops",
    ),
    "nothing_to_accumulate": (
        block([(Accumulate("sum"), (0,))], (), loops=LOOP, fmap=[None]),
        r"kernel 0, node 0 \(Accumulate\): the operand does not vary in the loops",
    ),
    "output_in_the_loop": (
        block([(Map("exp"), (0,))], (), loops=LOOP, fmap=[0]),
        "kernel 0, value 1: an output is inside the loops",
    ),
    "does_not_divide": (
        block([(Map("exp"), (0,))], (0,), grid=[Axis("g", 5)], imap=[0]),
        r"kernel 0, input 0: a dimension is not cut into equal pieces. dimension 0 of \(4, 6\) into 5",
    ),
    "no_such_dimension": (
        block([(Map("exp"), (0,))], (0,), grid=[Axis("g", 2)], imap=[2]),
        "kernel 0, input 0: a map names a dimension that is not there",
    ),
    "no_such_output_dimension": (
        block([(Map("exp"), (0,))], (4,), grid=[Axis("g", 2)], imap=[0]),
        "kernel 0, value 1: an omap names a dimension that is not there",
    ),
    "no_broadcast": (
        block([(Transpose((1, 0)), (0,)), (Map("add"), (0, 1))], ()),
        r"kernel 0, node 1 \(Map\): the operands do not fit",
    ),
    "no_contraction": (
        block([(Contract("ij,ji->i"), (0, 0))], ()), r"kernel 0, node 0 \(Contract\): the operands disagree",
    ),
    "letter_twice": (
        block([(Contract("ii,ij->i"), (0, 0))], ()), r"kernel 0, node 0 \(Contract\): no contraction of two operands",
    ),
    "no_such_axis": (block([(Fold("sum", (2,)), (0,))], ()), r"kernel 0, node 0 \(Fold\): an axis is not there"),
    "fold_does_not_divide": (
        block([(Fold("sum", (1,), 4), (0,))], ()),
        r"kernel 0, node 0 \(Fold\): a dimension is not cut into equal pieces",
    ),
    "not_of_extent_one": (
        block([(Squeeze((1,)), (0,))], ()), r"kernel 0, node 0 \(Squeeze\): a dimension that is taken out",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_what_does_not_fit_is_refused_with_its_place(name: str) -> None:
    graph, message = BAD[name]
    with pytest.raises(CheckError, match=message):
        run(graph, X=X)


def test_an_input_or_an_extent_that_is_missing_is_named() -> None:
    graph = block([(Map("exp"), (0,))], (0,), grid=[Axis("rows")], imap=[0])
    with pytest.raises(UserError, match="X: an input is missing"):
        run(graph)
    with pytest.raises(CheckError, match="kernel 0, axis rows: an axis has no extent"):
        run(graph, X=X)


def test_the_written_nodes_are_block_nodes() -> None:
    assert nodes((Map("exp"), (0,))) == (BlockNode(Map("exp"), (0,)),) and axes("a") == (Axis("a"),)
