"""Tests of the proofs: correct µGraphs are equal, wrong ones different, and what is beyond the fragment is named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from pipeline.ir import graph as g
from pipeline.ir.algebra import FloatAlgebra
from pipeline.ir.evaluate import evaluate
from pipeline.ir.graph import Graph, TensorType
from pipeline.ir.graph_builder import GraphBuilder
from pipeline.superopt.mugraph.graph import (
    BlockGraph,
    BlockNode,
    Contract,
    Fold,
    KernelNode,
    Map,
    MuGraph,
    Running,
    Scalar,
    TileOp,
)
from pipeline.superopt.mugraph.interpret import run_mugraph
from pipeline.superopt.proof.prove import prove
from pipeline.superopt.proof.witness import float_feeds
from pipeline.verification.field import primes
from pipeline.verification.field_algebra import FieldAlgebra, Residues
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


def kernels(inputs: Sequence[str], *written: tuple[TileOp, Sequence[int]]) -> MuGraph:
    made = tuple(KernelNode(op, tuple(operands)) for op, operands in written)
    return MuGraph(tuple(inputs), made, (len(inputs) + len(made) - 1,))


def test_a_root_squared_is_proven_with_draws_that_have_only_squares_under_their_roots() -> None:
    b = GraphBuilder()
    x = b.input("X", (2,), "float32")
    spec = b.finish([("out", b.elementwise("div", x, x))])
    graph = kernels("X", (Map("sqrt"), (0,)), (Map("mul"), (1, 1)), (Map("div"), (2, 0)))
    assert prove(spec, graph, rng=rng()).equal


def test_what_holds_only_for_the_real_maximum_is_not_provable_and_not_different() -> None:
    b = GraphBuilder()
    x, y = b.input("X", (4,), "float32"), b.input("Y", (4,), "float32")
    spec = b.finish([("out", b.elementwise("neg", b.elementwise("max", x, y)))])
    graph = kernels("XY", (Map("neg"), (0,)), (Map("neg"), (1,)), (Map("min"), (2, 3)))
    proof = prove(spec, graph, rng=rng())
    assert proof.verdict == "not provable"
    assert "a maximum were any selection" in proof.reason


def test_a_maximum_that_does_not_cancel_is_proven_as_a_selection_and_says_so() -> None:
    b = GraphBuilder()
    spec = b.finish([("out", b.reduce("max", b.input("X", (6,), "float32"), [0], True))])
    graph = kernels("X", (Fold("max", (0,), 3), (0,)), (Fold("max", (0,)), (1,)))
    proof = prove(spec, graph, rng=rng())
    assert proof.equal and "every order of the operands" in proof.assumptions[0]
    assert prove(spec, kernels("X", (Fold("min", (0,)), (0,))), rng=rng()).verdict == "different"


def test_that_a_masked_key_counts_nothing_is_not_known_and_not_different() -> None:
    b = GraphBuilder()
    x, mask = b.input("X", (4,), "float32"), b.input("M", (4,), "bool")
    low = b.elementwise("where", mask, x, b.constant(np.float32(-np.inf)))
    spec = b.finish([("out", b.elementwise("exp", low))])
    graph = kernels("XM", (Map("exp"), (0,)), (Scalar(0.0), ()), (Map("where"), (1, 2, 3)))
    proof = prove(spec, graph, rng=rng())
    assert proof.verdict == "not provable" and "an infinite constant were some number" in proof.reason


def test_a_mask_of_truth_values_is_drawn_and_masked_attention_is_equal() -> None:
    b = GraphBuilder()
    x, mask = b.input("X", (3, 6), "float32"), b.input("M", (3, 6), "bool")
    masked = b.elementwise("where", mask, x, b.constant(np.float32(-np.inf)))
    spec = b.finish([("out", b.softmax(masked))])
    graph = kernels(
        "XM", (Scalar(-np.inf), ()), (Map("where"), (1, 0, 2)), (Map("exp"), (3,)), (Fold("sum", (1,)), (4,)),
        (Map("div"), (4, 5)),
    )  # fmt: skip
    assert prove(spec, graph, rng=rng()).equal


def test_dividing_by_zero_for_every_input_is_not_provable() -> None:
    b = GraphBuilder()
    x = b.input("X", (3,), "float32")
    spec = b.finish([("out", b.elementwise("div", x, b.elementwise("sub", x, x)))])
    proof = prove(spec, kernels("X", (Map("exp"), (0,))), rng=rng())
    assert proof.verdict == "not provable" and "a denominator is zero" in proof.reason


def test_a_result_of_another_shape_is_different() -> None:
    spec, _ = elementwise_case("exp")
    proof = prove(spec, kernels("X", (Map("exp"), (0,)), (Fold("sum", (0,)), (1,))), rng=rng())
    assert str(proof) == "different: output 0 has another shape"


def test_a_constant_is_equal_to_its_float32_and_different_from_its_neighbour() -> None:
    b = GraphBuilder()
    x = b.input("X", (3,), "float32")
    spec = b.finish([("out", b.elementwise("mul", x, b.scalar(0.1, x)))])
    assert prove(spec, kernels("X", (Scalar(0.1), ()), (Map("mul"), (0, 1))), rng=rng()).equal
    assert prove(spec, kernels("X", (Scalar(10.0), ()), (Map("div"), (0, 1))), rng=rng()).equal
    other = float(np.nextafter(np.float32(0.1), np.float32(1)))
    assert prove(spec, kernels("X", (Scalar(other), ()), (Map("mul"), (0, 1))), rng=rng()).verdict == "different"


def test_the_same_seed_gives_the_same_proof_and_the_seed_of_a_counterexample_draws_it_again() -> None:
    spec, wrong = elementwise_case("exp")[0], elementwise_case("neg")[1]
    first, second = (prove(spec, wrong, rng=rng(5)) for _ in range(2))
    assert str(first) == str(second)
    assert first.counterexample is not None and first.counterexample.residues is not None
    algebra = FieldAlgebra(np.random.default_rng(first.counterexample.residues.seed))
    value = algebra.elementwise("neg", algebra.draw(TensorType((5,), "float32")))
    assert isinstance(value, Residues)
    assert int(value.p[first.counterexample.index]) == first.counterexample.residues.found[0]


def test_the_bound_is_that_of_schwartz_and_zippel_for_the_degree() -> None:
    b = GraphBuilder()
    x, w = b.input("X", (2, 3), "float32"), b.input("W", (3, 2), "float32")
    spec = b.finish([("out", b.matmul(x, w))])
    proof = prove(spec, kernels("XW", (Contract("mk,kn->mn"), (0, 1))), tests=3, rng=rng())
    assert proof.degree == 2 and proof.assumptions == ()
    assert proof.bound == pytest.approx((2 / primes()[1]) ** 3)


def test_the_root_of_what_is_negative_is_different_although_it_has_one_modulo_a_prime() -> None:
    b = GraphBuilder()
    x = b.input("X", (4,), "float32")
    spec = b.finish([("out", b.elementwise("sqrt", b.elementwise("mul", x, x)))])
    graph = kernels("X", (Map("mul"), (0, 0)), (Map("neg"), (1,)), (Map("sqrt"), (2,)))
    negative = kernels("X", (Map("mul"), (0, 0)), (Map("neg"), (1,)), (Map("sqrt"), (2,)), (Map("neg"), (3,)))
    for wrong in (graph, negative):
        proof = prove(spec, wrong, rng=rng())
        assert not proof.equal
    assert prove(spec, graph, rng=rng()).verdict == "different"
