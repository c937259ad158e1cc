"""Tests of `FoldScale`: which factors become part of the weights, and which must not."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.ir.evaluate import evaluate
from pipeline.ir.graph import AffineDim, DType, Graph
from pipeline.ir.graph_builder import GraphBuilder
from pipeline.ir.graph_rule import same_graph
from rules.graph.fold_scale import FoldScale
from tests.ir.random_graphs import graphs
from tests.rules.graph.attention_blocks import gpt2_block, weights
from tests.rules.graph.meaning import applied, line, operations

RULE = FoldScale()
ROUNDED = 1e-6  # weights are rounded to float32 once more


@settings(max_examples=40, deadline=None)
@given(graphs())
def test_any_graph_keeps_its_meaning(graph: Graph) -> None:
    applied(RULE, graph, relative=ROUNDED)


def conv_norm(groups: int = 1, outputs: int = 6, dtype: DType = "float32", relu: bool = True) -> Graph:
    b = GraphBuilder()
    rng = np.random.default_rng(0)
    x = b.input("x", (2, 6, 7, 7), dtype)

    def constant(*shape: int) -> int:
        return b.constant(rng.normal(size=shape).astype(dtype))

    w = constant(outputs, 6 // groups, 3, 3)
    y = b.conv(x, w, strides=[1, 1], pads_low=[1, 1], pads_high=[1, 1], dilations=[1, 1], groups=groups)
    y = b.elementwise("mul", y, constant(outputs, 1, 1))
    y = b.elementwise("add", y, constant(outputs, 1, 1))
    return b.finish([("y", b.relu(y) if relu else y)])


@pytest.mark.parametrize(("groups", "outputs"), [(1, 6), (2, 8), (6, 6), (6, 12)])
def test_batch_norm_folds_into_the_weights_and_leaves_a_bias(groups: int, outputs: int) -> None:
    after = applied(RULE, conv_norm(groups, outputs), relative=ROUNDED)
    assert operations(after) == ["Pad", "Contract", "add", "max"]


def test_weights_are_rounded_once_from_float64() -> None:
    b = GraphBuilder()
    w, s = np.float32([[0.1, 0.7], [0.3, -0.2]]), np.float32([3.3, 1 / 3])
    y = b.elementwise("mul", b.matmul(b.input("x", (3, 2), "float32"), b.constant(w)), b.constant(s))
    after = RULE.apply(b.finish([("y", y)]))
    (folded,) = after.constants.values()
    np.testing.assert_array_equal(folded, (w.astype(np.float64) * s).astype(np.float32))


def test_in_float64_the_difference_is_of_the_last_digits() -> None:
    applied(RULE, conv_norm(dtype="float64"), relative=1e-12)


def test_a_bias_before_the_factor_is_scaled_too() -> None:
    b = GraphBuilder()
    y = b.elementwise("add", b.matmul(b.input("x", (3, 4), "float32"), weights(b, "w", 4, 8)), weights(b, "c", 8))
    y = b.elementwise("div", b.reshape(y, (3, 2, 4)), b.scalar(8.0**0.5, y))
    after = applied(RULE, b.finish([("y", y)]), relative=ROUNDED)
    assert operations(after) == ["Contract", "add"]


def test_a_quotient_folds_as_a_factor() -> None:
    b = GraphBuilder()
    y = b.elementwise("div", b.matmul(b.input("x", (3, 4), "float32"), weights(b, "w", 4, 8)), weights(b, "d", 8))
    assert operations(applied(RULE, b.finish([("y", y)]), relative=1e-5)) == ["Contract"]


def test_the_constant_may_be_the_left_operand() -> None:
    b = GraphBuilder()
    y = b.matmul(weights(b, "w", 5, 4), b.input("x", (4, 3), "float32"))
    y = b.elementwise("mul", weights(b, "s", 5, 1), y)
    assert operations(applied(RULE, b.finish([("y", y)]), relative=ROUNDED)) == ["Contract"]


def test_phases_of_a_transposed_convolution_scale_by_their_channel() -> None:
    b = GraphBuilder()
    x = b.input("x", (1, 4, 5, 5), "float32")
    y = b.conv_transpose(x, weights(b, "w", 4, 6, 4, 4), strides=[2, 2], pads_low=[0, 0], pads_high=[0, 0],
                         output_padding=[0, 0], dilations=[1, 1])  # fmt: skip
    y = b.elementwise("mul", y, weights(b, "s", 6, 1, 1))
    after = applied(RULE, b.finish([("y", y)]), relative=ROUNDED)
    assert operations(after) == ["Pad", "Contract"]


def test_scales_of_an_attentions_operands_become_one_of_its_scores() -> None:
    before = gpt2_block()
    after = applied(RULE, before, relative=ROUNDED)
    assert (operations(before).count("mul"), operations(after).count("mul")) == (2, 1)


def test_a_mean_before_a_product_scales_the_weights() -> None:
    b = GraphBuilder()
    mean = b.reduce("mean", b.input("x", (2, 8, 7), "float32"), [2])
    after = applied(RULE, b.finish([("y", b.matmul(mean, weights(b, "w", 8, 3)))]), relative=ROUNDED)
    assert operations(after) == ["Reduce", "Contract"]


def test_chains_of_constants_become_one_constant() -> None:
    b = GraphBuilder()
    x = b.input("x", (3,), "float32")
    product = b.elementwise("mul", b.elementwise("mul", x, b.scalar(3, x)), b.scalar(5, x))
    total = b.elementwise("sub", b.elementwise("add", x, b.scalar(3, x)), b.scalar(-5, x))
    after = applied(RULE, b.finish([("product", product), ("total", total)]))
    assert operations(after) == ["mul", "add"]
    assert sorted(float(c) for c in after.constants.values()) == [8, 15]


def test_a_quotient_by_powers_of_two_is_a_product() -> None:
    b = GraphBuilder()
    x = b.input("x", (2,), "float32")
    y = b.elementwise("div", x, b.constant(np.float32([4, -0.5])))
    after = applied(RULE, b.finish([("y", y)]), relative=0)
    assert operations(after) == ["mul"]


def refusals() -> dict[str, Graph]:
    made: dict[str, Graph] = {}

    def case(name: str, build, dtype: DType = "float32") -> None:  # type: ignore[no-untyped-def]
        b = GraphBuilder()
        x = b.input("x", (3, 4), dtype)
        w = b.constant(np.arange(1, 21, dtype=np.float32).reshape(4, 5).astype(dtype))
        outputs = build(b, x, w)
        made[name] = b.finish([(f"y{i}", value) for i, value in enumerate(outputs)])

    def row(b: GraphBuilder, *shape: int) -> int:
        return b.constant(np.linspace(0.3, 2, math.prod(shape), dtype=np.float32).reshape(shape))

    def used_twice(b: GraphBuilder, x: int, w: int) -> list[int]:
        y = b.matmul(x, w)
        return [y, b.elementwise("mul", y, row(b, 5))]

    case("the result is used elsewhere", used_twice)
    case("the factor varies along rows", lambda b, x, w: [b.elementwise("mul", b.matmul(x, w), row(b, 3, 1))])
    case("no operand is constant", lambda b, x, w: [
        b.elementwise("mul", b.einsum("ik,jk->ij", x, b.elementwise("exp", x)), row(b, 3))])  # fmt: skip
    case("the factor is no constant", lambda b, x, w: [
        b.elementwise("mul", b.matmul(x, w), b.input("s", (5,), "float32"))])  # fmt: skip
    case("the quotient is the other way round", lambda b, x, w: [b.elementwise("div", row(b, 5), b.matmul(x, w))])
    case("the factor adds a dimension", lambda b, x, w: [b.elementwise("mul", b.matmul(x, w), row(b, 2, 1, 5))])
    case("a weight would overflow", lambda b, x, w: [
        b.elementwise("mul", b.matmul(x, w), b.constant(np.float32([1, 1, 1, 1, 3e38])))])  # fmt: skip
    case("a weight would become subnormal", lambda b, x, w: [
        b.elementwise("mul", b.matmul(x, w), b.constant(np.float32([1, 1, 1, 1, 1e-39])))])  # fmt: skip
    case("the quotient is by zero", lambda b, x, w: [
        b.elementwise("div", b.matmul(x, w), b.constant(np.float32([1, 1, 1, 1, 0])))])  # fmt: skip
    case("something nonlinear is between", lambda b, x, w: [
        b.elementwise("mul", b.elementwise("tanh", b.matmul(x, w)), row(b, 5))])  # fmt: skip
    case("the sum cancels", lambda b, x, w: [
        b.elementwise("add", b.elementwise("add", x, b.scalar(1e8, x)), b.scalar(-1e8, x))])  # fmt: skip
    case("the reciprocal is not exact", lambda b, x, w: [b.elementwise("div", x, b.scalar(3, x))])
    case("the factor may be what keeps the sum finite", lambda b, x, w: [
        b.matmul(b.elementwise("mul", x, b.scalar(1e-9, x)), b.input("y", (4, 2), "float32"))])  # fmt: skip
    case("a half would be rounded twice", lambda b, x, w: [
        b.elementwise("mul", b.matmul(x, w), b.constant(np.float16([1, 2, 3, 4, 5])))], "float16")  # fmt: skip
    return made


@pytest.mark.parametrize("name", refusals())
def test_the_rule_does_not_fire_where(name: str) -> None:
    graph = refusals()[name]
    assert same_graph(RULE.apply(graph), graph)


def test_an_element_that_is_read_with_two_factors_is_not_scaled() -> None:
    b = GraphBuilder()
    x = b.input("x", (3,), "float32")
    toeplitz = b.constant(np.arange(1, 7, dtype=np.float32))
    y = b.contract(x, toeplitz, [4], [3], (AffineDim(((1, 1),)),), (AffineDim(((0, 1), (1, 1))),))
    graph = b.finish([("y", b.elementwise("mul", y, b.constant(np.float32([1, 2, 3, 4]))))])
    assert same_graph(RULE.apply(graph), graph)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 3), st.integers(1, 3), st.integers(0, 99))
def test_any_grouped_convolution_folds_its_factor(groups: int, per_group: int, seed: int) -> None:
    b = GraphBuilder()
    rng = np.random.default_rng(seed)
    x = b.input("x", (1, 2 * groups, 4), "float64")
    w = b.constant(rng.normal(size=(groups * per_group, 2, 3)))
    y = b.conv(x, w, strides=[1], pads_low=[0], pads_high=[0], dilations=[1], groups=groups)
    graph = b.finish([("y", b.elementwise("mul", y, b.constant(rng.uniform(0.5, 2, (groups * per_group, 1)))))])
    after = applied(RULE, graph, relative=1e-12)
    assert operations(after) == ["Contract"]
    feeds = {"x": rng.normal(size=(1, 2 * groups, 4))}
    np.testing.assert_allclose(evaluate(after, feeds)["y"], evaluate(graph, feeds)["y"], rtol=1e-9, atol=1e-12)


def test_the_text_of_a_folded_product_is_that_of_the_product() -> None:
    assert line(RULE.apply(conv_norm(relu=False)), "contract").startswith(
        "contract<spatial=[2, 6, 7, 7], reduced=[6, 3, 3], lhs=[d0, d4, d2 + d5, d3 + d6], rhs=[d1, d4, d5, d6]>"
    )
