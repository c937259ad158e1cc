"""Correct µGraphs written by hand, each with the graph that it computes and extents to run it at."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pipeline.ir.graph import Graph
from pipeline.ir.graph_builder import GraphBuilder
from pipeline.superopt.mugraph.graph import (
    Accumulate,
    Axis,
    BlockGraph,
    BlockInput,
    BlockNode,
    BlockOutput,
    Contract,
    Fold,
    KernelNode,
    Map,
    MuGraph,
    Op,
    RescaledSum,
    Running,
    Scalar,
    Squeeze,
)


@dataclass(frozen=True, slots=True, eq=False)
class HandMuGraph:
    """A µGraph, its specification at small shapes, and the extents of its axes that fit them."""

    name: str
    spec: Graph
    mugraph: MuGraph
    extents: Mapping[str, int]


def nodes(*written: tuple[Op, Sequence[int]]) -> tuple[BlockNode, ...]:
    return tuple(BlockNode(op, tuple(inputs)) for op, inputs in written)


def axes(*names: str) -> tuple[Axis, ...]:
    return tuple(Axis(name) for name in names)


def one_kernel(inputs: Sequence[str], block: BlockGraph) -> MuGraph:
    count = len(inputs)
    return MuGraph(tuple(inputs), (KernelNode(block, tuple(range(count))),), (count,))


def attention_spec(*, normed: bool = False) -> Graph:
    """softmax(Q K / 2) V over 2 heads, 4 rows, 6 keys, widths 3 and 5; with `normed` Q and K are RMS-normalised."""
    b = GraphBuilder()
    q = b.input("Q", (2, 4, 3), "float32")
    k = b.input("K", (2, 6, 3), "float32")
    v = b.input("V", (2, 6, 5), "float32")
    if normed:
        q, k = rms_norm(b, q), rms_norm(b, k)
    scores = b.einsum("hmd,hnd->hmn", q, k)
    scaled = b.elementwise("mul", scores, b.scalar(0.5, scores))
    return b.finish([("out", b.einsum("hmn,hnd->hmd", b.softmax(scaled), v))])


def rms_norm(b: GraphBuilder, x: int) -> int:
    mean = b.reduce("mean", b.elementwise("mul", x, x), [len(b.shape(x)) - 1], True)
    return b.elementwise("mul", x, b.elementwise("rsqrt", b.elementwise("add", mean, b.scalar(0.125, mean))))


def normed(x: int, first: int, width: float, last: int) -> tuple[tuple[Op, Sequence[int]], ...]:
    """Eight nodes from number `first` on; the last one is the RMS-normalised tile."""
    return (
        (Map("mul"), (x, x)),
        (Fold("sum", (last,)), (first,)),
        (Scalar(width), ()),
        (Map("div"), (first + 1, first + 2)),
        (Scalar(0.125), ()),
        (Map("add"), (first + 3, first + 4)),
        (Map("rsqrt"), (first + 5,)),
        (Map("mul"), (x, first + 6)),
    )


def online(q: int, k: int, v: int, first: int) -> tuple[tuple[Op, Sequence[int]], ...]:
    """Eleven nodes: the running maximum is number first + 4, the two rescaled sums are first + 8 and first + 10."""
    return (
        (Contract("hmd,hnd->hmn"), (q, k)),
        (Scalar(0.5), ()),
        (Map("mul"), (first, first + 1)),
        (Fold("max", (2,)), (first + 2,)),
        (Running("max"), (first + 3,)),
        (Map("sub"), (first + 2, first + 4)),
        (Map("exp"), (first + 5,)),
        (Contract("hmn,hnd->hmd"), (first + 6, v)),
        (RescaledSum(), (first + 7, first + 4)),
        (Fold("sum", (2,)), (first + 6,)),
        (RescaledSum(), (first + 9, first + 4)),
    )


CUT = (BlockInput((0, 1), (None,)), BlockInput((0, None), (1,)), BlockInput((0, None), (1,)))


def attention() -> HandMuGraph:
    """One kernel, the keys streamed, with online rescaling."""
    block = BlockGraph(axes("heads", "rows"), axes("keys"), CUT,
                       nodes(*online(0, 1, 2, 3), (Map("div"), (11, 13))), (BlockOutput(14, (0, 1)),))  # fmt: skip
    return HandMuGraph("attention", attention_spec(), one_kernel("QKV", block), {"heads": 2, "rows": 2, "keys": 3})


def plain_attention() -> HandMuGraph:
    """One kernel without a maximum, as in the saved µGraphs: equal, and unsafe in floating point."""
    body = nodes(
        (Contract("hmd,hnd->hmn"), (0, 1)),  # 3
        (Scalar(0.5), ()),
        (Map("mul"), (3, 4)),
        (Map("exp"), (5,)),  # 6
        (Contract("hmn,hnd->hmd"), (6, 2)),
        (Accumulate("sum"), (7,)),  # 8
        (Fold("sum", (2,)), (6,)),
        (Accumulate("sum"), (9,)),  # 10
        (Map("div"), (8, 10)),
    )
    block = BlockGraph(axes("heads", "rows"), axes("keys"), CUT, body, (BlockOutput(11, (0, 1)),))
    return HandMuGraph("plain_attention", attention_spec(), one_kernel("QKV", block),
                       {"heads": 2, "rows": 2, "keys": 3})  # fmt: skip


def split_attention() -> HandMuGraph:
    """Two kernels: the keys are split over the grid, and the partial results are rescaled and added up."""
    partial = BlockGraph(
        axes("heads", "split"), axes("keys"),
        (BlockInput((0, None), (None,)), BlockInput((0, 1), (1,)), BlockInput((0, 1), (1,))),
        nodes(*online(0, 1, 2, 3), (Accumulate("last"), (7,))),
        (BlockOutput(11, (0, "stack")), BlockOutput(13, (0, "stack")), BlockOutput(14, (0, "stack"))),
    )  # fmt: skip
    combine = BlockGraph(
        axes("heads", "rows"), (), (BlockInput((1, 2), ()),) * 3,
        nodes(
            (Fold("max", (0,)), (2,)),  # 3
            (Map("sub"), (2, 3)),
            (Map("exp"), (4,)),  # 5
            (Map("mul"), (0, 5)),
            (Fold("sum", (0,)), (6,)),  # 7
            (Map("mul"), (1, 5)),
            (Fold("sum", (0,)), (8,)),  # 9
            (Map("div"), (7, 9)),
            (Squeeze((0,)), (10,)),
        ),
        (BlockOutput(11, (0, 1)),),
    )  # fmt: skip
    graph = MuGraph(("Q", "K", "V"), (KernelNode(partial, (0, 1, 2)), KernelNode(combine, (3, 4, 5))), (6,))
    return HandMuGraph("split_attention", attention_spec(), graph, {"heads": 2, "rows": 2, "split": 2, "keys": 3})


def qknorm_attention() -> HandMuGraph:
    """Attention of normalised queries and keys; the queries are normalised once, the keys as they stream in."""
    body = nodes(*normed(0, 3, 3.0, 2), *normed(1, 11, 3.0, 2), *online(10, 18, 2, 19), (Map("div"), (27, 29)))
    block = BlockGraph(axes("heads", "rows"), axes("keys"), CUT, body, (BlockOutput(30, (0, 1)),))
    return HandMuGraph("qknorm_attention", attention_spec(normed=True), one_kernel("QKV", block),
                       {"heads": 2, "rows": 2, "keys": 3})  # fmt: skip


def rmsnorm_linear() -> HandMuGraph:
    """The division after the product; the mean of squares is accumulated beside it."""
    b = GraphBuilder()
    x = b.input("X", (4, 6), "float32")
    spec = b.finish([("out", b.matmul(rms_norm(b, x), b.input("W", (6, 8), "float32")))])
    body = nodes(
        (Contract("mk,kn->mn"), (0, 1)),  # 2
        (Accumulate("sum"), (2,)),
        (Map("mul"), (0, 0)),  # 4
        (Fold("sum", (1,)), (4,)),
        (Accumulate("sum"), (5,)),  # 6
        (Scalar(6.0), ()),
        (Map("div"), (6, 7)),  # 8
        (Scalar(0.125), ()),
        (Map("add"), (8, 9)),  # 10
        (Map("sqrt"), (10,)),
        (Map("div"), (3, 11)),  # 12
    )
    block = BlockGraph(axes("rows", "columns"), axes("depth"),
                       (BlockInput((0, None), (1,)), BlockInput((None, 1), (0,))), body,
                       (BlockOutput(12, (0, 1)),))  # fmt: skip
    return HandMuGraph("rmsnorm_linear", spec, one_kernel("XW", block), {"rows": 2, "columns": 2, "depth": 3})


def gated_mlp() -> HandMuGraph:
    """silu(X G) * (X U): both products share the tile of X."""
    b = GraphBuilder()
    x = b.input("X", (4, 6), "float32")
    gate, up = b.input("G", (6, 8), "float32"), b.input("U", (6, 8), "float32")
    spec = b.finish([("out", b.elementwise("mul", b.silu(b.matmul(x, gate)), b.matmul(x, up)))])
    body = nodes(
        (Contract("mk,kn->mn"), (0, 1)),  # 3
        (Accumulate("sum"), (3,)),
        (Contract("mk,kn->mn"), (0, 2)),  # 5
        (Accumulate("sum"), (5,)),
        (Map("sigmoid"), (4,)),  # 7
        (Map("mul"), (4, 7)),
        (Map("mul"), (8, 6)),
    )
    weight = BlockInput((None, 1), (0,))
    block = BlockGraph(axes("rows", "columns"), axes("depth"), (BlockInput((0, None), (1,)), weight, weight), body,
                       (BlockOutput(9, (0, 1)),))  # fmt: skip
    return HandMuGraph("gated_mlp", spec, one_kernel("XGU", block), {"rows": 2, "columns": 2, "depth": 3})


def lora() -> HandMuGraph:
    """X W + (X A) B in one kernel; X A is accumulated in the same loop as X W."""
    b = GraphBuilder()
    x, w = b.input("X", (4, 6), "float32"), b.input("W", (6, 8), "float32")
    a, c = b.input("A", (6, 3), "float32"), b.input("B", (3, 8), "float32")
    spec = b.finish([("out", b.elementwise("add", b.matmul(x, w), b.matmul(b.matmul(x, a), c)))])
    body = nodes(
        (Contract("mk,kn->mn"), (0, 1)),  # 4
        (Accumulate("sum"), (4,)),
        (Contract("mk,kr->mr"), (0, 2)),  # 6
        (Accumulate("sum"), (6,)),
        (Contract("mr,rn->mn"), (7, 3)),  # 8
        (Map("add"), (5, 8)),
    )
    cut = (BlockInput((0, None), (1,)), BlockInput((None, 1), (0,)), BlockInput((None, None), (0,)),
           BlockInput((None, 1), (None,)))  # fmt: skip
    block = BlockGraph(axes("rows", "columns"), axes("depth"), cut, body, (BlockOutput(9, (0, 1)),))
    return HandMuGraph("lora", spec, one_kernel("XWAB", block), {"rows": 2, "columns": 2, "depth": 3})


def ntrans() -> HandMuGraph:
    """norm(x + alpha * (norm(h) - x)) in one pass over each row."""
    b = GraphBuilder()
    h, x, alpha = (b.input(name, (6, 5), "float32") for name in ("H", "X", "alpha"))
    step = b.elementwise("mul", alpha, b.elementwise("sub", rms_norm(b, h), x))
    spec = b.finish([("out", rms_norm(b, b.elementwise("add", x, step)))])
    body = nodes(
        *normed(0, 3, 5.0, 1),
        (Map("sub"), (10, 1)),  # 11
        (Map("mul"), (2, 11)),
        (Map("add"), (1, 12)),  # 13
        *normed(13, 14, 5.0, 1),
    )
    block = BlockGraph(axes("rows"), (), (BlockInput((0,), ()),) * 3, body, (BlockOutput(21, (0,)),))
    return HandMuGraph("ntrans", spec, one_kernel(("H", "X", "alpha"), block), {"rows": 3})


def relu_linear() -> HandMuGraph:
    """max(X W, 0) with the depth split over the grid and over two loops; the second kernel adds up and bends."""
    b = GraphBuilder()
    x, w = b.input("X", (4, 16), "float32"), b.input("W", (16, 6), "float32")
    spec = b.finish([("out", b.relu(b.matmul(x, w)))])
    block = BlockGraph(
        axes("rows", "split"), axes("outer", "inner"),
        (BlockInput((0, 1), (1, 1)), BlockInput((None, 0), (0, 0))),
        nodes((Contract("mk,kn->mn"), (0, 1)), (Accumulate("sum", 1), (2,)), (Accumulate("sum"), (3,))),
        (BlockOutput(4, (0, "sum")),),
    )  # fmt: skip
    graph = MuGraph(
        ("X", "W"),
        (KernelNode(block, (0, 1)), KernelNode(Scalar(0.0), ()), KernelNode(Map("max"), (2, 3))),
        (4,),
    )
    return HandMuGraph("relu_linear", spec, graph, {"rows": 2, "split": 2, "outer": 2, "inner": 2})


HAND: tuple[Callable[[], HandMuGraph], ...] = (
    attention, plain_attention, split_attention, qknorm_attention, rmsnorm_linear, gated_mlp, lora, ntrans, relu_linear,
)  # fmt: skip
