"""The protocol of rules over graphs, and the builder with which a rule makes a graph again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Protocol

from pipeline.ir import graph as g
from pipeline.ir.graph import Graph, Node
from pipeline.ir.graph_builder import GraphBuilder


class GraphRule(Protocol):
    """A rewriting of whole graphs. Inputs and outputs keep names, types and order; values change by rounding only."""

    def apply(self, graph: Graph) -> Graph:
        """The graph after the rule; applied again, nothing changes."""
        ...


class Rebuilder(GraphBuilder):
    """A graph being made again from an old one: folding and sharing happen on the way."""

    def node(self, value: int) -> Node:
        """The new node of that number."""
        return self._nodes[value]

    def again(self, node: Node, inputs: tuple[int, ...], graph: Graph) -> int:
        """An old node on new operands. The data of a constant are not hashed a second time."""
        match node.op:
            case g.Input(name):
                return self.input(name, node.type.shape, node.type.dtype)
            case g.Constant(key):
                self._constants.setdefault(key, graph.constants[key])
                return self._append(node.op, (), node.type)
            case _:
                return self.add(node.op, *inputs, shape=node.type.shape, dtype=node.type.dtype)


# builder, the old number, the old node, its new operands -> the new value, or None: the same operation
Replace = Callable[[Rebuilder, int, Node, tuple[int, ...]], int | None]


def rebuild(graph: Graph, replace: Replace) -> Graph:
    """The graph again, node by node, each as `replace` wants it and under its old name; dead nodes are left out."""
    b = Rebuilder()
    values: dict[int, int] = {}
    needed = needed_values(graph)
    for number, node in enumerate(graph.nodes):
        if number not in needed and not isinstance(node.op, g.Input):
            continue
        inputs = tuple(values[v] for v in node.inputs)
        with b.scope(node.name):
            made = replace(b, number, node, inputs)
            values[number] = b.again(node, inputs, graph) if made is None else made
    return b.finish([(name, values[value]) for name, value in graph.outputs])


def needed_values(graph: Graph) -> frozenset[int]:
    """The values that an output depends on."""
    needed = {value for _, value in graph.outputs}
    for number in range(len(graph.nodes) - 1, -1, -1):
        if number in needed:
            needed.update(graph.nodes[number].inputs)
    return frozenset(needed)


def use_counts(graph: Graph) -> Counter[int]:
    """How often each value is read, by nodes that matter and as an output."""
    needed = needed_values(graph)
    uses = Counter(value for _, value in graph.outputs)
    for number, node in enumerate(graph.nodes):
        if number in needed:
            uses.update(node.inputs)
    return uses


def same_graph(a: Graph, b: Graph) -> bool:
    """Equal up to the names of nodes; constants are named by their content."""
    return (
        a.outputs == b.outputs
        and len(a.nodes) == len(b.nodes)
        and all(
            (x.op, x.inputs, x.type, repr(x.op)) == (y.op, y.inputs, y.type, repr(y.op))
            for x, y in zip(a.nodes, b.nodes, strict=True)
        )
    )
