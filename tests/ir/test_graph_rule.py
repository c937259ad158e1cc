"""Tests of making a graph again: `rebuild`, the counts that rules ask for, and equality of graphs."""

from __future__ import annotations

import numpy as np
from hypothesis import given

from pipeline.ir import graph as g
from pipeline.ir.graph import Graph
from pipeline.ir.graph_builder import GraphBuilder
from pipeline.ir.graph_rule import GraphRule, Rebuilder, needed_values, rebuild, same_graph, use_counts
from pipeline.ir.graph_text import to_text
from tests.ir.random_graphs import graphs


def small() -> Graph:
    b = GraphBuilder()
    x = b.input("x", (2, 3), "float32")
    with b.scope("layer"):
        y = b.elementwise("mul", x, b.constant(np.ones(3, np.float32) * 2, "weight"))
        z = b.elementwise("add", y, y)
    return b.finish([("z", z), ("y", y)])


def test_a_graph_made_again_without_a_change_is_the_same_graph_with_its_names() -> None:
    graph = small()
    again = rebuild(graph, lambda b, number, node, inputs: None)
    assert to_text(again) == to_text(graph)
    assert again.constants.keys() == graph.constants.keys()


@given(graphs())
def test_any_graph_made_again_keeps_its_text(graph: Graph) -> None:
    assert to_text(rebuild(graph, lambda b, number, node, inputs: None)) == to_text(graph)


def test_a_replacement_takes_the_name_of_what_it_replaces_and_dead_nodes_go() -> None:
    def halve(b: Rebuilder, number: int, node: g.Node, inputs: tuple[int, ...]) -> int | None:
        return b.elementwise("exp", inputs[0]) if node.op == g.Elementwise("mul") else None

    after = rebuild(small(), halve)
    assert [node.name for node in after.nodes] == ["", "layer", "layer"]
    assert not after.constants, "the weight is of no use any more"


def test_uses_count_outputs_and_repeated_operands() -> None:
    graph = small()
    assert use_counts(graph) == {0: 1, 1: 1, 2: 3, 3: 1}
    assert needed_values(graph) == {0, 1, 2, 3}


def test_equal_graphs_may_differ_in_names_only() -> None:
    graph = small()
    unnamed = Graph(tuple(g.Node(n.op, n.inputs, n.type) for n in graph.nodes), graph.outputs, graph.constants)
    assert same_graph(graph, unnamed)
    assert not same_graph(graph, rebuild(graph, lambda b, number, node, inputs: inputs[0] if number == 3 else None))


def test_padding_with_zeros_of_different_signs_is_not_the_same() -> None:
    def padded(value: float) -> Graph:
        b = GraphBuilder()
        return b.finish([("y", b.pad(b.input("x", (2,), "float32"), [1], [0], value=value))])

    assert same_graph(padded(0.0), padded(0.0))
    assert not same_graph(padded(0.0), padded(-0.0))


def test_whatever_has_an_apply_is_a_rule() -> None:
    class Nothing:
        def apply(self, graph: Graph) -> Graph:
            return graph

    rule: GraphRule = Nothing()
    assert rule.apply(small()).outputs
