"""Tests of mixed precision: which values are rounded, and what the model computes then."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.frontend.precision import Precision, in_precision
from pipeline.frontend.workloads.gmm import Gmm
from pipeline.ir.evaluate import evaluate
from pipeline.ir.graph import Constant, Contract, Elementwise, Graph, Input
from pipeline.ir.graph_builder import GraphBuilder
from pipeline.ir.graph_check import check
from pipeline.ir.graph_types import numpy_dtype
from pipeline.verification.hostile import random_feeds
from pipeline.verification.tolerance import evaluate_with_bound

HALVES: tuple[Precision, ...] = ("float16", "bfloat16")


def model() -> Graph:
    b = GraphBuilder()
    x = b.input("x", (4, 8), "float32")
    w = b.constant(np.random.default_rng(1).standard_normal((8, 8)).astype(np.float32))
    y = b.relu(b.matmul(x, w))
    return b.finish([("y", b.softmax(b.matmul(y, b.transpose(x, (1, 0)))))])


@pytest.mark.parametrize("precision", HALVES)
def test_factors_are_rounded_and_nothing_else(precision: Precision) -> None:
    graph = in_precision(model(), precision)
    check(graph)
    products = [node for node in graph.nodes if isinstance(node.op, Contract)]
    assert len(products) == 2
    for node in products:
        assert node.type.dtype == "float32"
        assert {graph.nodes[factor].type.dtype for factor in node.inputs} == {precision}
    others = [n for n in graph.nodes if not isinstance(n.op, Contract | Constant) and n.op != Elementwise("cast")]
    assert {node.type.dtype for node in others if not isinstance(node.op, Input)} <= {"float32", precision}
    assert next(node.type for node in graph.nodes if isinstance(node.op, Input)).dtype == "float32"
    assert {graph.nodes[value].type.dtype for _, value in graph.outputs} == {"float32"}


@pytest.mark.parametrize("precision", HALVES)
def test_constants_are_rounded_once(precision: Precision) -> None:
    graph = in_precision(model(), precision)
    wide = model()
    (key,) = [n.op.key for n in graph.nodes if isinstance(n.op, Constant) and n.type.shape == (8, 8)]
    (old,) = [n.op.key for n in wide.nodes if isinstance(n.op, Constant) and n.type.shape == (8, 8)]
    assert graph.constants[key].dtype == numpy_dtype(precision)  # type: ignore[arg-type]
    np.testing.assert_array_equal(graph.constants[key], wide.constants[old].astype(graph.constants[key].dtype))


@pytest.mark.parametrize(("precision", "digits"), [("float16", 11), ("bfloat16", 8)])
def test_the_result_is_near_that_of_the_model_but_not_the_same(precision: Precision, digits: int) -> None:
    feeds = {"x": np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)}
    want, got = evaluate(model(), feeds)["y"], evaluate(in_precision(model(), precision), feeds)["y"]
    assert 0 < np.abs(got - want).max() < 64 * 2.0**-digits


def test_the_model_itself_and_products_of_other_dtypes_stay_as_they_are() -> None:
    graph = model()
    assert in_precision(graph, "model") is graph
    b = GraphBuilder()
    x, y = b.input("x", (4, 8), "float64"), b.input("y", (8, 3), "float64")
    doubles = b.finish([("z", b.matmul(x, y))])
    assert in_precision(doubles, "float16").nodes == doubles.nodes


@pytest.mark.parametrize("precision", HALVES)
def test_no_sum_of_many_rounded_products_is_found_wrong_by_chance(precision: Precision) -> None:
    graph = in_precision(Gmm("gmm", n=256, m=256, k=64).build(0), precision)
    feeds = random_feeds(graph, np.random.default_rng(0))
    want = evaluate_with_bound(graph, feeds)["c"]
    half = numpy_dtype(precision)  # type: ignore[arg-type]
    a, b = (feeds[name].astype(half).astype(np.float64) for name in ("a", "b"))
    off = np.abs(a @ b - want.value) / want.bound
    assert 0.3 < off.max() < 0.75
    dropped = np.abs(a[:, 1:] @ b[1:] - want.value)
    assert (dropped > want.bound).mean() > 0.5, "a dropped term is seen"
