"""The rule that moves reshapes of products below the elementwise operations that follow them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from pipeline.ir.graph import Elementwise, Graph, Node, Reshape, Shape
from pipeline.ir.graph_rule import Rebuilder, rebuild, same_graph, use_counts
from rules.graph.view_motion import stands_on_product


@dataclass(frozen=True, slots=True)
class SinkReshapes:
    """Compute what follows a product where the product is stored, so that it can be done before it is stored.

    f(reshape(product), b) -> reshape(f(product, reshape(b)))

    rounds  at most so often; a reshape that has moved can be in the way of the next

    The reshape of an operand that lies in memory costs nothing. Operands that broadcast stay as they are where the last
    dimensions, along which they do not, are the same before and after the reshape.

    Legal when nothing else reads the reshape. Not done where f already stands on a product that nothing else reads.
    """

    rounds: int = 8

    def apply(self, graph: Graph) -> Graph:
        for _ in range(self.rounds):
            after = _sunk(graph)
            if same_graph(graph, after):
                return graph
            graph = after
        return graph


def _sunk(graph: Graph) -> Graph:
    uses = use_counts(graph)

    def replace(b: Rebuilder, number: int, node: Node, inputs: tuple[int, ...]) -> int | None:
        del number
        if isinstance(node.op, Reshape):
            return b.reshape(inputs[0], node.type.shape)  # with one that has come down to it, it is one
        return _below(b, node, inputs, uses) if isinstance(node.op, Elementwise) else None

    return rebuild(graph, replace)


def _below(b: Rebuilder, node: Node, inputs: tuple[int, ...], uses: Counter[int]) -> int | None:
    """The reshape of an operand below the node; None: there is none to move."""
    assert isinstance(node.op, Elementwise)
    shape = node.type.shape
    operands = zip(node.inputs, inputs, strict=True)
    own = [v for old, v in operands if uses[old] == node.inputs.count(old) and b.shape(v) == shape]
    if any(stands_on_product(b, v) for v in own):
        return None
    for value in own:
        made = b.node(value)
        if not isinstance(made.op, Reshape) or not stands_on_product(b, made.inputs[0]):
            continue
        base = made.inputs[0]
        if all(v == value or _follows(b.shape(v), shape, b.shape(base)) for v in inputs):
            lifted = [base if v == value else _like(b, v, shape, b.shape(base)) for v in inputs]
            return b.reshape(b.elementwise(node.op.fn, *lifted, dtype=node.type.dtype), shape)
    return None


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
