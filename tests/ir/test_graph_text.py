"""The text of graphs: a golden, and round trips of random graphs."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given

from pipeline.errors import CheckError
from pipeline.ir import graph as g
from pipeline.ir.graph import Graph, Node, TensorType
from pipeline.ir.graph_builder import GraphBuilder
from pipeline.ir.graph_text import OPS, from_text, op_name, to_text
from tests.ir.random_graphs import graphs

GOLDEN = """\
%0 = input<name="x">() : float32[1, 2, 5]
%1 = constant<key="8c453e63fa8dbf00ff65c576">() : float32[3, 2, 3]
%2 = pad<low=[0, 0, 1], high=[0, 0, 0], interior=[0, 0, 0], value=0.0>(%0) : float32[1, 2, 6] "block/conv"
%3 = contract<spatial=[1, 3, 2], reduced=[2, 3], lhs=[d0, d3, 2*d2 + d4], rhs=[d1, d3, d4]>(%2, %1) \
: float32[1, 3, 2] "block/conv"
%4 = constant<key="f8003afb7fc10fa4f1b286be">() : float32[] "block"
%5 = max(%3, %4) : float32[1, 3, 2] "block"
%6 = reduce<kind="argmax", axes=[1], last=true>(%5) : int64[1, 2]
return "y" = %5, "best \\"one\\"" = %6
"""


def _golden_graph() -> Graph:
    b = GraphBuilder()
    x = b.input("x", (1, 2, 5), "float32")
    w = b.constant(np.arange(18, dtype=np.float32).reshape(3, 2, 3))
    with b.scope("block"):
        with b.scope("conv"):
            y = b.conv(x, w, strides=[2], pads_low=[1], pads_high=[0], dilations=[1])
        y = b.relu(y)
    return b.finish([("y", y), ('best "one"', b.reduce("argmax", y, [1], last=True))])


def test_a_graph_prints_as_expected():
    assert to_text(_golden_graph()) == GOLDEN


def test_names_can_be_left_out():
    text = to_text(_golden_graph(), names=False)
    assert "block" not in text
    assert text.count("\n") == GOLDEN.count("\n")


def test_the_golden_text_parses_to_the_graph():
    graph = _golden_graph()
    parsed = from_text(GOLDEN, graph.constants)
    assert (parsed.nodes, parsed.outputs) == (graph.nodes, graph.outputs)
    assert set(parsed.constants) == set(graph.constants)


@given(graphs())
def test_a_random_graph_survives_its_text(graph: Graph):
    text = to_text(graph)
    parsed = from_text(text, graph.constants)
    assert to_text(parsed) == text
    assert (parsed.nodes, parsed.outputs) == (graph.nodes, graph.outputs)


@pytest.mark.parametrize("value", [0.0, -0.0, math.inf, -math.inf, 1e-300, -2.5e20, 0.1, 0, -3, 2**53 + 1])
def test_every_padding_value_survives(value: g.Number):
    kind = TensorType((4,), "float64")
    nodes = (Node(g.Input("a b\nc"), (), TensorType((2,), "float64")), Node(g.Pad((1,), (1,), (0,), value), (0,), kind))
    graph = Graph(nodes, (("y", 1),))
    parsed = from_text(to_text(graph), {})
    assert repr(parsed.nodes[1].op) == repr(nodes[1].op)
    assert parsed.nodes[0] == nodes[0]


def test_every_operation_has_a_name_of_its_own_that_is_no_scalar_function():
    assert {op_name(kind) for kind in (g.GatherND, g.TopK, g.ReduceWindow)} == {"gather_nd", "top_k", "reduce_window"}
    assert not set(OPS) & g.ELEMENTWISE


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("%0 = nonsense() : float32[1]\nreturn", "an operation"),
        ("%1 = iota<axis=0>() : float32[1]\nreturn", "%0"),
        ("%0 = iota<axis=0>() : float33[1]\nreturn", "a dtype"),
        ("%0 = iota<axle=0>() : float32[1]\nreturn", "axis"),
        ("%0 = iota<axis=0>() : float32[1]", "something"),
        ("%0 = iota<axis=0>() : float32[1] ; \nreturn", ";"),
        ('%0 = constant<key="00">() : float32[1]\nreturn "y" = %0', "no data for 00"),
    ],
)
def test_a_broken_text_is_refused_with_its_place(text: str, why: str):
    with pytest.raises(CheckError, match="graph text") as caught:
        from_text(text, {})
    assert why in str(caught.value)
