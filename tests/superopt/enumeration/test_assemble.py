"""Labelled programs become µGraphs whose dimensions line up, without views that change nothing."""

from __future__ import annotations

from pipeline.superopt.enumeration.roles import Roles
from pipeline.superopt.mugraph.graph import (
    Accumulate,
    BlockGraph,
    Contract,
    RescaledSum,
    Running,
    Squeeze,
    Unsqueeze,
    depths,
)
from pipeline.superopt.mugraph.shapes import shapes as shapes_of
from tests.superopt import specs
from tests.superopt.enumeration.test_explore import explored


def best(name: str, roles: Roles, *, foreign: int = 1) -> tuple[BlockGraph, ...]:
    found, _ = explored(specs.SUITE[name](), roles, foreign=foreign)
    kernels = [node.op for node in found[0].graph.nodes]
    assert all(isinstance(kernel, BlockGraph) for kernel in kernels)
    return tuple(kernel for kernel in kernels if isinstance(kernel, BlockGraph))


def test_attention_needs_no_view_at_all() -> None:
    """A maximum that keeps its dimension of extent one broadcasts as it is."""
    (block,) = best("gqa", Roles((0, 1, 4), (2,)))
    assert not any(isinstance(node.op, Squeeze | Unsqueeze) for node in block.nodes)
    assert {node.op for node in block.nodes if isinstance(node.op, Running | RescaledSum)} == {Running(), RescaledSum()}


def test_a_product_has_one_letter_for_each_axis_and_its_result_in_ascending_order() -> None:
    (block,) = best("gqa", Roles((0, 1, 4), (2,)))
    for node in block.nodes:
        if isinstance(node.op, Contract):
            result = node.op.subscripts.partition("->")[2]
            assert "".join(sorted(result)) == result


def test_every_input_is_cut_by_the_axes_that_it_has_and_by_no_other() -> None:
    (block,) = best("gqa", Roles((0, 1, 4), (2,)))
    cut = {(tile.imap, tile.fmap) for tile in block.inputs}
    assert cut == {((0, 1, None), (None,)), ((0, None, None), (1,)), ((0, None, 2), (1,))}  # q, k, v


def test_a_loop_that_nothing_is_cut_by_is_left_out() -> None:
    found, _ = explored(specs.ntrans(), Roles((0,), (0,)))
    for one in found:
        for node in one.graph.nodes:
            assert isinstance(node.op, BlockGraph)
            assert all(any(tile.fmap[i] is not None for tile in node.op.inputs) for i in range(len(node.op.loops)))


def test_what_is_split_is_stacked_in_front_and_folded_by_the_second_kernel() -> None:
    first, second = best("gqa", Roles((0, 1, 2), (2,)))
    assert all(out.omap[2] == "stack" for out in first.outputs)
    assert second.loops == () and len(second.grid) == 2
    assert all(tile.imap[0] in (1, None) for tile in second.inputs), "the stacked dimension comes first"


def test_levels_count_the_loops_that_are_there() -> None:
    (block,) = best("gqa", Roles((0, 1, 4), (2, 3)))
    assert Accumulate("sum", 1) in [node.op for node in block.nodes], "the inner loop sums scores"
    depth = depths(block)
    assert all(depth[out.value] == 0 for out in block.outputs)


def test_the_result_has_the_shape_of_the_specification() -> None:
    for name, roles in (("gqa", Roles((0, 1, 2), (2,))), ("lora", Roles((0, 1, 2), ())), ("ntrans", Roles((0,), ()))):
        spec = specs.SUITE[name]()
        found, _ = explored(spec, roles)
        for one in found:
            inputs = {tensor.name: tuple(spec.extents[label] for label in tensor.labels) for tensor in spec.inputs}
            names = {
                axis.name: 2
                for node in one.graph.nodes if isinstance(node.op, BlockGraph)
                for axis in node.op.grid + node.op.loops
            }  # fmt: skip
            made = shapes_of(one.graph, inputs, names)
            assert made.tensors[one.graph.outputs[0]] == spec.shape
