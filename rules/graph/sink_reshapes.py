"""The rule that moves reshapes of products below the elementwise operations that follow them."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.ir.graph import Contract, Elementwise, Graph, Node, Reshape, Shape
from pipeline.ir.graph_rule import Rebuilder, rebuild, use_counts


@dataclass(frozen=True, slots=True)
class SinkReshapes:
    """f(reshape(product), b) -> reshape(f(product, reshape(b))), so that f is computed where the product is stored.

    The reshape of an operand that lies in memory costs nothing. Operands that broadcast stay as they are where the last
    dimensions, along which they do not, are the same before and after the reshape.
    """

    def apply(self, graph: Graph) -> Graph:
        uses = use_counts(graph)

        def replace(b: Rebuilder, _: int, node: Node, inputs: tuple[int, ...]) -> int | None:
            if not isinstance(node.op, Elementwise):
                return None
            shape = node.type.shape
            for old, value in zip(node.inputs, inputs, strict=True):
                if uses[old] != node.inputs.count(old) or b.shape(value) != shape:
                    continue
                base = _product(b, value)
                if base is None or not all(v == value or _follows(b.shape(v), shape, b.shape(base)) for v in inputs):
                    continue
                operands = [base if v == value else _like(b, v, shape, b.shape(base)) for v in inputs]
                return b.reshape(b.elementwise(node.op.fn, *operands, dtype=node.type.dtype), shape)
            return None

        return rebuild(graph, replace)


def _product(b: Rebuilder, value: int) -> int | None:
    """What a reshape of a product, or of elementwise work on one, is the reshape of."""
    node = b.node(value)
    if not isinstance(node.op, Reshape):
        return None
    base = node.inputs[0]
    inner = base
    while isinstance(b.node(inner).op, Elementwise):
        inner = next((v for v in b.node(inner).inputs if b.shape(v) == b.shape(base)), -1)
        if inner < 0:
            return None
    return base if isinstance(b.node(inner).op, Contract) else None


def _follows(operand: Shape, shape: Shape, other: Shape) -> bool:
    """Can an operand that broadcasts to `shape` be read in the same way against `other`?"""
    if operand == shape:
        return True
    kept = len(operand)
    while kept and operand[len(operand) - kept] == 1:
        kept -= 1  # leading ones broadcast against anything
    return kept == 0 or shape[-kept:] == other[-kept:]


def _like(b: Rebuilder, value: int, shape: Shape, other: Shape) -> int:
    operand = b.shape(value)
    if operand == shape:
        return b.reshape(value, other)
    kept = len(operand)
    while kept and operand[len(operand) - kept] == 1:
        kept -= 1
    return b.reshape(value, operand[len(operand) - kept :])
