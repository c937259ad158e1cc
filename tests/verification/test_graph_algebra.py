"""Tests of graphs in any algebra: in floating point what the evaluation gives, over residues what is exact."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from pipeline.errors import UserError
from pipeline.ir import graph as g
from pipeline.ir.algebra import FloatAlgebra
from pipeline.ir.evaluate import evaluate
from pipeline.ir.graph import Graph
from pipeline.ir.graph_builder import GraphBuilder
from pipeline.verification.field_algebra import FieldAlgebra, NotProvable, Residues
from pipeline.verification.graph_algebra import run_graph, unsupported

Build = Callable[[GraphBuilder], int]


def x(b: GraphBuilder) -> int:
    return b.input("X", (2, 3, 4), "float32")


def convolution(b: GraphBuilder) -> int:
    image, weight = b.input("X", (1, 3, 7, 6), "float32"), b.input("W", (4, 3, 3, 2), "float32")
    return b.conv(image, weight, strides=(2, 1), pads_low=(1, 0), pads_high=(1, 1), dilations=(1, 2))


BUILDS: dict[str, Build] = {
    "matmul": lambda b: b.matmul(x(b), b.input("W", (2, 4, 5), "float32")),
    "einsum_own_sum": lambda b: b.einsum("bij,bkj->kb", x(b), b.input("W", (2, 5, 4), "float32")),
    "softmax": lambda b: b.softmax(x(b)),
    "layer_norm": lambda b: b.layer_norm(x(b), [2]),
    "gelu": lambda b: b.gelu(x(b)),
    "gelu_tanh": lambda b: b.gelu(x(b), "tanh"),
    "silu": lambda b: b.silu(x(b)),
    "slice": lambda b: b.slice(x(b), (0, 2, 3), (2, None, None), (1, -1, -2)),
    "pad": lambda b: b.pad(x(b), (0, 1, 2), (1, 0, -1), interior=(0, 2, 0), value=0.5),
    "concat": lambda b: b.concat([x(b), b.input("Y", (2, 1, 4), "float32")], 1),
    "transpose": lambda b: b.transpose(x(b), (2, 0, 1)),
    "reduce_prod": lambda b: b.reduce("prod", x(b), [0, 2]),
    "reduce_max": lambda b: b.reduce("max", x(b), [1]),
    "where": lambda b: b.elementwise("where", b.input("M", (3, 1), "bool"), x(b), b.constant(np.float32(-2))),
    "convolution": convolution,
}


def graph(name: str) -> Graph:
    b = GraphBuilder()
    return b.finish([("out", BUILDS[name](b))])


@pytest.mark.parametrize("name", BUILDS)
def test_floating_point_gives_what_the_evaluation_gives(name: str) -> None:
    rng, feeds = np.random.default_rng(0), {}
    for node in (whole := graph(name)).nodes:
        if isinstance(node.op, g.Input):
            values = rng.standard_normal(node.type.shape)
            feeds[node.op.name] = values > 0 if node.type.dtype == "bool" else values.astype(np.float32)
    algebra = FloatAlgebra()
    found = run_graph(whole, {key: algebra.constant(value) for key, value in feeds.items()}, algebra)["out"]
    np.testing.assert_allclose(found, evaluate(whole, feeds)["out"], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", BUILDS)
def test_residues_have_the_shape_of_the_graph(name: str) -> None:
    algebra, whole = FieldAlgebra(np.random.default_rng(1)), graph(name)
    feeds = {node.op.name: algebra.draw(node.type) for node in whole.nodes if isinstance(node.op, g.Input)}
    out = run_graph(whole, feeds, algebra)["out"]
    assert isinstance(out, Residues)
    assert algebra.shape(out) == whole.nodes[whole.outputs[0][1]].type.shape


def test_a_convolution_of_residues_is_that_of_the_whole_numbers() -> None:
    algebra, whole = FieldAlgebra(np.random.default_rng(1)), graph("convolution")
    rng = np.random.default_rng(2)
    small = {node.op.name: rng.integers(0, 50, node.type.shape) for node in whole.nodes if isinstance(node.op, g.Input)}
    out = run_graph(whole, {key: Residues(v, v) for key, v in small.items()}, algebra)["out"]
    exact = evaluate(whole, {key: v.astype(np.float32) for key, v in small.items()})["out"]
    assert isinstance(out, Residues) and np.array_equal(out.p, exact)


def test_all_that_is_not_supported_is_named_at_once() -> None:
    b = GraphBuilder()
    value = b.input("X", (4, 5), "float32")
    picked = b.gather(value, b.constant(np.array([0, 2])), 0)
    whole = b.finish([("out", picked), ("first", b.reduce("argmax", value, [1]))])
    assert [text.split(": ")[1] for text in unsupported(whole)] == ["Gather", "Reduce argmax"]
    with pytest.raises(NotProvable, match=r"Gather; node \d: Reduce argmax"):
        run_graph(whole, {}, FloatAlgebra())


def test_a_missing_input_and_one_of_another_shape_are_refused() -> None:
    algebra, whole = FloatAlgebra(), graph("softmax")
    with pytest.raises(UserError, match="X: an input is missing"):
        run_graph(whole, {}, algebra)
    with pytest.raises(UserError, match="X: an input has the wrong shape"):
        run_graph(whole, {"X": np.zeros((2, 3, 5))}, algebra)
