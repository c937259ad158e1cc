"""The interpreter of graphs in any algebra: the primitives that a provable subprogram is made of."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypeVar

from pipeline.errors import UserError, listed
from pipeline.ir import graph as g
from pipeline.ir.algebra import Algebra
from pipeline.ir.graph import AffineMap, Graph, Node, Shape
from pipeline.verification.field_algebra import NotProvable

V = TypeVar("V")
KINDS = ("sum", "max", "min", "prod")
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def run_graph(graph: Graph, feeds: Mapping[str, V], algebra: Algebra[V]) -> dict[str, V]:
    """The outputs by name.

    feeds  a value of the algebra for each input, of the input's shape

    NotProvable if an operation is none of those with an algebraic meaning (all of them are named at once).
    """
    refused = unsupported(graph)
    if refused:
        raise NotProvable("the graph has operations without an algebraic meaning", why="; ".join(refused),
                          todo="Cut the subprogram at them")  # fmt: skip
    missing = {node.op.name for node in graph.nodes if isinstance(node.op, g.Input)} - set(feeds)
    if missing:
        raise UserError("an input is missing", where=listed(missing))
    values: list[V] = []
    for number, node in enumerate(graph.nodes):
        try:
            values.append(_run(node, [values[i] for i in node.inputs], graph, feeds, algebra))
        except NotProvable as error:
            error.where = f"node {number} ({node.name or _name(node.op)})"
            raise
    return {name: values[number] for name, number in graph.outputs}


def unsupported(graph: Graph) -> tuple[str, ...]:
    """What `run_graph` cannot run: "node 3: Gather", one for each such node."""
    found = []
    for number, node in enumerate(graph.nodes):
        match node.op:
            case g.Reduce(kind=kind) if kind not in KINDS:
                found.append(f"node {number}: Reduce {kind}")
            case (
                g.Gather() | g.GatherElements() | g.GatherND() | g.ScatterElements() | g.ScatterND() | g.Scan()
                | g.TopK() | g.Iota()
            ):  # fmt: skip
                found.append(f"node {number}: {_name(node.op)}")
    return tuple(found)


def _run(node: Node, x: Sequence[V], graph: Graph, feeds: Mapping[str, V], algebra: Algebra[V]) -> V:
    shape = node.type.shape
    match node.op:
        case g.Input(name):
            if algebra.shape(feeds[name]) != shape:
                raise UserError("an input has the wrong shape", where=name,
                                why=f"{algebra.shape(feeds[name])} instead of {shape}")  # fmt: skip
            return feeds[name]
        case g.Constant(key):
            return algebra.constant(graph.constants[key])
        case g.Elementwise(fn):
            return algebra.elementwise(fn, *x, dtype=node.type.dtype)
        case g.Contract(spatial, reduced, lhs, rhs):
            return _contract(spatial, reduced, (lhs, rhs), x, algebra)
        case g.Reduce(kind, axes):
            return algebra.reshape(algebra.fold(kind, x[0], axes), shape)
        case g.ReduceWindow(kind, spatial, reduced, access):
            window = algebra.window(x[0], access, (*spatial, *reduced))
            return algebra.reshape(algebra.fold(kind, window, range(len(spatial), len(spatial) + len(reduced))), shape)
        case g.Reshape():
            return algebra.reshape(x[0], shape)
        case g.Transpose(perm):
            return algebra.transpose(x[0], perm)
        case g.Broadcast():
            return algebra.broadcast_to(x[0], shape)
        case g.Slice(starts, strides):
            where = tuple(_slice(*each) for each in zip(starts, strides, shape, strict=True))
            return algebra.index(x[0], where)
        case g.Pad(low, high, interior, value):
            return algebra.pad(x[0], low, high, interior, value)
        case g.Concat(axis):
            return algebra.concat(x, axis)
    raise NotProvable("the operation has no algebraic meaning", where=_name(node.op))


def _slice(start: int, stride: int, size: int) -> slice:
    end = start + stride * size
    return slice(start, end if end >= 0 else None, stride)


def _contract(spatial: Shape, reduced: Shape, maps: tuple[AffineMap, AffineMap], x: Sequence[V],
              algebra: Algebra[V]) -> V:  # fmt: skip
    """An einsum where every dimension is an iteration variable; else the operands are unfolded first."""
    extents = (*spatial, *reduced)
    operands, letters = [], []
    for access, operand in zip(maps, x, strict=True):
        own = [dim.terms[0][0] for dim in access if len(dim.terms) == 1 and dim.terms[0][1] == 1 and not dim.offset]
        plain = len(own) == len(access) == len(set(own))
        if plain and algebra.shape(operand) == tuple(extents[v] for v in own):
            operands.append(operand)
            letters.append(own)
        else:
            used = sorted({v for dim in access for v, _ in dim.terms})
            renamed = tuple(g.AffineDim(tuple((used.index(v), c) for v, c in dim.terms), dim.offset) for dim in access)
            operands.append(algebra.window(operand, renamed, tuple(extents[v] for v in used)))
            letters.append(used)
    here = set(letters[0]) | set(letters[1])
    out = [v for v in range(len(spatial)) if v in here]
    names = ["".join(LETTERS[v] for v in group) for group in (*letters, out)]
    value = algebra.contract(f"{names[0]},{names[1]}->{names[2]}", operands[0], operands[1])
    times = math.prod(extents[v] for v in range(len(spatial), len(extents)) if v not in here)
    if times != 1:
        value = algebra.elementwise("mul", value, algebra.scalar(times))
    kept = tuple(extents[v] if v in here else 1 for v in range(len(spatial)))
    return algebra.broadcast_to(algebra.reshape(value, kept), spatial)


def _name(op: g.Op) -> str:
    return op.fn if isinstance(op, g.Elementwise) else type(op).__name__
