"""Random graphs for property tests: every kind of node, sizes 0, 1, primes."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import strategies as st

from pipeline.ir.graph import Graph
from pipeline.ir.graph_builder import GraphBuilder

SIZES = st.sampled_from((0, 1, 2, 3, 5, 7))
UNARY = ("neg", "abs", "sign", "tanh", "sigmoid", "erf", "sin", "cos", "atan", "floor", "ceil", "round")
BINARY = ("add", "sub", "mul", "max", "min")


@st.composite
def graphs(draw: st.DrawFn, steps: int = 8) -> Graph:
    """A graph of one float input and some constants whose values stay finite and moderate."""
    b = GraphBuilder()
    shape = tuple(draw(st.lists(SIZES, min_size=1, max_size=3)))
    values = [b.input("x", shape, draw(st.sampled_from(("float32", "float64"))))]
    for number in range(draw(st.integers(1, steps))):
        x = draw(st.sampled_from(values))
        with b.scope(f"step{number}"):
            values.append(_step(draw, b, x))
    chosen = draw(st.lists(st.sampled_from(values), min_size=1, max_size=3))
    return b.finish([(f"y{i}", value) for i, value in enumerate(chosen)])


def _step(draw: st.DrawFn, b: GraphBuilder, x: int) -> int:
    shape, rank = b.shape(x), len(b.shape(x))
    axis = draw(st.integers(0, rank - 1)) if rank else 0
    kinds = ["unary", "binary", "constant", "cast", "compare", "flatten", "lift"]
    if rank:
        kinds += [
            "transpose",
            "slice",
            "pad",
            "reduce",
            "mean",
            "concat",
            "gather",
            "scan",
            "softmax",
            "iota",
            "scatter",
        ]
        kinds += ["topk", "argmax", "window"] if shape[axis] else []
        kinds += ["product", "gram"] if rank >= 2 else []
    match draw(st.sampled_from(kinds)):
        case "unary":
            return b.elementwise(draw(st.sampled_from(UNARY)), x)
        case "binary":
            return b.elementwise(draw(st.sampled_from(BINARY)), x, b.elementwise("tanh", x))
        case "constant":
            data = np.linspace(-1, 1, math.prod(shape[-1:])).reshape(shape[-1:])
            return b.elementwise("add", x, b.constant(data.astype(b.dtype(x))))
        case "cast":
            return b.cast(b.cast(b.elementwise("tanh", x), "int32"), b.dtype(x))
        case "compare":
            return b.elementwise("where", b.elementwise("gt", x, b.scalar(0, x)), x, b.elementwise("neg", x))
        case "flatten":
            return b.reshape(x, (math.prod(shape),))
        case "lift":
            return b.broadcast(b.reshape(x, (1, *shape)), (2, *shape)) if rank < 4 else x
        case "transpose":
            return b.transpose(x, draw(st.permutations(range(rank))))
        case "slice":
            return b.slice(x, [draw(st.integers(-3, 3))], [draw(st.integers(-3, 8))],
                           [draw(st.sampled_from((-2, -1, 1, 2)))], [axis])  # fmt: skip
        case "pad":
            low, high, inner = ([draw(st.integers(0, 2)) if i == axis else 0 for i in range(rank)] for _ in range(3))
            return b.pad(x, low, high, inner, draw(st.sampled_from((0.0, -0.0, 1.5, math.inf))) if shape[axis] else 0)
        case "reduce":
            return b.reduce(draw(st.sampled_from(("sum", "max", "min"))), x, [axis], draw(st.booleans()))
        case "mean":
            return b.reduce("mean", x, [axis], True)
        case "concat":
            return b.concat([x, b.elementwise("abs", x)], axis)
        case "gather":
            indices = np.array(draw(st.lists(st.integers(-9, 9), max_size=3)) if shape[axis] else [], np.int64)
            return b.gather(x, b.constant(indices), axis)
        case "scan":
            return b.scan(
                draw(st.sampled_from(("sum", "max", "min"))), x, axis, draw(st.booleans()), draw(st.booleans())
            )
        case "softmax":
            return b.softmax(x, axis)
        case "iota":
            return b.elementwise("add", x, b.iota(shape, axis, b.dtype(x)))
        case "scatter":
            kept = b.slice(x, [0], [2], axes=[axis])
            return b.scatter_elements(x, b.constant(np.zeros(b.shape(kept), np.int32)), kept, axis, "max")
        case "topk":
            return b.topk(x, draw(st.integers(0, shape[axis])), axis, draw(st.booleans()))[0]
        case "argmax":
            return b.cast(b.reduce("argmax", x, [axis]), "float32")
        case "window":
            flat = b.reshape(b.transpose(x, [i for i in range(rank) if i != axis] + [axis]), (1, -1, shape[axis]))
            return b.pool(draw(st.sampled_from(("max", "average"))), flat, [2], [1], [1], [1])
        case "product":
            return b.matmul(x, b.transpose(x, (*range(rank - 2), rank - 1, rank - 2)))
        case "gram":
            letters = "abcd"[:rank]
            return b.einsum(f"{letters},{letters[:-1]}z->{letters[:-2]}{letters[-1]}z", x, x)
    raise AssertionError("every kind is handled")
