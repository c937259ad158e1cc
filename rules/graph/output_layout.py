"""Products that are transposed after they are made, maybe after elementwise work: made in that order instead."""

from __future__ import annotations

from dataclasses import replace

from pipeline.ir import graph as g
from pipeline.ir.graph import Graph, Node, Shape
from pipeline.ir.graph_rule import Rebuilder, rebuild, use_counts
from rules.graph.access import Access
from rules.graph.reshape_groups import before_reshape, moves_only_ones, reshape_groups
from rules.graph.view_motion import Perm, transposed

# For a node of a chain: the shape that its result is reshaped to, and the order of those dimensions.
Layout = tuple[Shape, Perm]
SHORTEST_ROW = 16  # elements: the widest vector of a CPU


def laid_out(graph: Graph) -> Graph:
    """Each transpose that only a product's layout stands against, with or without a reshape before it, is gone.

    Contract, elementwise…, (Reshape,) Transpose
        -> Contract with its spatial variables split and in another order, elementwise…

    A transpose that only products read is left: they can read through it, and the first product keeps its long rows. So
    is one that moves the last dimension, or leaves only a short part of it there: it is the one that is vectorized.
    """
    uses = use_counts(graph)
    readers: dict[int, list[Node]] = {}
    for node in graph.nodes:
        for v in node.inputs:
            readers.setdefault(v, []).append(node)
    shown = {value for _, value in graph.outputs}
    layouts: dict[int, Layout] = {}
    for number, node in enumerate(graph.nodes):
        if not isinstance(node.op, g.Transpose):
            continue
        only_products = all(isinstance(r.op, g.Contract | g.ReduceWindow) for r in readers.get(number, []))
        if uses[number] and (number in shown or not only_products):
            chain = _chain(graph, number, uses, layouts)
            layouts.update(dict.fromkeys(chain, (graph.nodes[node.inputs[0]].type.shape, node.op.perm)))
    if not layouts:
        return graph

    def change(b: Rebuilder, number: int, node: Node, inputs: tuple[int, ...]) -> int | None:
        if number not in layouts:
            return None
        shape, perm = layouts[number]
        match node.op:
            case g.Transpose() | g.Reshape():
                return inputs[0]
            case g.Contract():
                access = _split(Access.of(node.op), node.type.shape, shape)
                assert access is not None, "the chain was checked"
                parts = [(v,) for group in access.spatial for v in group]
                access = replace(access, spatial=tuple(parts[p] for p in perm))
                return b.add(access.operation(node.op), *inputs, dtype=node.type.dtype)
            case _:
                operands: list[int] = []
                for old, x in zip(node.inputs, inputs, strict=True):
                    before = before_reshape(shape, node.type.shape, graph.nodes[old].type.shape)
                    assert before is not None, "the chain was checked"
                    kept = old in layouts or graph.nodes[old].type.shape == ()
                    operands.append(x if kept else transposed(b, b.reshape(x, before), perm))
                return b.add(node.op, *operands, dtype=node.type.dtype)

    return rebuild(graph, change)


def _chain(graph: Graph, transpose: int, uses: dict[int, int], taken: dict[int, Layout]) -> list[int]:
    """From the transpose up to the product, each with no other reader; empty where something stands against it."""
    node = graph.nodes[transpose]
    assert isinstance(node.op, g.Transpose)
    perm, number = node.op.perm, node.inputs[0]
    shape = graph.nodes[number].type.shape
    wide = [axis for axis, n in enumerate(shape) if n != 1]
    if wide and next(p for p in reversed(perm) if p in wide) != wide[-1]:
        return []
    chain = [transpose]
    if isinstance(graph.nodes[number].op, g.Reshape) and uses[number] == 1:
        chain.append(number)
        number = graph.nodes[number].inputs[0]
    whole = graph.nodes[number].type.shape
    if shape[-1:] != whole[-1:] and (not shape or shape[-1] < SHORTEST_ROW):
        return []
    while uses[number] == 1 and number not in taken:
        chain.append(number)
        node = graph.nodes[number]
        if isinstance(node.op, g.Contract):
            return chain if _split(Access.of(node.op), whole, shape) is not None else []
        if not isinstance(node.op, g.Elementwise) or node.type.shape != whole:
            return []
        bound = [v for v in node.inputs if not _is_free(graph, v, whole, shape, perm)]
        if len(bound) != 1 or graph.nodes[bound[0]].type.shape != whole:
            return []
        number = bound[0]
    return []


def _is_free(graph: Graph, value: int, whole: Shape, shape: Shape, perm: Perm) -> bool:
    """Can the operand be had in the other layout without a copy at run time?"""
    node = graph.nodes[value]
    before = before_reshape(shape, whole, node.type.shape)
    return before is not None and (isinstance(node.op, g.Constant) or moves_only_ones(perm, before))


def _split(access: Access, whole: Shape, shape: Shape) -> Access | None:
    """The spatial variables split as a reshape of the result splits its dimensions; None where it also joins some."""
    groups = reshape_groups(whole, shape)
    if groups is None:
        return access if whole == shape else None
    for old, new in groups:
        if len(old) != 1 or not new:
            return None
    for old, new in groups:
        for j in reversed(new[1:]):
            access = access.split(access.spatial[old[0]][0], shape[j])
    return access
