"""Tests of `SinkReshapes`: what is computed where a product is stored, what stays, and peace with `MergeVariables`."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from pipeline.frontend.workloads.resnet50 import Resnet50
from pipeline.ir import graph as g
from pipeline.ir.graph import AffineDim, Graph
from pipeline.ir.graph_builder import GraphBuilder
from pipeline.ir.graph_primitives import axis_map
from pipeline.ir.graph_rule import same_graph
from pipeline.ir.graph_text import to_text
from rules.graph.merge_variables import MergeVariables
from rules.graph.sink_reshapes import SinkReshapes
from tests.ir.random_graphs import graphs
from tests.rules.graph.attention_blocks import weights
from tests.rules.graph.meaning import applied, line

RULE = SinkReshapes()

GOLDEN = """\
%0 = input<name="image">() : float32[5, 3, 6]
%1 = input<name="w">() : float32[6, 4]
%2 = contract<spatial=[3, 2, 4], reduced=[6], lhs=[2*d0, 2*d1, d3], rhs=[d3, d2]>(%0, %1) : float32[3, 2, 4]
%3 = input<name="skip">() : float32[6, 4]
%4 = reshape(%3) : float32[3, 2, 4]
%5 = add(%2, %4) : float32[3, 2, 4]
%6 = constant<key="f8003afb7fc10fa4f1b286be">() : float32[]
%7 = max(%5, %6) : float32[3, 2, 4]
%8 = reshape(%7) : float32[6, 4]
return "y" = %8
"""


def strided(b: GraphBuilder) -> int:
    """Every second place of an image, whose two dimensions can not be merged: float32[3, 2, 4]."""
    image = b.input("image", (5, 3, 6), "float32")
    places = (AffineDim(((0, 2),)), AffineDim(((1, 2),)), AffineDim(((3, 1),)))
    return b.contract(image, b.input("w", (6, 4), "float32"), [3, 2, 4], [6], places, axis_map(3, 2))


def flat(b: GraphBuilder, name: str = "rows") -> int:
    """A product of a matrix with one: float32[6, 4]."""
    return b.matmul(b.input(name, (6, 5), "float32"), weights(b, f"{name}.w", 5, 4))


def text(graph: Graph) -> str:
    return to_text(graph, names=False)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(graphs())
def test_any_graph_keeps_its_meaning(graph: Graph) -> None:
    applied(RULE, graph)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(graphs())
def test_any_graph_is_left_as_it_is_by_merging_after_sinking(graph: Graph) -> None:
    sunk = RULE.apply(MergeVariables().apply(graph))
    assert same_graph(MergeVariables().apply(sunk), sunk)
    assert same_graph(RULE.apply(sunk), sunk)


def test_what_follows_a_product_is_computed_where_the_product_is_stored() -> None:
    b = GraphBuilder()
    y = b.reshape(strided(b), (6, 4))
    y = b.elementwise("add", y, b.input("skip", (6, 4), "float32"))
    y = b.elementwise("max", y, b.scalar(0.0, y))
    assert text(applied(RULE, b.finish([("y", y)]))) == GOLDEN


def test_an_operand_of_fewer_dimensions_stays_as_it_is_where_it_broadcasts_the_same_way() -> None:
    b = GraphBuilder()
    y = b.elementwise("add", b.reshape(strided(b), (6, 4)), weights(b, "bias", 1, 4))
    after = applied(RULE, b.finish([("y", y)]))
    assert line(after, "add").endswith("float32[3, 2, 4]")
    assert [node.type.shape for node in after.nodes if isinstance(node.op, g.Constant)] == [(4,)]


def test_an_operand_that_varies_along_what_the_reshape_splits_keeps_it_where_it_is() -> None:
    b = GraphBuilder()
    y = b.elementwise("add", b.reshape(strided(b), (6, 4)), b.input("c", (6, 1), "float32"))
    graph = b.finish([("y", y)])
    assert same_graph(applied(RULE, graph), graph)


def test_a_reshape_that_something_else_reads_stays() -> None:
    b = GraphBuilder()
    y = b.reshape(strided(b), (6, 4))
    graph = b.finish([("y", b.elementwise("exp", y)), ("before", y)])
    assert same_graph(applied(RULE, graph), graph)


def test_a_reshape_of_what_is_no_product_stays() -> None:
    b = GraphBuilder()
    y = b.reshape(b.input("x", (3, 2, 4), "float32"), (6, 4))
    graph = b.finish([("y", b.elementwise("exp", y))])
    assert same_graph(applied(RULE, graph), graph)


def test_an_operand_that_is_read_twice_by_the_same_operation_is_no_other_reader() -> None:
    b = GraphBuilder()
    y = b.reshape(strided(b), (6, 4))
    after = applied(RULE, b.finish([("y", b.elementwise("mul", y, y))]))
    assert line(after, "mul").endswith("float32[3, 2, 4]")


def test_of_two_products_the_one_that_needs_no_reshape_is_followed() -> None:
    b = GraphBuilder()
    graph = b.finish([("y", b.elementwise("add", b.reshape(strided(b), (6, 4)), flat(b)))])
    assert same_graph(applied(RULE, graph), graph)


def test_a_product_that_is_an_output_too_gives_way_to_one_that_is_read_once() -> None:
    b = GraphBuilder()
    shared = flat(b)
    y = b.elementwise("add", shared, b.reshape(strided(b), (6, 4)))
    after = applied(RULE, b.finish([("y", y), ("shared", shared)]))
    assert line(after, "add").endswith("float32[3, 2, 4]")


@pytest.mark.parametrize("shared", [True, False])
def test_merging_variables_does_not_take_back_what_has_sunk(shared: bool) -> None:
    b = GraphBuilder()
    skip = b.elementwise("tanh", flat(b))
    y = b.elementwise("add", b.reshape(strided(b), (1, 3, 2, 4)), b.reshape(skip, (1, 3, 2, 4)))
    y = b.elementwise("max", y, b.scalar(0.0, y))
    outputs = [("y", y), *([("skip", skip)] if shared else [])]
    merged = applied(MergeVariables(), b.finish(outputs))
    assert line(merged, "add").endswith("float32[6, 4]"), "towards fewer dimensions"
    sunk = applied(RULE, merged)
    assert line(sunk, "add").endswith("float32[3, 2, 4]" if shared else "float32[6, 4]")
    assert same_graph(applied(MergeVariables(), sunk), sunk)


def test_residual_blocks_of_a_network_are_left_alone_afterwards() -> None:
    graph = Resnet50(size=32, width=4, classes=7, blocks=(1, 1, 1, 1)).build(0)
    sunk = RULE.apply(MergeVariables().apply(graph))
    for rule in (MergeVariables(), RULE):
        assert same_graph(applied(rule, sunk), sunk)
