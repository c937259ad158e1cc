"""Tests of the proofs: correct µGraphs are equal, wrong ones different, and what is beyond the fragment is named."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pipeline.ir import graph as g
from pipeline.ir.algebra import FloatAlgebra
from pipeline.ir.evaluate import evaluate
from pipeline.ir.graph import Graph
from pipeline.ir.graph_builder import GraphBuilder
from pipeline.superopt.interpret import run_mugraph
from pipeline.superopt.mugraph import BlockGraph, BlockNode, KernelNode, Map, MuGraph, Running
from pipeline.superopt.prove import prove
from pipeline.superopt.witness import float_feeds
from tests.superopt.hand_mugraphs import HAND, HandMuGraph, attention

EVERY = [make() for make in HAND]


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize("case", EVERY, ids=lambda case: case.name)
def test_a_correct_mugraph_is_proven_equal(case: HandMuGraph) -> None:
    proof = prove(case.spec, case.mugraph, extents=case.extents, rng=rng())
    assert proof.equal, proof
    assert 0 < proof.bound < 1e-6


@pytest.mark.parametrize("case", EVERY, ids=lambda case: case.name)
def test_a_correct_mugraph_computes_in_floating_point_what_the_graph_does(case: HandMuGraph) -> None:
    inputs = {node.op.name: node.type for node in case.spec.nodes if isinstance(node.op, g.Input)}
    algebra = FloatAlgebra()
    feeds = {name: np.asarray(x, np.float32) for name, x in next(float_feeds(inputs, rng())).items()}
    values = {name: algebra.constant(x) for name, x in feeds.items()}
    (out,) = run_mugraph(case.mugraph, values, algebra, case.extents)
    np.testing.assert_allclose(out, evaluate(case.spec, feeds)["out"], rtol=1e-6)


def with_node(graph: MuGraph, position: int, node: BlockNode) -> MuGraph:
    """The µGraph with another node in its first kernel."""
    kernel = graph.nodes[0]
    assert isinstance(kernel.op, BlockGraph)
    changed = list(kernel.op.nodes)
    changed[position] = node
    return replace(graph, nodes=(KernelNode(replace(kernel.op, nodes=tuple(changed)), kernel.inputs), *graph.nodes[1:]))


def test_a_tile_maximum_in_place_of_the_running_one_is_different_with_a_witness() -> None:
    case = attention()
    proof = prove(case.spec, with_node(case.mugraph, 5, BlockNode(Map("sub"), (5, 6))), extents=case.extents, rng=rng())
    assert proof.verdict == "different"
    assert proof.counterexample is not None and proof.counterexample.witness is not None


def test_any_running_value_may_take_the_place_of_the_maximum_that_cancels() -> None:
    case = attention()
    smallest = with_node(case.mugraph, 4, BlockNode(Running("min"), (6,)))
    assert prove(case.spec, smallest, extents=case.extents, rng=rng()).equal


def elementwise_case(*fns: str) -> tuple[Graph, MuGraph]:
    """The functions one after another on a vector, as a graph and as kernels."""
    b = GraphBuilder()
    value = b.input("X", (5,), "float32")
    for fn in fns:
        value = b.elementwise(fn, value)
    kernels = tuple(KernelNode(Map(fn), (number,)) for number, fn in enumerate(fns))
    return b.finish([("out", value)]), MuGraph(("X",), kernels, (len(fns),))


def test_a_second_exponential_on_a_path_is_not_provable_and_the_node_is_named() -> None:
    proof = prove(*elementwise_case("exp", "exp"), rng=rng())
    assert proof.verdict == "not provable"
    assert "node 2 (exp): a second exponential on one path" in proof.reason


def test_beyond_the_fragment_floating_point_may_still_refute() -> None:
    spec, _ = elementwise_case("exp", "exp")
    _, other = elementwise_case("exp", "neg")
    proof = prove(spec, other, rng=rng())
    assert proof.verdict == "different"
    assert proof.counterexample is not None and proof.counterexample.residues is None


def test_an_unknown_function_cuts_the_path_of_exponentials() -> None:
    assert prove(*elementwise_case("exp", "erf", "exp"), rng=rng()).equal
