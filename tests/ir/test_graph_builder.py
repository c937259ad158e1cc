"""The builder: folding, sharing, identities, names, dead code, and the composites."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import CheckError
from pipeline.ir import graph as g
from pipeline.ir.evaluate import evaluate
from pipeline.ir.graph import DType, Graph
from pipeline.ir.graph_builder import GraphBuilder
from tests.ir.random_graphs import graphs


def kinds(graph: Graph) -> list[str]:
    return [node.op.fn if isinstance(node.op, g.Elementwise) else type(node.op).__name__ for node in graph.nodes]


def run(build, x: np.ndarray, dtype: DType = "float32") -> np.ndarray:
    b = GraphBuilder()
    return evaluate(b.finish([("y", build(b, b.input("x", x.shape, dtype)))]), {"x": x})["y"]


def test_a_node_on_constants_becomes_a_constant():
    b = GraphBuilder()
    total = b.elementwise("add", b.constant(np.arange(3)), b.constant(np.int64(4)))
    assert b.value_of(total).tolist() == [4, 5, 6]
    assert kinds(b.finish([("y", b.elementwise("mul", total, total))])) == ["Constant"]


def test_a_value_that_is_not_known_has_no_data():
    b = GraphBuilder()
    assert b.value_of(b.input("x", (2,), "float32")) is None


def test_a_constant_that_would_grow_beyond_measure_is_not_folded():
    b = GraphBuilder()
    one = b.constant(np.float32(1))
    assert b.value_of(b.broadcast(one, (1 << 10, 1 << 10))) is not None
    assert b.value_of(b.broadcast(one, (1 << 11, 1 << 10))) is None


def test_equal_nodes_are_shared():
    b = GraphBuilder()
    x = b.input("x", (2, 3), "float32")
    with b.scope("first"):
        first = b.elementwise("exp", x)
    with b.scope("second"):
        assert b.elementwise("exp", x) == first
    assert b.constant(np.zeros(2)) == b.constant(np.zeros(2))
    assert b.pad(x, [1, 0], [0, 0], value=0.0) != b.pad(x, [1, 0], [0, 0], value=-0.0)


def test_identities_are_dropped():
    b = GraphBuilder()
    x, n = b.input("x", (2, 3), "float32"), b.input("n", (2, 3), "int64")
    assert b.reshape(x, (2, 3)) == b.transpose(x, (0, 1)) == b.cast(x, "float32") == b.broadcast(x, (2, 3)) == x
    assert b.reshape(b.reshape(x, (6,)), (2, -1)) == b.transpose(b.transpose(x, (1, 0)), (1, 0)) == x
    assert b.slice(x, [0, -9], [2, 9]) == b.pad(x, [0, 0], [0, 0]) == b.concat([x], 0) == x
    assert b.elementwise("identity", x) == b.elementwise("mul", x, b.scalar(1, x)) == x
    assert b.elementwise("mul", b.scalar(1, x), x) == b.elementwise("div", x, b.scalar(1, x)) == x
    assert b.elementwise("add", n, b.scalar(0, n)) == b.elementwise("sub", n, b.scalar(0, n)) == n


def test_what_is_almost_an_identity_stays():
    b = GraphBuilder()
    x = b.input("x", (3,), "float32")
    assert b.elementwise("add", x, b.scalar(0.0, x)) != x, "-0 + 0 is 0"
    assert b.elementwise("add", x, b.scalar(-0.0, x)) == x
    assert b.elementwise("sub", x, b.scalar(-0.0, x)) != x
    assert b.elementwise("mul", x, b.constant(np.ones((2, 1), np.float32))) != x, "it broadcasts"
    assert b.elementwise("mul", x, b.constant(np.ones((1, 1), np.float32))) != x, "it adds a dimension"
    assert b.elementwise("div", b.scalar(1, x), x) != x
    assert b.cast(b.cast(x, "int32"), "float32") != x


def test_chains_of_views_become_one():
    b = GraphBuilder()
    x = b.input("x", (2, 3, 4), "float32")
    y = b.transpose(b.transpose(x, (1, 2, 0)), (1, 2, 0))
    z = b.reshape(b.reshape(x, (6, 4)), (24,))
    graph = b.finish([("y", y), ("z", z)])
    assert [node.op for node in graph.nodes[1:]] == [g.Transpose((2, 0, 1)), g.Reshape()]


def test_scopes_name_the_nodes():
    b = GraphBuilder()
    x = b.input("x", (2,), "float32")
    with b.scope("layer0"), b.scope("gelu"):
        y = b.elementwise("erf", x)
    z = b.elementwise("neg", y)
    assert [node.name for node in b.finish([("z", z)]).nodes] == ["", "layer0/gelu", ""]


def test_finish_keeps_inputs_in_order_and_drops_dead_nodes_and_data():
    b = GraphBuilder()
    first, second = b.input("first", (2,), "float32"), b.input("second", (2,), "float32")
    b.elementwise("exp", first)
    b.constant(np.ones(7))
    graph = b.finish([("y", b.elementwise("neg", second)), ("same", second)])
    assert kinds(graph) == ["Input", "Input", "neg"]
    assert (graph.outputs, graph.constants) == ((("y", 2), ("same", 1)), {})


@given(graphs())
def test_every_node_of_a_finished_graph_is_needed(graph: Graph):
    used = {v for node in graph.nodes for v in node.inputs} | {v for _, v in graph.outputs}
    assert all(number in used or isinstance(node.op, g.Input) for number, node in enumerate(graph.nodes))
    assert set(graph.constants) == {node.op.key for node in graph.nodes if isinstance(node.op, g.Constant)}


def test_different_dtypes_are_promoted():
    b = GraphBuilder()
    x, n = b.input("x", (2,), "float32"), b.input("n", (2,), "int16")
    assert b.dtype(b.elementwise("add", x, n)) == "float32"
    assert b.dtype(b.elementwise("eq", x, n)) == "bool"
    chosen = b.elementwise("where", b.elementwise("eq", x, n), x, n)
    assert b.dtype(chosen) == "float32"


@pytest.mark.parametrize(
    ("attempt", "why"),
    [
        (lambda b, x: b.input("x", (1,), "float32"), "two inputs"),
        (lambda b, x: b.finish([("y", x), ("y", x)]), "two outputs"),
        (lambda b, x: b.transpose(x, (0, 2)), "no such axis"),
        (lambda b, x: b.reshape(x, (4,)), "does not have the elements"),
        (lambda b, x: b.matmul(x, x), "do not multiply"),
        (lambda b, x: b.einsum("ij,jk->ik", x, x), "letter j has two sizes"),
        (lambda b, x: b.einsum("ijk,jk->i", x, x), "letters do not fit"),
        (lambda b, x: b.gelu(x, "sigmoid"), "neither none nor tanh"),
        (lambda b, x: b.reduce_window("max", x, [2, 3], [2], ()), "0 indices"),
    ],
)
def test_the_builder_refuses(attempt, why: str):
    b = GraphBuilder()
    x = b.input("x", (2, 3), "float32")
    with pytest.raises(CheckError, match=why):
        attempt(b, x)


@given(st.integers(0, 5), st.integers(1, 3), st.integers(-9, 9), st.integers(-9, 9), st.sampled_from((-3, -1, 1, 2)))
def test_slices_are_those_of_python(size: int, others: int, start: int, stop: int, step: int):
    x = np.arange(size * others, dtype=np.float32).reshape(others, size)
    got = run(lambda b, v: b.slice(v, [start], [stop], [step], [1]), x)
    np.testing.assert_array_equal(got, x[:, start:stop:step])


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_softmax_and_its_logarithm_are_as_defined(axis: int):
    x = np.random.default_rng(0).normal(size=(3, 4, 5)) * 50
    power = np.exp(x - x.max())
    expected = power / power.sum(axis=axis, keepdims=True)
    np.testing.assert_allclose(run(lambda b, v: b.softmax(v, axis), x, "float64"), expected, rtol=1e-12)
    logarithm = run(lambda b, v: b.log_softmax(v, axis), x, "float64")
    np.testing.assert_allclose(logarithm, np.log(expected), rtol=1e-12, atol=1e-14)


def test_softmax_of_large_logits_does_not_overflow():
    np.testing.assert_array_equal(
        run(lambda b, v: b.softmax(v), np.array([1e30, 1e30, -1e30]), "float64"), [0.5, 0.5, 0]
    )


def test_layer_norm_is_as_defined():
    rng = np.random.default_rng(1)
    x, gamma, beta = rng.normal(3, 2, (4, 6)), rng.normal(size=6), rng.normal(size=6)
    got = run(lambda b, v: b.layer_norm(v, [-1], b.constant(gamma), b.constant(beta), 1e-3), x, "float64")
    expected = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-3) * gamma + beta
    np.testing.assert_allclose(got, expected, rtol=1e-12)


def test_activations_are_as_defined():
    x = np.linspace(-4, 4, 33)
    normal = np.array([0.5 * (1 + math.erf(v / math.sqrt(2))) for v in x])
    np.testing.assert_allclose(run(lambda b, v: b.gelu(v), x, "float64"), x * normal, rtol=1e-12, atol=1e-16)
    np.testing.assert_allclose(run(lambda b, v: b.gelu(v, "tanh"), x, "float64"), x * normal, atol=1e-3)
    np.testing.assert_allclose(run(lambda b, v: b.silu(v), x, "float64"), x / (1 + np.exp(-x)), rtol=1e-12)
    np.testing.assert_array_equal(run(lambda b, v: b.relu(v), x, "float64"), np.maximum(x, 0))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_composites_of_halves_compute_in_float32(dtype: DType):
    b = GraphBuilder()
    x = b.input("x", (2, 4096), dtype)
    outputs = {"mean": b.reduce("mean", x, [1]), "softmax": b.softmax(x), "norm": b.layer_norm(x, [1])}
    assert all(b.dtype(value) == dtype for value in outputs.values())
    big = np.full((2, 4096), 100, ml_dtypes.bfloat16 if dtype == "bfloat16" else np.float16)
    got = evaluate(b.finish(list(outputs.items())), {"x": big}, precision="native")
    assert float(got["mean"][0]) == 100, "the sum alone would overflow"
    assert float(got["norm"][0, 0]) == 0


def test_a_constant_cannot_be_written_through_the_builder():
    b = GraphBuilder()
    value = b.value_of(b.constant(np.zeros(3)))
    with pytest.raises(ValueError, match="read-only"):
        value[0] = 1


def test_numbers_of_numpy_become_plain_ones():
    b, one = GraphBuilder(), np.int64(1)
    x = b.input("x", np.array([2, 4, 6]), "float32")
    w = b.constant(np.ones((8, 4, 3), np.float32))
    window = {"strides": [one], "pads_low": [one], "pads_high": [one], "dilations": [one]}
    values = [
        b.conv(x, w, **window), b.pool("max", x, [one * 2], [one], [one], [one]), b.topk(x, one, one * -1)[0],
        b.pad(x, [one] * 3, [one] * 3), b.slice(x, [one], [one * 9], [one], [one]),
        b.transpose(x, [one * 2, one * 0, one]),
        b.conv_transpose(b.concat([x, x], one), b.constant(np.ones((8, 2, 3), np.float32)), output_padding=[one],
                         **{**window, "strides": [one * 2]}), b.broadcast(x, np.array([3, 2, 4, 6])),
        b.reduce("sum", x, np.array([1])), b.gather(x, b.constant(np.array([0])), one), b.scan("sum", x, one),
    ]  # fmt: skip
    graph = b.finish([(str(i), value) for i, value in enumerate(values)])
    assert "int64(" not in repr(graph.nodes)


def test_a_negative_size_is_refused():
    with pytest.raises(CheckError, match="negative"):
        GraphBuilder().input("x", (2, -1), "float32")
