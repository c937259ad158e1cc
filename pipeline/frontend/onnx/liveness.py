"""Which nodes of an ONNX graph its outputs need; everything else is dropped before it can be in the way."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from onnx import AttributeProto, GraphProto, NodeProto


def needed(nodes: Sequence[NodeProto], outputs: Iterable[str]) -> tuple[tuple[NodeProto, ...], frozenset[str]]:
    """The nodes that outputs depend on, in order, and every name that one of them, or an output, reads."""
    read, kept = set(outputs), []
    for node in reversed(nodes):
        if any(name and name in read for name in node.output):
            kept.append(node)
            read.update(reads(node))
    return tuple(reversed(kept)), frozenset(read)


def reads(node: NodeProto) -> Iterator[str]:
    """The names that a node reads, those that its subgraphs take from outside included."""
    yield from (name for name in node.input if name)
    for graph in subgraphs(node):
        yield from (output.name for output in graph.output)
        for inner in graph.node:
            yield from reads(inner)


def subgraphs(node: NodeProto) -> Iterator[GraphProto]:
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            yield attribute.g
        yield from attribute.graphs
