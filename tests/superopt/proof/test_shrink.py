"""Tests of shrinking: small extents that every kernel of a µGraph cuts into equal pieces."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.errors import CheckError
from pipeline.ir.graph import AffineDim
from pipeline.superopt.mugraph.graph import (
    Accumulate,
    BlockGraph,
    BlockInput,
    BlockOutput,
    Contract,
    Fold,
    KernelNode,
    MuGraph,
    Squeeze,
    Transpose,
)
from pipeline.superopt.proof.prove import prove_full, prove_spec
from pipeline.superopt.proof.shrink import shrunken
from pipeline.superopt.spec import Product, Spec, SpecInput, SpecNode
from tests.superopt.expert_mugraphs import EXPERT
from tests.superopt.hand_mugraphs import axes, nodes
from tests.superopt.specs import gqa, rmsnorm_linear


def product_spec(rows: int = 64, depth: int = 128, columns: int = 96) -> Spec:
    """X[m, k] @ W[k, n] with the labels m 0, k 1, n 2."""
    extents = (rows, depth, columns)

    def tensor(name: str, labels: tuple[int, ...]) -> SpecInput:
        access = tuple(AffineDim(((i, 1),)) for i in range(len(labels)))
        return SpecInput(name, labels, "float32", tuple(extents[label] for label in labels), access)

    store = (AffineDim(((0, 1),)), AffineDim(((1, 1),)))
    product = SpecNode(Product((1,)), (0, 1), (0, 2))
    return Spec(extents, (tensor("X", (0, 1)), tensor("W", (1, 2))), (product,), 2, (rows, columns), store)


def split_depth(loop: str = "parts") -> MuGraph:
    """Partial products one behind the other, added up by a second kernel that walks over them."""
    partial = BlockGraph(
        axes("m", "n", "split"), axes("k"), (BlockInput((0, None, 1), (1,)), BlockInput((None, 1, 0), (0,))),
        nodes((Contract("mk,kn->mn"), (0, 1)), (Accumulate("sum"), (2,))), (BlockOutput(3, (0, 1, "stack")),),
    )  # fmt: skip
    total = BlockGraph(
        axes("rows"), axes(loop), (BlockInput((1,), (0,)),),
        nodes((Fold("sum", (0,)), (0,)), (Accumulate("sum"), (1,)), (Squeeze((0,)), (2,))), (BlockOutput(3, (0,)),),
    )  # fmt: skip
    return MuGraph(("X", "W"), (KernelNode(partial, (0, 1)), KernelNode(total, (2,))), (3,))


def test_every_label_gets_a_tile_and_the_axes_that_cut_it() -> None:
    small = shrunken(product_spec(), split_depth())
    assert small.axes == {"m": 2, "n": 2, "split": 2 * 3, "k": 3, "rows": 2, "parts": 3}
    assert small.labels == (2 * 2 * 2, 3 * 6 * 3, 2 * 2)


def test_a_stacked_grid_axis_may_be_the_loop_of_another_kernel() -> None:
    small = shrunken(product_spec(), split_depth("split"))
    assert small.axes["split"] == 2


@pytest.mark.parametrize("loop", ["parts", "split"])
def test_a_product_that_is_split_over_its_depth_is_proven_at_small_and_at_full_extents(loop: str) -> None:
    spec, graph = product_spec(), split_depth(loop)
    rng = np.random.default_rng(0)
    assert prove_spec(spec, graph, rng=rng).equal
    extents = {"m": 4, "n": 2, "split": 4, "k": 8, "rows": 4, "parts": 2}
    full = prove_full(spec, graph, extents=extents, rng=rng)
    assert full.equal and full.tests == 1


def test_a_wrong_split_is_different_at_small_extents() -> None:
    graph = split_depth()
    body = graph.nodes[0].op
    assert isinstance(body, BlockGraph)
    wrong = BlockGraph(body.grid, body.loops, body.inputs, body.nodes, (BlockOutput(3, (0, 1, "max")),))
    alone = MuGraph(("X", "W"), (KernelNode(wrong, (0, 1)),), (2,))
    proof = prove_spec(product_spec(), alone, rng=np.random.default_rng(0))
    assert proof.verdict == "different"


def test_what_fits_at_no_extents_is_refused_with_its_place() -> None:
    turned = MuGraph(("X", "W"), (KernelNode(Transpose((0, 1, 2)), (0,)),), (2,))
    with pytest.raises(CheckError, match="kernel 0"):
        shrunken(product_spec(), turned)


@pytest.mark.parametrize(
    ("spec", "graph"),
    [(rmsnorm_linear(), EXPERT["rmsnorm_linear"]), (gqa(), EXPERT["online_attention"])],
    ids=["rmsnorm_linear", "attention"],
)
def test_the_experts_mugraphs_are_proven_for_the_specifications_of_the_suite(spec: Spec, graph: MuGraph) -> None:
    assert prove_spec(spec, graph, rng=np.random.default_rng(1)).equal


def test_attention_is_not_equal_to_attention_with_a_scale() -> None:
    proof = prove_spec(gqa(scale=0.125), EXPERT["online_attention"], rng=np.random.default_rng(1))
    assert proof.verdict == "different"
