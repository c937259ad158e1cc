"""The reference evaluation of whole graphs: precision, feeds, memory."""

from __future__ import annotations

import math
import tracemalloc

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given

from pipeline.errors import CheckError, UserError
from pipeline.ir import graph as g
from pipeline.ir.evaluate import evaluate, evaluate_node
from pipeline.ir.graph import Graph, TensorType
from pipeline.ir.graph_builder import GraphBuilder
from pipeline.ir.graph_types import numpy_dtype
from tests.ir.random_graphs import graphs


def feed(graph: Graph) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        node.op.name: rng.normal(size=node.type.shape).astype(numpy_dtype(node.type.dtype))
        for node in graph.nodes
        if isinstance(node.op, g.Input)
    }


@given(graphs())
def test_both_precisions_give_the_types_they_promise(graph: Graph):
    feeds = feed(graph)
    wide, native = evaluate(graph, feeds), evaluate(graph, feeds, precision="native")
    for name, value in graph.outputs:
        kind = graph.nodes[value].type
        assert (native[name].shape, native[name].dtype) == (kind.shape, numpy_dtype(kind.dtype))
        floating = kind.dtype in ("float32", "float64")
        assert (wide[name].shape, wide[name].dtype) == (kind.shape, np.float64 if floating else numpy_dtype(kind.dtype))


@given(graphs())
def test_folding_gives_what_evaluation_gives(graph: Graph):
    """The same graph built on a constant instead of its input is folded away, to the same values."""
    feeds = feed(graph)
    b = GraphBuilder()
    values: list[int] = []
    for node in graph.nodes:
        match node.op:
            case g.Input(name):
                values.append(b.constant(feeds[name]))
            case g.Constant(key):
                values.append(b.constant(graph.constants[key]))
            case _:
                operands = [values[v] for v in node.inputs]
                values.append(b.add(node.op, *operands, shape=node.type.shape, dtype=node.type.dtype))
    expected = evaluate(graph, feeds, precision="native")
    for name, value in graph.outputs:
        np.testing.assert_array_equal(b.value_of(values[value]), expected[name])


def test_float64_does_not_round_to_the_dtype_of_the_graph():
    b = GraphBuilder()
    x = b.input("x", (), "float16")
    graph = b.finish([("y", b.elementwise("div", b.cast(x, "float32"), b.constant(np.float32(3))))])
    one = {"x": np.float16(1)}
    assert evaluate(graph, one)["y"] == 1 / 3
    assert evaluate(graph, one, precision="native")["y"] == np.float32(1) / np.float32(3)


def test_integers_are_exact_in_both_precisions():
    b = GraphBuilder()
    x = b.input("x", (), "int64")
    graph = b.finish([("y", b.elementwise("add", x, b.constant(np.int64(1))))])
    big = {"x": np.int64(2**60)}
    assert evaluate(graph, big)["y"] == evaluate(graph, big, precision="native")["y"] == 2**60 + 1


def test_bfloat16_inputs_are_taken_and_given():
    b = GraphBuilder()
    x = b.input("x", (2,), "bfloat16")
    graph = b.finish([("y", b.matmul(x, x))])
    array = np.array([1, 3], ml_dtypes.bfloat16)
    assert evaluate(graph, {"x": array}, precision="native")["y"].dtype == ml_dtypes.bfloat16
    assert evaluate(graph, {"x": array})["y"] == 10


def test_an_output_may_be_an_input_a_constant_or_given_twice():
    b = GraphBuilder()
    x = b.input("x", (2,), "float32")
    c = b.constant(np.ones(2, np.float32))
    got = evaluate(b.finish([("x", x), ("c", c), ("again", c)]), {"x": np.zeros(2, np.float32)})
    assert {name: value.tolist() for name, value in got.items()} == {"x": [0, 0], "c": [1, 1], "again": [1, 1]}


def test_outputs_share_no_memory_with_the_feeds():
    b = GraphBuilder()
    graph = b.finish([("y", b.reshape(b.input("x", (2,), "float64"), (2, 1)))])
    x = np.zeros(2)
    assert not np.shares_memory(evaluate(graph, {"x": x})["y"], x)


def test_intermediates_are_freed_after_their_last_use():
    b = GraphBuilder()
    size = 1 << 17
    value = b.input("x", (size,), "float64")
    for _ in range(40):
        value = b.elementwise("sin", b.elementwise("neg", value))
    graph = b.finish([("y", b.reduce("sum", value, [0]))])
    feeds = {"x": np.zeros(size)}
    tracemalloc.start()
    try:
        evaluate(graph, feeds)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 5 * size * 8, "eighty intermediates of this size are computed"


def test_infinities_pass_without_a_warning():
    b = GraphBuilder()
    x = b.input("x", (3,), "float32")
    graph = b.finish([("y", b.softmax(x)), ("n", b.layer_norm(x, [0])), ("s", b.scan("sum", x, 0))])
    with np.errstate(all="raise"):
        got = evaluate(graph, {"x": np.array([np.inf, -np.inf, 1], np.float32)})
    assert all(np.isnan(value).any() for value in got.values())


@pytest.mark.parametrize(
    ("feeds", "why"),
    [
        ({}, "x: the input is missing"),
        ({"x": np.zeros(3, np.float32)}, r"float32 of shape \(3,\) given"),
        ({"x": np.zeros(2)}, r"float64 of shape \(2,\) given"),
        ({"x": np.zeros(2, np.float32), "z": np.zeros(1)}, "z: no such input"),
    ],
)
def test_wrong_feeds_are_refused(feeds: dict[str, np.ndarray], why: str):
    b = GraphBuilder()
    graph = b.finish([("y", b.elementwise("neg", b.input("x", (2,), "float32")))])
    with pytest.raises(UserError, match=why):
        evaluate(graph, feeds)


def test_a_value_that_is_not_of_its_type_is_refused():
    with pytest.raises(CheckError, match="not of the node's type"):
        evaluate_node(g.Transpose((1, 0)), [np.zeros((2, 3))], TensorType((2, 3), "float64"))


def test_an_input_is_not_computed():
    with pytest.raises(CheckError, match="not computed"):
        evaluate_node(g.Input("x"), [], TensorType((), "float64"))


def test_a_mean_of_many_floats_is_exact_where_float32_would_drift():
    b = GraphBuilder()
    x = b.input("x", (1 << 22,), "float32")
    graph = b.finish([("y", b.reduce("mean", x, [0]))])
    got = evaluate(graph, {"x": np.full(1 << 22, 0.1, np.float32)})["y"]
    assert math.isclose(got, float(np.float32(0.1)), rel_tol=1e-12)
