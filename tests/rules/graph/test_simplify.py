"""Tests of `Simplify`: each replacement, and the cases in which it would not be exact."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings

from pipeline.ir.evaluate import evaluate
from pipeline.ir.graph import DType, Graph
from pipeline.ir.graph_builder import GraphBuilder
from pipeline.ir.graph_rule import same_graph
from rules.graph.simplify import Simplify
from tests.ir.random_graphs import graphs
from tests.rules.graph.meaning import applied, operations

RULE = Simplify()
HARD = np.array([0.0, -0.0, 1.0, -1.0, 2.5, -2.5, np.inf, -np.inf, np.nan, 1e-30])

Build = Callable[[GraphBuilder, int], int]


@settings(max_examples=40, deadline=None)
@given(graphs())
def test_any_graph_keeps_its_meaning(graph: Graph) -> None:
    applied(RULE, graph)


def graph_of(build: Build, dtype: DType = "float64") -> Graph:
    b = GraphBuilder()
    return b.finish([("y", build(b, b.input("x", HARD.shape, dtype)))])


def power(b: GraphBuilder, x: int, exponent: float) -> int:
    return b.elementwise("pow", x, b.scalar(exponent, x))


CASES: dict[str, tuple[Build, list[str]]] = {
    "square": (lambda b, x: power(b, x, 2), ["mul"]),
    "cube": (lambda b, x: power(b, x, 3), ["mul", "mul"]),
    "first power": (lambda b, x: power(b, x, 1), []),
    "inverse": (lambda b, x: power(b, x, -1), ["reciprocal"]),
    "root of a square": (lambda b, x: power(b, b.elementwise("mul", x, x), 0.5), ["mul", "sqrt"]),
    "inverse root of a variance": (
        lambda b, x: power(b, b.elementwise("add", b.reduce("mean", power(b, x, 2), [0], True), b.scalar(1e-5, x)),
                           -0.5),
        ["mul", "Reduce", "div", "add", "rsqrt"]),
    "quotient of a root": (lambda b, x: b.elementwise("div", b.scalar(1, x), b.elementwise("sqrt", x)), ["rsqrt"]),
    "reciprocal of a root": (lambda b, x: b.elementwise("reciprocal", b.elementwise("sqrt", x)), ["rsqrt"]),
    "double negation": (lambda b, x: b.elementwise("neg", b.elementwise("neg", x)), []),
    "not twice": (
        lambda b, x: b.elementwise("not", b.elementwise("not", b.elementwise("gt", x, b.scalar(0, x)))), ["gt"]),
    "magnitude of a negation": (lambda b, x: b.elementwise("abs", b.elementwise("neg", x)), ["abs"]),
    "two lower bounds": (lambda b, x: b.elementwise("max", b.scalar(1, x), b.relu(x)), ["max"]),
    "two upper bounds": (
        lambda b, x: b.elementwise("min", b.elementwise("min", x, b.scalar(6, x)), b.scalar(2, x)), ["min"]),
    "a choice of one": (
        lambda b, x: b.elementwise("where", b.elementwise("gt", x, b.scalar(0, x)), x, x), []),
    "a choice that is made": (
        lambda b, x: b.elementwise("where", b.constant(np.ones(10, np.bool_)), b.elementwise("exp", x), x), ["exp"]),
    "a choice against": (
        lambda b, x: b.elementwise("where", b.constant(np.zeros(10, np.bool_)), b.elementwise("exp", x), x), []),
    "reduction of one element": (lambda b, x: b.reduce("max", b.reshape(x, (10, 1)), [1]), []),
    "reduction of some axes of one": (lambda b, x: b.reduce("sum", b.reshape(x, (1, 10)), [0, 1]), ["Reduce"]),
    "slice of a slice": (lambda b, x: b.slice(b.slice(x, [1], [9], [2]), [None], [None], [-1]), ["Slice"]),
    "broadcast of a broadcast": (
        lambda b, x: b.broadcast(b.broadcast(b.reshape(x, (1, 10)), (3, 10)), (2, 3, 10)), ["Broadcast"]),
    "times one": (lambda b, x: b.elementwise("mul", x, b.scalar(1, x)), []),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_is_simpler_has_the_same_value_everywhere(name: str) -> None:
    build, expected = CASES[name]
    graph = graph_of(build)
    after = applied(RULE, graph)
    assert operations(after) == expected
    np.testing.assert_array_equal(
        evaluate(after, {"x": HARD})["y"], evaluate(graph, {"x": HARD})["y"], err_msg="at zeros, infinities and NaN"
    )


def test_the_zeroth_power_is_one_even_of_nan() -> None:
    graph = graph_of(lambda b, x: power(b, x, 0))
    assert evaluate(RULE.apply(graph), {"x": HARD})["y"].tolist() == [1.0] * 10


@pytest.mark.parametrize(
    ("source", "middle", "target", "casts"),
    [
        ("float32", "float64", "float32", 0),
        ("int8", "float32", "int8", 0),
        ("float16", "float32", "float64", 1),
        ("int32", "int64", "float32", 1),
        ("bool", "int64", "float32", 1),
        ("float64", "float32", "float64", 2),
        ("int32", "float32", "int32", 2),
        ("float32", "int32", "float32", 2),
        ("bfloat16", "float16", "float32", 2),
        ("int8", "uint8", "int32", 2),
        ("float32", "bool", "float32", 2),
    ],
)
def test_an_inner_cast_goes_only_where_it_loses_nothing(
    source: DType, middle: DType, target: DType, casts: int
) -> None:
    graph = graph_of(lambda b, x: b.cast(b.cast(x, middle), target), source)
    assert operations(RULE.apply(graph)) == ["cast"] * casts


KEPT: dict[str, Build] = {
    "a root of what may be negative": lambda b, x: power(b, x, 0.5),
    "a power that no operation computes": lambda b, x: power(b, x, 2.5),
    "a power of unknown exponent": lambda b, x: b.elementwise("pow", x, b.elementwise("exp", x)),
    "a sum with zero, as -0 + 0 is 0": lambda b, x: b.elementwise("add", x, b.scalar(0, x)),
    "a lower and an upper bound": lambda b, x: b.elementwise("min", b.relu(x), b.scalar(6, x)),
    "two over a root": lambda b, x: b.elementwise("div", b.scalar(2, x), b.elementwise("sqrt", x)),
    "a quotient by a root": lambda b, x: b.elementwise("div", b.elementwise("exp", x), b.elementwise("sqrt", x)),
    "the error function": lambda b, x: b.elementwise("erf", x),
    "a choice by a mixed constant": lambda b, x: b.elementwise(
        "where", b.constant(np.arange(10) < 3), x, b.elementwise("exp", x)),
    "the place of the largest of one": lambda b, x: b.reduce("argmax", b.reshape(x, (10, 1)), [1]),
}  # fmt: skip


@pytest.mark.parametrize("name", KEPT)
def test_what_would_change_a_value_or_gain_nothing_is_kept(name: str) -> None:
    graph = graph_of(KEPT[name])
    assert same_graph(RULE.apply(graph), graph)
