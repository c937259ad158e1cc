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
from pipeline.space.partition import partition
from rules.graph.absorb_views import AbsorbViews
from rules.graph.merge_products import MergeProducts
from rules.graph.simplify import Simplify
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


def rotary(heads: tuple[int, int, int], dim: int = 4) -> Graph:
    """Queries, keys and values of so many heads, the first two turned, as in a Llama."""
    b = GraphBuilder()
    x = b.input("x", (5, 6), "float32")
    turned: list[int] = []
    for name, count in zip("qk", heads, strict=False):
        flat = b.matmul(x, weights(b, name, 6, count * dim))
        split = b.reshape(flat, (5, count, dim))
        low, high = (b.slice(split, [0, 0, i], [5, count, i + dim // 2]) for i in (0, dim // 2))
        swapped = b.add(g.Concat(2), b.elementwise("neg", high), low)
        cosine, sine = (b.input(f"{name}_{part}", (5, 1, dim), "float32") for part in ("cos", "sin"))
        turned.append(b.elementwise("add", b.elementwise("mul", split, cosine), b.elementwise("mul", swapped, sine)))
    values = b.reshape(b.matmul(x, weights(b, "v", 6, heads[2] * dim)), (5, heads[2], dim))
    y = b.einsum("bhd,chd->bhc", turned[0], turned[1])
    return b.finish([("y", b.einsum("bhc,chd->bhd", y, values))])


def test_parts_that_are_turned_before_they_are_multiplied_are_read_in_place_too() -> None:
    before = rotary((3, 3, 3))
    merged = applied(RULE, before)
    assert widths(merged)[0] == 36 and operations(merged).count("Contract") == operations(before).count("Contract") - 2
    after = applied(Simplify(), applied(AbsorbViews(), merged))
    whole = next(i for i, node in enumerate(after.nodes) if isinstance(node.op, g.Contract))
    task = partition(after).instances[0]
    assert task.output == whole, "nothing that the parts go through is done with it"
    copies = [one for one in partition(after).tasks if one.name.startswith("slice_5x3x4")]
    assert not [one for one in copies if not one.flops], "no part is copied whole"
    assert len(partition(after).instances) == len(partition(before).instances) - 2


def test_a_part_that_begins_within_a_group_of_its_reshape_stays_a_slice_before_it() -> None:
    b = GraphBuilder()
    x = b.input("x", (5, 4), "float32")
    one, two = b.matmul(x, weights(b, "one", 4, 3)), b.reshape(b.matmul(x, weights(b, "two", 4, 4)), (5, 2, 2))
    graph = b.finish([("y", b.einsum("bi,bjk->ijk", one, two))])
    after = applied(RULE, graph)
    assert widths(after)[0] == 7
    (reshape,) = (node for node in after.nodes if isinstance(node.op, g.Reshape))
    assert isinstance(after.nodes[reshape.inputs[0]].op, g.Slice)


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
    case("a part is joined with something else", lambda b, x, a, c: [
        b.matmul(b.transpose(b.add(g.Concat(1), a, x), (1, 0)), c)])  # fmt: skip
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
