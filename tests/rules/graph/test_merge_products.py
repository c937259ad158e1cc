"""Tests of `MergeProducts`: which products become one, and which do not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings

from pipeline.ir import graph as g
from pipeline.ir.graph import Graph
from pipeline.ir.graph_builder import GraphBuilder
from pipeline.ir.graph_rule import same_graph
from rules.graph.absorb_views import AbsorbViews
from rules.graph.merge_products import MergeProducts
from tests.ir.random_graphs import graphs
from tests.rules.graph.attention_blocks import bert_block, weights
from tests.rules.graph.meaning import applied, operations

RULE = MergeProducts()


@settings(max_examples=40, deadline=None)
@given(graphs())
def test_any_graph_keeps_its_meaning(graph: Graph) -> None:
    applied(RULE, graph)


def widths(graph: Graph) -> list[int]:
    return [node.type.shape[-1] for node in graph.nodes if isinstance(node.op, g.Contract)]


@pytest.mark.parametrize("batch", [1, 2])
def test_queries_keys_and_values_are_one_product_that_is_read_in_place(batch: int) -> None:
    before = bert_block(batch)
    merged = applied(RULE, before)
    assert (widths(before)[:2], widths(merged)[0]) == ([64, 64], 192)
    after = applied(AbsorbViews(), merged)
    assert operations(after).count("Contract") == operations(before).count("Contract") - 2
    assert not {"Slice", "Transpose"} & set(operations(after))


def test_a_part_without_a_bias_is_given_zeros() -> None:
    b = GraphBuilder()
    x = b.input("x", (5, 4), "float32")
    first = b.elementwise("add", b.matmul(x, weights(b, "first", 4, 3)), weights(b, "bias", 3))
    second = b.matmul(x, weights(b, "second", 4, 6))
    graph = b.finish([("y", b.matmul(b.transpose(first, (1, 0)), second))])
    after = applied(RULE, graph)
    assert operations(after).count("Contract") == 2
    assert sorted(data.shape for data in after.constants.values()) == [(4, 9), (9,)]


def test_transposed_weights_are_joined_along_their_own_dimension() -> None:
    b = GraphBuilder()
    x = b.input("x", (5, 4), "float32")
    first, second = (b.einsum("bk,nk->bn", x, weights(b, name, n, 4)) for name, n in (("first", 3), ("second", 6)))
    after = applied(RULE, b.finish([("y", b.matmul(b.transpose(first, (1, 0)), second))]))
    assert [data.shape for data in after.constants.values()] == [(9, 4)]


def refusals() -> dict[str, Graph]:
    made: dict[str, Graph] = {}

    def case(name: str, build: Callable[[GraphBuilder, int, int, int], list[int]]) -> None:
        b = GraphBuilder()
        x = b.input("x", (5, 4), "float32")
        a, c = (b.matmul(x, weights(b, name, 4, 6)) for name in ("a", "c"))
        made[name] = b.finish([(f"y{i}", value) for i, value in enumerate(build(b, x, a, c))])

    case("a part is given to the caller", lambda b, x, a, c: [a, c])
    case("a reader is elementwise", lambda b, x, a, c: [b.elementwise("mul", b.elementwise("sigmoid", a), c)])
    case("a bias varies along rows", lambda b, x, a, c: [
        b.matmul(b.transpose(b.elementwise("add", a, weights(b, "rows", 5, 1)), (1, 0)), c)])  # fmt: skip
    case("a window would run over the border of a row", lambda b, x, a, c: [
        b.contract(b.reshape(v, (30,)), b.input(f"w{i}", (3,), "float32"), [28], [3],
                   (g.AffineDim(((0, 1), (1, 1))),), (g.AffineDim(((1, 1),)),))
        for i, v in enumerate((a, c))])  # fmt: skip
    b = GraphBuilder()
    one, two = (b.matmul(b.input(f"x{i}", (5, 4), "float32"), weights(b, f"w{i}", 4, 6)) for i in range(2))
    made["the operands differ"] = b.finish([("y", b.matmul(b.transpose(one, (1, 0)), two))])
    b = GraphBuilder()
    x = b.input("x", (5, 4), "float32")
    one, two = (b.matmul(x, b.input(f"w{i}", (4, 6), "float32")) for i in range(2))
    made["the weights are not known"] = b.finish([("y", b.matmul(b.transpose(one, (1, 0)), two))])
    b = GraphBuilder()
    x = b.input("x", (4, 4), "float32")
    one, two = b.matmul(x, weights(b, "a", 4, 6)), b.matmul(b.transpose(x, (1, 0)), weights(b, "c", 4, 6))
    made["one reads the operand transposed"] = b.finish([("y", b.matmul(b.transpose(one, (1, 0)), two))])
    return made


@pytest.mark.parametrize("name", refusals())
def test_products_are_not_merged_where(name: str) -> None:
    graph = refusals()[name]
    assert same_graph(RULE.apply(graph), graph)


def test_the_joint_weights_are_the_parts_side_by_side() -> None:
    before = bert_block()
    after = RULE.apply(before)
    joint = next(data for data in after.constants.values() if data.shape == (64, 192))
    parts = [before.constants[n.op.key] for n in before.nodes if isinstance(n.op, g.Constant) and n.name in "qkv"]
    found = {joint[:, i : i + 64].tobytes() for i in (0, 64, 128)}
    assert found == {np.ascontiguousarray(part).tobytes() for part in parts if part.shape == (64, 64)}
