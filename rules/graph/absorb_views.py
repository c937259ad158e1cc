"""The rule that lets products and poolings read and write through views, so that no view is a copy."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.ir import graph as g
from pipeline.ir.graph import Graph, Node
from pipeline.ir.graph_rule import Rebuilder, rebuild, same_graph
from rules.graph.access import Access
from rules.graph.output_layout import laid_out
from rules.graph.view_motion import settle


@dataclass(frozen=True, slots=True)
class AbsorbViews:
    """Compose views with the affine indices of the products around them.

    rounds  at most so often; each round can free views for the next

    Views move down past elementwise operations and reductions. A product that is transposed after it is made is made
    in that order. A product or pooling whose operand is a transpose, slice or broadcast, maybe among reshapes, reads
    what was before it. A reshape in between splits a variable of the product (k -> head, position) where the index
    would not be affine otherwise.

    A reshape alone stays, as it costs nothing.

    Legal always. Left as they are: views whose indices no split makes affine, and those that would make more than
    eight loops.
    """

    rounds: int = 4

    def apply(self, graph: Graph) -> Graph:
        for _ in range(self.rounds):
            after = rebuild(laid_out(rebuild(graph, _settled)), _absorbed)
            if same_graph(graph, after):
                break
            graph = after
        return graph


def _settled(b: Rebuilder, number: int, node: Node, inputs: tuple[int, ...]) -> int | None:
    del number
    return settle(b, node, inputs)


def _absorbed(b: Rebuilder, number: int, node: Node, inputs: tuple[int, ...]) -> int | None:
    del number
    if not isinstance(node.op, g.Contract | g.ReduceWindow):
        return settle(b, node, inputs)
    access, operands = Access.of(node.op), list(inputs)
    for k in range(len(operands)):
        access, operands[k] = _read_through(b, access, k, operands[k])
    if tuple(operands) == inputs:
        return None
    return b.reshape(b.add(access.operation(node.op), *operands, dtype=node.type.dtype), node.type.shape)


def _read_through(b: Rebuilder, access: Access, operand: int, x: int) -> tuple[Access, int]:
    """Past the last view that would be a copy."""
    best, reading = (access, x), access
    while isinstance(b.node(x).op, g.Transpose | g.Slice | g.Broadcast | g.Reshape):
        node = b.node(x)
        through = reading.through(operand, node.op, b.shape(node.inputs[0]), node.type.shape)
        if through is None:
            break
        reading, x = through, node.inputs[0]
        if not isinstance(node.op, g.Reshape):
            best = (reading, x)
    return best
