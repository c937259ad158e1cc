"""A specification in two parts, and their µGraphs joined again, compute what the whole does."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.ir.evaluate import evaluate
from pipeline.superopt.enumeration.cut import cuts, join
from pipeline.superopt.enumeration.roles import Roles
from pipeline.superopt.mugraph.check import check
from pipeline.superopt.mugraph.graph import block_graphs
from pipeline.superopt.proof.prove import prove_spec
from pipeline.superopt.spec import Product, Reduction, Spec, spec_graph
from tests.superopt import specs
from tests.superopt.enumeration.test_explore import explored

NAMES = ("gqa", "qknorm", "lora", "full_mlp", "moe", "ntrans")


def result(spec: Spec, sizes: tuple[int, ...], feeds: dict[str, np.ndarray]) -> np.ndarray:
    (found,) = evaluate(spec_graph(spec, sizes), {tensor.name: feeds[tensor.name] for tensor in spec.inputs}).values()
    return np.asarray(found)


@pytest.mark.parametrize("name", NAMES)
def test_the_second_part_of_the_first_is_the_whole(name: str) -> None:
    spec = specs.SUITE[name]()
    sizes = tuple(range(2, 2 + len(spec.extents)))
    rng = np.random.default_rng(5)
    feeds = {
        tensor.name: rng.uniform(0.5, 1.5, [sizes[label] for label in tensor.labels]).astype(np.float32)
        for tensor in spec.inputs
    }
    whole = result(spec, sizes, feeds)
    made = list(cuts(spec))
    assert made
    for cut in made:
        middle = result(cut.first, sizes, feeds).astype(np.float32)
        np.testing.assert_allclose(result(cut.second, sizes, {**feeds, cut.name: middle}), whole, rtol=2e-5)


def test_both_parts_have_a_sum_or_a_product_to_do() -> None:
    for make in specs.SUITE.values():
        for cut in cuts(make()):
            for part in (cut.first, cut.second):
                assert any(isinstance(node.op, Product | Reduction) for node in part.nodes)


def test_the_name_of_what_is_handed_over_is_not_that_of_an_input() -> None:
    once = next(cuts(specs.gqa()))
    assert all(cut.name != once.name for cut in cuts(once.second))


def test_one_product_alone_cannot_be_cut() -> None:
    w = specs.Writer((4, 5, 6))
    spec = w.finish(w.product(w.input("x", (0, 1)), w.input("w", (1, 2)), (1,)))
    assert list(cuts(spec)) == []


def test_joined_kernels_have_axes_of_their_own_and_are_proven() -> None:
    spec = specs.moe()
    (cut,) = [cut for cut in cuts(spec) if len(cut.first.nodes) == 2]
    first, _ = explored(cut.first, Roles((0, 1, 3), (2,)))
    second, _ = explored(cut.second, Roles((0, 1, 4), (3,)))
    whole = join(spec, cut.name, first[0].graph, second[0].graph)
    check(whole)
    names = [axis.name for block in block_graphs(whole) for axis in (*block.grid, *block.loops)]
    assert len(set(names)) == len(names)
    assert prove_spec(spec, whole, rng=np.random.default_rng(1)).equal


def test_joined_in_the_wrong_order_they_are_not() -> None:
    spec = specs.moe()
    (cut,) = [cut for cut in cuts(spec) if len(cut.first.nodes) == 2]
    first, _ = explored(cut.first, Roles((0, 1, 3), (2,)))
    second, _ = explored(cut.second, Roles((0, 1, 4), (3,)))
    with pytest.raises(KeyError):
        join(spec, cut.name, second[0].graph, first[0].graph)
