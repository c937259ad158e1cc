"""Tests of `ChannelsLast`: convolution nets lose their transposes, and other products are left."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings

from pipeline.ir import graph as g
from pipeline.ir.graph import Graph
from pipeline.ir.graph_builder import GraphBuilder
from pipeline.ir.graph_rule import same_graph
from rules.graph.channels_last import ChannelsLast
from tests.ir.random_graphs import graphs
from tests.rules.graph.attention_blocks import bert_block, gpt2_block, weights
from tests.rules.graph.meaning import applied, line, operations

RULE = ChannelsLast()


@settings(max_examples=40, deadline=None)
@given(graphs())
def test_any_graph_keeps_its_meaning(graph: Graph) -> None:
    applied(RULE, graph)


def conv(b: GraphBuilder, x: int, outputs: int, window: int, stride: int = 1, groups: int = 1) -> int:
    w = weights(b, f"w{outputs}", outputs, b.shape(x)[1] // groups, window, window)
    pads = [window // 2] * 2
    return b.conv(x, w, strides=[stride] * 2, pads_low=pads, pads_high=pads, dilations=[1, 1], groups=groups)


def net(body: Callable[[GraphBuilder, int], int], channels: int = 4, size: int = 8) -> Graph:
    """A convolution, the body, a convolution, the mean of the image and a dense layer."""
    b = GraphBuilder()
    x = conv(b, b.input("x", (2, 3, size, size), "float32"), channels, 3)
    y = conv(b, b.relu(body(b, x)), 6, 3)
    return b.finish([("y", b.matmul(b.reduce("mean", y, [2, 3]), weights(b, "dense", 6, 5)))])


def residual(b: GraphBuilder, x: int) -> int:
    return b.elementwise("add", b.elementwise("add", conv(b, x, 4, 1), weights(b, "shift", 4, 1, 1)), x)


def gate(b: GraphBuilder, x: int) -> int:
    means = b.reduce("mean", x, [2, 3], keepdims=True)
    return b.elementwise("mul", x, b.elementwise("sigmoid", conv(b, means, 4, 1)))


def branches(b: GraphBuilder, x: int) -> int:
    return b.concat([conv(b, x, 3, 1), b.slice(conv(b, x, 5, 3), [1], [3], axes=[1]), x], 1)


def larger(b: GraphBuilder, x: int) -> int:
    n, c, h, w = b.shape(x)
    spread = b.broadcast(b.reshape(x, (n, c, h, 1, w, 1)), (n, c, h, 2, w, 2))
    return b.reshape(spread, (n, c, 2 * h, 2 * w))


BODIES: dict[str, Callable[[GraphBuilder, int], int]] = {
    "strides": lambda b, x: conv(b, x, 5, 3, 2),
    "groups": lambda b, x: conv(b, x, 6, 3, 1, 2),
    "depthwise": lambda b, x: conv(b, x, 4, 3, 2, 4),
    "depthwise with two outputs": lambda b, x: conv(b, x, 8, 3, 1, 4),
    "residual": residual,
    "gate": gate,
    "branches": branches,
    "upsampling": larger,
    "largest of a window": lambda b, x: b.pool("max", x, [3, 3], [2, 2], [1, 1], [1, 1]),
    "mean of a window": lambda b, x: b.pool("average", x, [2, 2], [2, 2], [0, 0], [0, 0]),
    "transposed convolution": lambda b, x: b.conv_transpose(
        x, weights(b, "t", 4, 3, 2, 2), strides=[2, 2], pads_low=[0, 0], pads_high=[0, 0], output_padding=[0, 0],
        dilations=[1, 1]),
}  # fmt: skip


@pytest.mark.parametrize("name", BODIES)
def test_a_net_keeps_one_transpose_at_its_input(name: str) -> None:
    before = net(BODIES[name])
    after = applied(RULE, before)
    assert "Transpose" not in operations(before)
    assert operations(after).count("Transpose") == 1
    assert operations(after)[0] in ("Transpose", "Pad"), "only the model's input is in another order"


def test_the_output_channel_of_a_convolution_is_its_last_variable() -> None:
    after = applied(RULE, net(lambda b, x: x))
    assert line(after, "contract").startswith(
        "contract<spatial=[2, 8, 8, 4], reduced=[3, 3, 3], lhs=[d0, d1 + d4, d2 + d5, d6], rhs=[d3, d6, d4, d5]>"
    )


def test_the_weights_of_a_depthwise_convolution_have_the_channel_last() -> None:
    after = applied(RULE, net(BODIES["depthwise"]))
    assert "lhs=[d0, 2*d1 + d4, 2*d2 + d5, d3], rhs=[0, d4, d5, d3]>" in line(after, "contract", 1)


def test_a_one_dimensional_and_a_three_dimensional_convolution_follow_too() -> None:
    for rank in (1, 3):
        b = GraphBuilder()
        x = b.input("x", (1, 3, *[5] * rank), "float32")
        w = weights(b, "w", 4, 3, *[3] * rank)
        ones = [1] * rank
        y = b.conv(x, w, strides=ones, pads_low=ones, pads_high=ones, dilations=ones)
        after = applied(RULE, b.finish([("y", y)]))
        assert [n.op.spatial for n in after.nodes if isinstance(n.op, g.Contract)] == [(1, *[5] * rank, 4)]


def test_weights_that_are_inputs_are_read_where_they_are() -> None:
    b = GraphBuilder()
    x, w = b.input("x", (1, 3, 5, 5), "float32"), b.input("w", (4, 3, 3, 3), "float32")
    y = b.conv(x, w, strides=[1, 1], pads_low=[0, 0], pads_high=[0, 0], dilations=[1, 1])
    after = applied(RULE, b.finish([("y", y)]))
    assert operations(after) == ["Transpose", "Contract", "Transpose"]


def test_a_shuffle_of_channels_is_one_copy_of_channels_that_lie_last() -> None:
    def shuffled(b: GraphBuilder, x: int) -> int:
        n, c, h, w = b.shape(x)
        parts = b.transpose(b.reshape(conv(b, x, 4, 1, 1, 2), (n, 2, c // 2, h, w)), (0, 2, 1, 3, 4))
        return conv(b, b.reshape(parts, (n, c, h, w)), 4, 3, 1, 4)

    after = applied(RULE, net(shuffled))
    perms = [node.op.perm for node in after.nodes if isinstance(node.op, g.Transpose)]
    assert perms == [(0, 2, 3, 1), (0, 1, 2, 4, 3)]


@pytest.mark.parametrize("block", [bert_block, gpt2_block])
def test_the_products_of_a_transformer_are_left(block: Callable[[int], Graph]) -> None:
    before = block(2)
    after = applied(RULE, before)
    assert [n.op for n in before.nodes if isinstance(n.op, g.Contract)] == [
        n.op for n in after.nodes if isinstance(n.op, g.Contract)
    ]


def test_a_product_of_two_unknown_operands_is_left() -> None:
    b = GraphBuilder()
    y = b.einsum("ghd,gkd->gkh", b.input("q", (2, 3, 4), "float32"), b.input("k", (2, 5, 4), "float32"))
    graph = b.finish([("y", y)])
    assert same_graph(RULE.apply(graph), graph)


def test_constant_activations_are_left() -> None:
    b = GraphBuilder()
    y = b.einsum("nchw,oc->nohw", weights(b, "a", 1, 3, 5, 5), b.input("w", (4, 3), "float32"))
    graph = b.finish([("y", y)])
    assert same_graph(RULE.apply(graph), graph)
