"""Tests of the provable fragment: one exponential on a path, and every other one is named with its place."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.ir.graph import Graph
from pipeline.ir.graph_builder import GraphBuilder
from pipeline.superopt.mugraph.graph import BlockGraph, BlockNode, KernelNode, Map, MuGraph
from pipeline.superopt.proof.fragment import beyond_fragment, graph_exponentials, mugraph_exponentials
from tests.superopt.hand_mugraphs import HAND, HandMuGraph, attention


def chain(*fns: str) -> Graph:
    b = GraphBuilder()
    value = b.input("X", (3,), "float32")
    for fn in fns:
        value = b.elementwise(fn, value)
    return b.finish([("out", value)])


@pytest.mark.parametrize("make", HAND, ids=lambda make: make.__name__)
def test_the_expert_mugraphs_and_their_specifications_are_provable(make: object) -> None:
    assert callable(make)
    case: HandMuGraph = make()
    assert beyond_fragment(case.spec, case.mugraph) == ()


@pytest.mark.parametrize("fns", [("exp",), ("neg", "sigmoid"), ("exp", "erf", "exp"), ("tanh", "sqrt"), ("log", "exp")])
def test_chains_with_one_exponential_on_a_path_are_provable(fns: tuple[str, ...]) -> None:
    assert graph_exponentials(chain(*fns)) == ()


@pytest.mark.parametrize("fns", [("exp", "exp"), ("sigmoid", "neg", "tanh"), ("cosh", "sqrt", "sinh")])
def test_a_second_one_is_named(fns: tuple[str, ...]) -> None:
    assert graph_exponentials(chain(*fns)) == (f"node {len(fns)} ({fns[-1]}): a second exponential on one path",)


def test_softmax_of_softmax_has_a_second_exponential() -> None:
    b = GraphBuilder()
    twice = b.softmax(b.softmax(b.input("X", (3, 4), "float32")))
    assert len(graph_exponentials(b.finish([("out", twice)]))) == 1


def test_second_exponentials_of_a_mugraph_are_named_with_kernel_and_node() -> None:
    case = attention()
    body = case.mugraph.nodes[0].op
    assert isinstance(body, BlockGraph)
    again = (*body.nodes[:11], BlockNode(Map("exp"), (11,)))
    graph = MuGraph(
        case.mugraph.inputs,
        (KernelNode(BlockGraph(body.grid, body.loops, body.inputs, again, body.outputs), (0, 1, 2)),
         KernelNode(Map("sigmoid"), (3,))),
        (4,),
    )  # fmt: skip
    assert mugraph_exponentials(graph) == (
        "kernel 0, node 11 (Map): a second exponential on one path",
        "kernel 1: a second exponential on one path",
    )


def test_operations_without_an_algebraic_meaning_are_beyond_it() -> None:
    b = GraphBuilder()
    picked = b.gather(b.input("X", (4,), "float32"), b.constant(np.array([1, 2])))
    (reason,) = beyond_fragment(b.finish([("out", picked)]))
    assert reason.endswith("Gather")
