"""Correct µGraphs written by hand, each with the graph that it computes and extents to run it at."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pipeline.ir.graph import Graph
from pipeline.ir.graph_builder import GraphBuilder
from pipeline.superopt.mugraph import (
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


def attention_spec(heads: int = 2, rows: int = 4, keys: int = 6, width: int = 5, scale: float = 1.0) -> Graph:
    b = GraphBuilder()
    q = b.input("Q", (heads, rows, width), "float32")
    k = b.input("K", (heads, keys, width), "float32")
    v = b.input("V", (heads, keys, width), "float32")
    scores = b.einsum("hmd,hnd->hmn", q, k)
    if scale != 1.0:
        scores = b.elementwise("mul", scores, b.scalar(scale, scores))
    return b.finish([("out", b.einsum("hmn,hnd->hmd", b.softmax(scores), v))])


def attention() -> HandMuGraph:
    """One kernel, the keys streamed, with online rescaling."""
    block = BlockGraph(
        grid=axes("heads", "rows"),
        loops=axes("keys"),
        inputs=(BlockInput((0, 1), (None,)), BlockInput((0, None), (1,)), BlockInput((0, None), (1,))),
        nodes=nodes(
            (Contract("hmd,hnd->hmn"), (0, 1)),  # 3
            (Scalar(0.5), ()),
            (Map("mul"), (3, 4)),  # 5
            (Fold("max", (2,)), (5,)),
            (Running("max"), (6,)),  # 7
            (Map("sub"), (5, 7)),
            (Map("exp"), (8,)),  # 9
            (Contract("hmn,hnd->hmd"), (9, 2)),
            (RescaledSum(), (10, 7)),  # 11
            (Fold("sum", (2,)), (9,)),
            (RescaledSum(), (12, 7)),  # 13
            (Map("div"), (11, 13)),
        ),
        outputs=(BlockOutput(14, (0, 1)),),
    )
    return HandMuGraph("attention", attention_spec(scale=0.5), one_kernel("QKV", block),
                       {"heads": 2, "rows": 2, "keys": 3})  # fmt: skip


def rmsnorm_linear() -> HandMuGraph:
    """The division after the product; the mean of squares is accumulated beside it."""
    b = GraphBuilder()
    x = b.input("X", (4, 6), "float32")
    w = b.input("W", (6, 8), "float32")
    mean = b.reduce("mean", b.elementwise("mul", x, x), [1], True)
    root = b.elementwise("sqrt", b.elementwise("add", mean, b.scalar(1e-5, mean)))
    spec = b.finish([("out", b.matmul(b.elementwise("div", x, root), w))])
    block = BlockGraph(
        grid=axes("rows", "columns"),
        loops=axes("depth"),
        inputs=(BlockInput((0, None), (1,)), BlockInput((None, 1), (0,))),
        nodes=nodes(
            (Contract("mk,kn->mn"), (0, 1)),  # 2
            (Accumulate("sum"), (2,)),
            (Map("mul"), (0, 0)),  # 4
            (Fold("sum", (1,)), (4,)),
            (Accumulate("sum"), (5,)),  # 6
            (Scalar(6.0), ()),
            (Map("div"), (6, 7)),  # 8
            (Scalar(1e-5), ()),
            (Map("add"), (8, 9)),  # 10
            (Map("sqrt"), (10,)),
            (Map("div"), (3, 11)),  # 12
        ),
        outputs=(BlockOutput(12, (0, 1)),),
    )
    return HandMuGraph("rmsnorm_linear", spec, one_kernel("XW", block), {"rows": 2, "columns": 2, "depth": 3})


HAND: tuple[Callable[[], HandMuGraph], ...] = (attention, rmsnorm_linear)
