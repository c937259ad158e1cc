"""The text of µGraphs: a golden, and round trips of what is written by hand and of random ones."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings

from pipeline.ir.text_tokens import ParseError
from pipeline.superopt.mugraph.check import check
from pipeline.superopt.mugraph.graph import (
    Accumulate,
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
from pipeline.superopt.mugraph.parse import OPERATORS, from_text
from pipeline.superopt.mugraph.shapes import shapes
from pipeline.superopt.mugraph.text import op_text, to_text
from tests.superopt.expert_mugraphs import EXPERT, split_decoding
from tests.superopt.random_mugraphs import RandomMuGraph, mugraphs

GOLDEN = """\
mugraph "q", "k", "v"
%3, %4 = kernel grid [h, s] loops [n]
    v0 = tile(%0, h: 0)
    v1 = tile(%1, h: 0, s: 1, n: 1)
    v2 = tile(%2, h: 0, s: 1, n: 1)
    v3 = contract<"hd,hnd->hn">(v0, v1)
    v4 = exp(v3)
    v5 = fold<sum, [1]>(v4)
    v6 = accumulate<sum>(v5)
    v7 = contract<"hn,hnd->hd">(v4, v2)
    v8 = accumulate<sum>(v7)
    return v6(h: 0, s: stack), v8(h: 0, s: stack)
%5 = fold<sum, [0]>(%3)
%6 = squeeze<[0]>(%5)
%7 = fold<sum, [0]>(%4)
%8 = squeeze<[0]>(%7)
%9 = div(%8, %6)
return %9
"""


def test_a_mugraph_prints_as_expected() -> None:
    assert to_text(split_decoding()) == GOLDEN


@pytest.mark.parametrize("name", EXPERT)
def test_what_an_expert_writes_survives_its_text(name: str) -> None:
    assert from_text(to_text(EXPERT[name])) == EXPERT[name]


@given(mugraphs())
@settings(max_examples=60, deadline=None)
def test_a_random_mugraph_is_valid_has_shapes_and_survives_its_text(made: RandomMuGraph) -> None:
    check(made.graph, {name: len(shape) for name, shape in made.inputs.items()})
    shapes(made.graph, made.inputs, made.extents)
    assert from_text(to_text(made.graph)) == made.graph


OPS = [
    *(Scalar(value) for value in (0.0, -0.0, math.inf, -math.inf, 1e-300, -2.5e20, 0.1, 64)),
    *(Map("max"), Map("where"), Contract("ab,->"), Fold("sum", (0, 2)), Fold("max", (1,), 64), Transpose((1, 0))),
    *(Transpose(()), Unsqueeze((0, 3)), Squeeze((1,)), Concat(2), Accumulate("sum"), Accumulate("last", 2)),
    *(Accumulate("concat", 0, 1), Accumulate("concat", 1, 0), Running(), Running("min", 1)),
    *(RescaledSum(), RescaledSum(1)),
]


@pytest.mark.parametrize("op", OPS, ids=op_text)
def test_every_operator_survives_its_text(op) -> None:  # type: ignore[no-untyped-def]  # of any kind
    text = f"mugraph\n%0 = kernel grid [] loops []\n    v0 = {op_text(op)}()\n    return v0()\nreturn %0\n"
    graph = from_text(text)
    (node,) = graph.nodes[0].op.nodes  # type: ignore[union-attr]
    assert repr(node.op) == repr(op) if op != Scalar(64) else node.op == op
    assert to_text(graph) == text


def test_every_kind_of_operator_is_among_them() -> None:
    assert {op_text(op).partition("<")[0] for op in OPS} >= set(OPERATORS)


def test_any_name_of_an_input_survives() -> None:
    graph = MuGraph(('a "b"\n', "µ", ""), (KernelNode(Map("exp"), (1,)),), (3, 0))
    assert from_text(to_text(graph)) == graph


BLOCK = "mugraph x\n%1 = kernel grid [g] loops [l]\n"


@pytest.mark.parametrize(
    ("text", "place", "expected"),
    [
        ("graph x", "line 1, column 1", "'mugraph'"),
        ("mugraph x, 3", "line 1, column 12", "the name of an input"),
        ("mugraph x\n%2 = exp(%0)\nreturn %2", "line 2, column 1", "%1"),
        ("mugraph x\n%1 = softmax(%0)\nreturn %1", "line 2, column 6", "an operator (scalar, contract"),
        ("mugraph x\n%1 = running<max>(%0)\nreturn %1", "line 2, column 6", "an operator on whole tensors"),
        ("mugraph x\n%1, %2 = exp(%0)\nreturn %1", "line 2, column 1", "1 results"),
        ("mugraph x\n%1 = fold<mean, [0]>(%0)\nreturn %1", "line 2, column 11", "a kind"),
        ("mugraph x\n%1 = fold<sum, [0], axis 1>(%0)\nreturn %1", "line 2, column 19", "'>'"),
        ("mugraph x\n%1 = concat<0.5>(%0, %0)\nreturn %1", "line 2, column 13", "a whole number"),
        ("mugraph x\n%1 = scalar<nan>()\nreturn %1", "line 2, column 13", "a number"),
        ("mugraph x\n%1 = exp(%0)", "line 3, column 1", "'%'"),
        ("mugraph x\nreturn %0\nreturn %0", "line 3, column 1", "the end of the text"),
        (BLOCK + "return %1", "line 3, column 1", "a block, indented"),
        (BLOCK + "  v1 = tile(%0)\n  return v1(g: 0)\nreturn %1", "line 3, column 3", "v0"),
        (BLOCK + "  v0 = tile(%0, k: 0)\n  return v0(g: 0)\nreturn %1", "line 3, column 17", "not named yet (g, l)"),
        (BLOCK + "  v0 = tile(%0, g: 0, g: 0)\n  return v0(g: 0)\nreturn %1", "line 3, column 23", "(l)"),
        (BLOCK + "  v0 = scalar<1>()\n  v1 = tile(%0)\n  return v0(g: 0)\nreturn %1", "line 4, column 8", "tiles come"),
        (BLOCK + "  v0 = tile(%0)\n  return v0()\nreturn %1", "line 4, column 13", "'g'"),
        (BLOCK + "  v0 = tile(%0)\n  return v0(g: min)\nreturn %1", "line 4, column 16", "put together"),
        (BLOCK + "  v0 = tile(%0)\n  return x0(g: 0)\nreturn %1", "line 4, column 10", "a value of the block"),
        (
            BLOCK + "  v0 = tile(%0)\n  return v0(g: 0)\n  v1 = exp(v0)\nreturn %1",
            "line 5, column 3",
            "less indentation",
        ),
    ],
)
def test_a_broken_text_is_refused_with_its_place(text: str, place: str, expected: str) -> None:
    with pytest.raises(ParseError) as caught:
        from_text(text + "\n")
    assert place in str(caught.value)
    assert expected in str(caught.value)
