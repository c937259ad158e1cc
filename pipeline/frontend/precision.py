"""The precision of a model's products: its factors rounded to fewer digits, everything else as it was."""

from __future__ import annotations

from typing import Literal

from pipeline.ir.graph import Contract, DType, Graph, Node
from pipeline.ir.graph_rule import Rebuilder, rebuild

Precision = Literal["model", "float16", "bfloat16"]


def in_precision(graph: Graph, precision: Precision) -> Graph:
    """The model with the factors of every float32 product (matrix products, convolutions) rounded to `precision`.

    Products are added up in float32 and stay float32, as do inputs, outputs and whatever else is computed: this is what
    PyTorch calls automatic mixed precision. Constants are rounded once, here. "model": the graph as it is.
    This is another model, and it is what its programs are compared with.
    """
    if precision == "model":
        return graph
    dtype: DType = precision

    def replace(b: Rebuilder, number: int, node: Node, inputs: tuple[int, ...]) -> int | None:
        del number
        if not isinstance(node.op, Contract) or node.type.dtype != "float32":
            return None
        if any(b.dtype(factor) != "float32" for factor in inputs):
            return None
        lhs, rhs = (b.cast(factor, dtype) for factor in inputs)
        return b.add(node.op, lhs, rhs, dtype="float32")

    return rebuild(graph, replace)
