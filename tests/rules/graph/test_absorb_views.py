"""Tests of `AbsorbViews`: what products read and write through, and what is left as it is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.ir import graph as g
from pipeline.ir.graph import Graph
from pipeline.ir.graph_builder import GraphBuilder
from pipeline.ir.graph_rule import same_graph
from rules.graph.absorb_views import AbsorbViews
from rules.graph.channels_last import ChannelsLast
from rules.graph.merge_variables import MergeVariables
from tests.ir.random_graphs import graphs
from tests.rules.graph.attention_blocks import bert_block, gpt2_block, weights
from tests.rules.graph.meaning import applied, line, operations

RULE = AbsorbViews()


@settings(max_examples=40, deadline=None)
@given(graphs())
def test_any_graph_keeps_its_meaning(graph: Graph) -> None:
    applied(RULE, graph)


def view(draw: st.DrawFn, b: GraphBuilder, x: int) -> int:
    """A random view; a reshape joins or splits at random places."""
    shape = b.shape(x)
    axis = draw(st.integers(0, len(shape) - 1))
    match draw(st.sampled_from(("transpose", "split", "join", "slice", "broadcast", "scale"))):
        case "transpose":
            return b.transpose(x, draw(st.permutations(range(len(shape)))))
        case "split" if len(shape) < 5:
            inner = draw(st.sampled_from([n for n in (1, 2, 3) if shape[axis] % n == 0]))
            return b.reshape(x, (*shape[:axis], shape[axis] // inner, inner, *shape[axis + 1 :]))
        case "join" if axis + 1 < len(shape):
            return b.reshape(x, (*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :]))
        case "slice":
            return b.slice(x, [draw(st.integers(0, 1))], [None], [draw(st.sampled_from((1, -1, 2)))], [axis])
        case "broadcast" if len(shape) < 5:
            return b.broadcast(x, (2, *shape))
        case "scale":
            return b.elementwise("mul", x, weights(b, "scale", shape[-1]))
        case _:
            return x


@st.composite
def products_among_views(draw: st.DrawFn) -> Graph:
    b = GraphBuilder()
    x = b.input("x", tuple(draw(st.lists(st.sampled_from((1, 2, 4, 6)), min_size=2, max_size=3))), "float64")
    for _ in range(draw(st.integers(1, 5))):
        x = view(draw, b, x)
    if 0 in b.shape(x):
        return b.finish([("y", x)])
    rng = np.random.default_rng(0)
    y = b.matmul(x, b.constant(rng.normal(size=(b.shape(x)[-1], draw(st.sampled_from((1, 6, 16, 32)))))))
    for _ in range(draw(st.integers(0, 4))):
        y = view(draw, b, y)
    return b.finish([("y", y)])


@settings(max_examples=150, deadline=None)
@given(products_among_views())
def test_a_product_among_any_views_keeps_its_meaning(graph: Graph) -> None:
    applied(MergeVariables(), applied(ChannelsLast(), applied(RULE, graph)))


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("block", [bert_block, gpt2_block])
def test_attention_as_it_is_exported_ends_without_a_transpose(block, batch: int) -> None:
    before = block(batch)
    after = applied(RULE, before)
    assert operations(before).count("Transpose") >= 4
    assert "Transpose" not in operations(after)


def test_the_products_of_attention_read_and_write_in_place() -> None:
    after = applied(RULE, bert_block(2))
    scores, context = line(after, "contract<spatial=[2, 4, 6, 6]"), line(after, "contract<spatial=[2, 6, 4, 16]")
    assert "reduced=[16], lhs=[d0, d2, d1, d4], rhs=[d0, d3, d1, d4]>" in scores
    assert "reduced=[6], lhs=[d0, d2, d1, d4], rhs=[d0, d4, d2, d3]>" in context


def test_a_fused_projection_is_read_at_its_offsets() -> None:
    b = GraphBuilder()
    joint, other = b.input("joint", (5, 24), "float32"), b.input("other", (2, 4, 7), "float32")
    part = b.reshape(b.slice(joint, [8], [16], axes=[1]), (5, 2, 4))
    after = applied(RULE, b.finish([("y", b.matmul(b.transpose(part, (1, 0, 2)), other))]))
    assert operations(after) == ["Contract"]
    assert line(after, "contract").startswith(
        "contract<spatial=[2, 5, 7], reduced=[4], lhs=[d1, 4*d0 + d3 + 8], rhs=[d0, d3, d2]>(%0, %1)"
    )


def test_a_reshape_that_merges_heads_splits_the_reduced_variable() -> None:
    b = GraphBuilder()
    x = b.input("x", (2, 5, 4), "float32")
    flat = b.reshape(b.transpose(x, (1, 0, 2)), (5, 8))
    after = applied(RULE, b.finish([("y", b.matmul(flat, weights(b, "w", 8, 3)))]))
    assert line(after, "contract").startswith(
        "contract<spatial=[5, 3], reduced=[2, 4], lhs=[d2, d0, d3], rhs=[4*d2 + d3, d1]>"
    )


def test_heads_that_share_keys_read_them_in_place() -> None:
    b = GraphBuilder()
    q, k = b.input("q", (6, 5, 4), "float32"), b.input("k", (2, 7, 4), "float32")
    shared = b.reshape(b.broadcast(b.reshape(k, (2, 1, 7, 4)), (2, 3, 7, 4)), (6, 7, 4))
    after = applied(RULE, b.finish([("y", b.einsum("hqd,hkd->hqk", q, shared))]))
    assert operations(after) == ["Contract"]
    assert "spatial=[2, 3, 5, 7]" in line(after, "contract")


def test_a_pooling_reads_through_views_too() -> None:
    b = GraphBuilder()
    x = b.input("x", (1, 8, 3), "float32")
    y = b.pool("max", b.transpose(x, (0, 2, 1)), [2], [2], [0], [0])
    after = applied(RULE, b.finish([("y", y)]))
    assert operations(after) == ["ReduceWindow"]
    assert "operand=[d0, 2*d2 + d3, d1]" in line(after, "reduce_window")


def test_a_product_that_is_transposed_after_a_bias_is_made_in_that_order() -> None:
    b = GraphBuilder()
    x, k = b.input("x", (3, 5, 8), "float32"), b.input("k", (3, 8, 4), "float32")
    y = b.elementwise("add", b.matmul(x, k), weights(b, "c", 4))
    after = applied(RULE, b.finish([("y", b.transpose(y, (1, 0, 2)))]))
    assert operations(after) == ["Contract", "add"]
    assert "spatial=[5, 3, 4]" in line(after, "contract")


def test_keys_for_a_cache_are_made_in_the_order_of_the_cache() -> None:
    after = applied(RULE, gpt2_block(cache=True))
    assert "Transpose" in operations(after), "the joint product is split, so a copy of its part remains"
    b = GraphBuilder()
    x = b.input("x", (1, 5, 32), "float32")
    key = b.transpose(b.reshape(b.matmul(x, weights(b, "w", 32, 32)), (1, 5, 2, 16)), (0, 2, 1, 3))
    after = applied(RULE, b.finish([("key", key)]))
    assert operations(after) == ["Contract"]
    assert "spatial=[1, 2, 5, 16]" in line(after, "contract")


@pytest.mark.parametrize("shape", [(4, 3), (1, 5, 32)])
def test_the_vectorized_dimension_stays_last(shape: tuple[int, ...]) -> None:
    b = GraphBuilder()
    x = b.input("x", shape, "float32")
    y = b.matmul(x, weights(b, "w", shape[-1], 32))
    if len(shape) == 2:
        graph = b.finish([("y", b.transpose(y, (1, 0)))])
    else:
        graph = b.finish([("y", b.transpose(b.reshape(y, (1, 5, 8, 4)), (0, 2, 1, 3)))])
    assert "Transpose" in operations(applied(RULE, graph))


def test_a_product_that_is_needed_in_both_orders_is_made_once() -> None:
    b = GraphBuilder()
    y = b.matmul(b.input("x", (3, 5, 8), "float32"), weights(b, "w", 8, 16))
    after = applied(RULE, b.finish([("y", y), ("z", b.transpose(y, (1, 0, 2)))]))
    assert operations(after) == ["Contract", "Transpose"]


def test_a_transpose_of_an_operand_that_no_constant_meets_stays() -> None:
    b = GraphBuilder()
    x, y = b.input("x", (3, 5), "float32"), b.input("y", (5, 3), "float32")
    graph = b.finish([("z", b.elementwise("add", b.transpose(x, (1, 0)), y))])
    assert same_graph(RULE.apply(graph), graph)


def test_transposes_move_past_constants_and_cancel() -> None:
    b = GraphBuilder()
    x = b.input("x", (2, 3, 5), "float32")
    y = b.elementwise("add", b.transpose(x, (2, 0, 1)), b.constant(np.arange(3, dtype=np.float32)))
    y = b.reduce("max", b.transpose(b.elementwise("tanh", y), (1, 2, 0)), [2])
    after = applied(RULE, b.finish([("y", y)]))
    assert operations(after) == ["add", "tanh", "Reduce"]


def test_a_window_over_a_reshape_is_left() -> None:
    b = GraphBuilder()
    x = b.input("x", (4, 3), "float32")
    flat = b.reshape(b.transpose(x, (1, 0)), (1, 1, 12))
    y = b.conv(flat, weights(b, "w", 2, 1, 3), strides=[1], pads_low=[0], pads_high=[0], dilations=[1])
    assert "Transpose" in operations(applied(RULE, b.finish([("y", y)])))


def test_a_reshape_alone_is_left_as_it_costs_nothing() -> None:
    b = GraphBuilder()
    x = b.reshape(b.input("x", (5, 12), "float32"), (5, 3, 4))
    graph = b.finish([("y", b.einsum("abc,cd->abd", x, b.input("w", (4, 2), "float32")))])
    assert same_graph(RULE.apply(graph), graph)


def test_operations_without_a_rule_are_left() -> None:
    b = GraphBuilder()
    x = b.input("x", (3, 4), "float32")
    graph = b.finish([("y", b.scan("sum", b.transpose(x, (1, 0)), 0))])
    assert isinstance(RULE.apply(graph).nodes[-1].op, g.Scan)
