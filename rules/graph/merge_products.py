"""The rule that makes one wide product of several that read the same operand."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import numpy as np

from pipeline.ir import graph as g
from pipeline.ir.graph import AffineDim, Graph, Node
from pipeline.ir.graph_rule import Rebuilder, rebuild, use_counts
from rules.graph.access import Access
from rules.graph.reshape_groups import reshape_groups


@dataclass(frozen=True, slots=True)
class MergeProducts:
    """Products of one operand with several constants become one product with all of them, and slices.

    x Wq + bq, x Wk + bk, x Wv + bv  ->  slices of x [Wq Wk Wv] + [bq bk bv]

    Legal when the products differ in the extent of the one variable that only the constants have, and in the
    constants. Done only where every part is read in place, so that no slice is ever copied: by products, maybe behind
    views, which `AbsorbViews` makes a part of the product, and by elementwise operations, such as rotary embeddings.
    Where these are all that there is, they are better done before the product is stored, and it stays alone.
    """

    def apply(self, graph: Graph) -> Graph:
        parts = _parts(graph)
        families: dict[tuple[object, ...], list[_Part]] = {}
        for part in parts:
            families.setdefault(part.family, []).append(part)
        merged = {part.product: family for family in families.values() if len(family) > 1 for part in family}
        if not merged:
            return graph
        results = {part.result: part for family in families.values() if len(family) > 1 for part in family}

        wholes: dict[int, int] = {}

        def replaced(b: Rebuilder, number: int, node: Node, inputs: tuple[int, ...]) -> int | None:
            part = results.get(number)
            if part is None:
                ours = isinstance(node.op, g.Reshape) and set(b.node(inputs[0]).inputs) & set(wholes.values())
                return _split_before(b, node, inputs[0]) if ours else None
            family = merged[part.product]
            x = inputs[0]
            if part.product != number:  # the product was made as it was, and nobody reads it now
                x = b.node(inputs[graph.nodes[number].inputs.index(part.product)]).inputs[0]
            first = family[0].product
            if first not in wholes:
                wholes[first] = _whole(b, graph, family, x)
            start = sum(other.extent for other in family[: family.index(part)])
            return b.slice(wholes[first], [start], [start + part.extent], axes=[part.variable])

        return rebuild(graph, replaced)


def _split_before(b: Rebuilder, node: Node, x: int) -> int | None:
    """The reshape of a slice as a slice of the reshape, which costs nothing, where it splits the sliced dimension.

    Of 24 channels those from 8 to 16, as (2, 4): of (6, 4) the rows from 2 to 4.
    """
    made = b.node(x)
    if not isinstance(made.op, g.Slice):
        return None
    whole = b.shape(made.inputs[0])
    shape: list[int] = []
    starts: list[int] = []
    for old, new in reshape_groups(made.type.shape, node.type.shape) or ():
        sizes = [node.type.shape[j] for j in new]
        cut = [axis for axis in old if whole[axis] != made.type.shape[axis]]
        begins = [0] * len(sizes)
        if cut:
            inner = prod(sizes[1:])
            if not sizes or any(whole[axis] != 1 for axis in old if axis not in cut) or len(cut) > 1:
                return None
            if whole[cut[0]] % inner or made.op.starts[cut[0]] % inner:
                return None
            sizes[0], begins[0] = whole[cut[0]] // inner, made.op.starts[cut[0]] // inner
        shape += sizes
        starts += begins
    if not shape:
        return None
    ends = [start + extent for start, extent in zip(starts, node.type.shape, strict=True)]
    return b.slice(b.reshape(made.inputs[0], tuple(shape)), starts, ends)


@dataclass(frozen=True, slots=True)
class _Part:
    """One product and what is added to it.

    product, result  the Contract, and the sum or the Contract itself
    variable         the spatial variable that only the constant has; dimension is where
    """

    product: int
    result: int
    variable: int
    dimension: int
    extent: int
    weights: str
    summand: str | None
    family: tuple[object, ...]


def _parts(graph: Graph) -> list[_Part]:
    uses = use_counts(graph)
    readers: dict[int, list[int]] = {}
    for number, node in enumerate(graph.nodes):
        for v in dict.fromkeys(node.inputs):
            readers.setdefault(v, []).append(number)
    shown = {value for _, value in graph.outputs}
    parts = [_part(graph, number, readers) for number in range(len(graph.nodes)) if uses[number]]
    return [part for part in parts if part is not None and _is_read_in_place(graph, part.result, readers, shown)]


def _part(graph: Graph, number: int, readers: dict[int, list[int]]) -> _Part | None:
    node = graph.nodes[number]
    if not isinstance(node.op, g.Contract):
        return None
    lhs, rhs = (graph.nodes[v] for v in node.inputs)
    if isinstance(lhs.op, g.Constant) or not isinstance(rhs.op, g.Constant):
        return None
    of_lhs, of_rhs = ({v for dim in affine for v, _ in dim.terms} for affine in (node.op.lhs, node.op.rhs))
    own = [v for v in range(len(node.op.spatial)) if v in of_rhs - of_lhs]
    if len(own) != 1:
        return None
    variable, extent = own[0], node.op.spatial[own[0]]
    plain = [i for i, dim in enumerate(node.op.rhs) if dim == AffineDim(((variable, 1),))]
    mentions = [i for i, dim in enumerate(node.op.rhs) if any(v == variable for v, _ in dim.terms)]
    if len(plain) != 1 or mentions != plain or rhs.type.shape[plain[0]] != extent:
        return None
    spatial = tuple(0 if v == variable else n for v, n in enumerate(node.op.spatial))
    others = tuple(n for i, n in enumerate(rhs.type.shape) if i != plain[0])
    family = (node.inputs[0], replace(node.op, spatial=spatial), others, rhs.type.dtype, node.type.dtype)
    result, summand = number, None
    following = readers.get(number, [])
    if len(following) == 1:
        after = graph.nodes[following[0]]
        summand = _summand(graph, after, number, variable, extent)
        result = following[0] if summand is not None else number
    return _Part(number, result, variable, plain[0], extent, rhs.op.key, summand, family)


def _summand(graph: Graph, node: Node, product: int, variable: int, extent: int) -> str | None:
    """The constant that is added, where it varies along the variable only."""
    if node.op != g.Elementwise("add") or len(set(node.inputs)) != 2:
        return None
    other = graph.nodes[next(v for v in node.inputs if v != product)]
    shape = graph.nodes[product].type.shape
    if not isinstance(other.op, g.Constant) or node.type.shape != shape:
        return None
    full = (1,) * (len(shape) - len(other.type.shape)) + other.type.shape
    fits = all(n == (extent if axis == variable else 1) for axis, n in enumerate(full))
    return other.op.key if fits else None


def _is_read_in_place(graph: Graph, value: int, readers: dict[int, list[int]], shown: set[int]) -> bool:
    """Can each reader read a slice of the joint result where it lies, and has the product to be stored anyway?"""
    found = _readings(graph, value, readers, shown, ())
    return found is not None and not all(found)


def _readings(
    graph: Graph, value: int, readers: dict[int, list[int]], shown: set[int], views: tuple[int, ...]
) -> list[bool] | None:
    """For each reader behind views, whether it could be done before the value is stored; None where one would copy."""
    if value in shown or not readers.get(value):
        return None
    sliced = any(isinstance(graph.nodes[number].op, g.Slice) for number in views)
    found: list[bool] = []
    for number in readers[value]:
        node = graph.nodes[number]
        match node.op:
            case g.Contract():
                operands = [k for k, v in enumerate(node.inputs) if v == value]
                if not all(_reads_through(graph, node.op, k, views) for k in operands):
                    return None
                found.append(False)
            case g.Elementwise():
                found.append(not sliced)
            case g.Concat() if sliced:  # there is a copy already
                found.append(False)
            case g.Reshape() | g.Transpose() | g.Slice() | g.Broadcast():
                behind = _readings(graph, number, readers, shown, (*views, number))
                if behind is None:
                    return None
                found += behind
            case _:
                return None
    return found


def _reads_through(graph: Graph, op: g.Contract, operand: int, views: tuple[int, ...]) -> bool:
    access: Access | None = Access.of(op)
    for number in reversed(views):
        node = graph.nodes[number]
        source = graph.nodes[node.inputs[0]].type.shape
        access = None if access is None else access.through(operand, node.op, source, node.type.shape)
    return access is not None


def _whole(b: Rebuilder, graph: Graph, family: list[_Part], x: int) -> int:
    """The one product, with all summands."""
    first = family[0]
    op = graph.nodes[first.product].op
    kind = graph.nodes[first.product].type.dtype
    assert isinstance(op, g.Contract)
    width = sum(part.extent for part in family)
    weights = b.constant(np.concatenate([graph.constants[part.weights] for part in family], axis=first.dimension))
    spatial = tuple(width if v == first.variable else n for v, n in enumerate(op.spatial))
    whole = b.add(replace(op, spatial=spatial), x, weights, dtype=kind)
    if all(part.summand is None for part in family):
        return whole
    like = next(graph.constants[part.summand] for part in family if part.summand is not None)
    summands = [
        np.zeros(part.extent, like.dtype) if part.summand is None else graph.constants[part.summand].reshape(-1)
        for part in family
    ]
    behind = len(spatial) - 1 - first.variable
    return b.add(g.Elementwise("add"), whole, b.constant(np.concatenate(summands).reshape(width, *(1,) * behind)))
