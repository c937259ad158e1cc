"""The labelling of a graph: which axes each dimension of each value runs over.

Dimensions are unified from operation to operation; a reshape splits an axis into digits, a product over `64*h + d`
reads two axes in one dimension. A value inside has one labelling; a tensor from outside is read in several ways,
transposed say. Readings of one tensor share their axes wherever that contradicts nothing, so that what is reduced and
what is scaled afterwards run over the same axis.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from pipeline.errors import listed
from pipeline.ir.graph import (
    AffineMap,
    Broadcast,
    Constant,
    Contract,
    Elementwise,
    Graph,
    Input,
    Node,
    Reduce,
    Reshape,
    Slice,
    Transpose,
)
from pipeline.ir.graph_types import HALVES
from pipeline.superopt.axes import Axes, Digits

REDUCTIONS = ("sum", "max", "min", "prod")
ALGEBRAIC = frozenset({"add", "sub", "mul", "div", "neg", "reciprocal", "sqrt", "rsqrt", "where", "identity"})
EXPONENTIAL = frozenset({"exp", "sigmoid"})  # at most one of them on a path can be proven
KEYED = frozenset({"tanh", "erf", "max", "min", "abs"})  # a random function of the whole value stands for each
PROVABLE = ALGEBRAIC | EXPONENTIAL | KEYED
REALS = HALVES | {"float32"}  # rounding from one to another is no operation of the algebra


@dataclass(frozen=True, slots=True)
class Term:
    """coefficient * (the number with these digits), a part of an index."""

    digits: Digits
    coefficient: int = 1


@dataclass(frozen=True, slots=True)
class Index:
    """Of one dimension of a tensor in memory: a sum of terms, the largest coefficient first, and an offset."""

    terms: tuple[Term, ...]
    offset: int = 0


@dataclass(slots=True)
class Reading:
    """One operand of one node that is a tensor from outside, and the index of each of its dimensions."""

    source: int
    index: list[Index]


class Refusal(Exception):
    """A graph has no specification: the number of the node at which that is seen, and why."""

    def __init__(self, node: int, reason: str) -> None:
        self.node, self.reason = node, reason


@dataclass(slots=True)
class Labelling:
    """The axes of a graph with one output.

    dims       of each value inside, its dimensions
    variables  of each product and reduction, its iteration variables: the spatial ones first
    readings   of tensors from outside, by node and number of the operand
    """

    graph: Graph
    axes: Axes = field(default_factory=Axes)
    dims: dict[int, tuple[Digits, ...]] = field(default_factory=dict)
    variables: dict[int, tuple[Digits, ...]] = field(default_factory=dict)
    readings: dict[tuple[int, int], Reading] = field(default_factory=dict)

    def run(self) -> None:
        if len(self.graph.outputs) != 1:
            raise Refusal(0, f"it has {len(self.graph.outputs)} outputs, not one")
        for number, node in enumerate(self.graph.nodes):
            if 0 in node.type.shape:
                raise Refusal(number, "a tensor without elements")
            if not isinstance(node.op, Input):
                if node.type.dtype not in REALS and not _is_mask(self.graph, number):
                    raise Refusal(number, f"{node.type.dtype}: only {listed(REALS)} are proven")
                self.label(number, node)
        conflict = self.conflict()
        if conflict is not None:
            raise Refusal(conflict, "an axis would run along two dimensions of one value")
        self.share()

    # ------------------------------------------------------------------ one node

    def label(self, number: int, node: Node) -> None:
        shape = node.type.shape
        match node.op:
            case Constant():
                self.dims[number] = ((),) * len(shape)
            case Elementwise(fn):
                if not rounds(self.graph, number):
                    self.refuse_unprovable(number, fn)
                self.dims[number] = self.fresh(shape)
                for position, operand in enumerate(node.inputs):
                    own = self.graph.nodes[operand].type.shape
                    aligned = self.dims[number][len(shape) - len(own) :]
                    self.read(number, position, [d if n > 1 else () for d, n in zip(aligned, own, strict=True)])
            case Broadcast():
                self.dims[number] = self.fresh(shape)
                own = self.graph.nodes[node.inputs[0]].type.shape
                aligned = self.dims[number][len(shape) - len(own) :]
                self.read(number, 0, [d if n > 1 else () for d, n in zip(aligned, own, strict=True)])
            case Transpose(perm):
                self.dims[number] = self.fresh(shape)
                self.read(number, 0, [self.dims[number][perm.index(axis)] for axis in range(len(perm))])
            case Reshape():
                self.dims[number] = self.fresh(shape)
                whole = self.fresh(self.graph.nodes[node.inputs[0]].type.shape)
                if not self.axes.unify(joined(whole), joined(self.dims[number])):
                    raise Refusal(number, "a reshape that only moves the borders of dimensions in part")
                self.read(number, 0, whole)
            case Slice(starts, strides):
                if not isinstance(self.graph.nodes[node.inputs[0]].op, Input):
                    raise Refusal(number, "a slice of what is computed here")
                if any(step != 1 for step, n in zip(strides, shape, strict=True) if n > 1):
                    raise Refusal(number, "a slice with a stride")
                self.dims[number] = self.fresh(shape)
                index = [Index((Term(d),), start) for d, start in zip(self.dims[number], starts, strict=True)]
                self.readings[number, 0] = Reading(node.inputs[0], index)
            case Reduce(kind, axes, _):
                if kind not in REDUCTIONS:
                    raise Refusal(number, f"{kind} is no value of the field")
                whole = self.fresh(self.graph.nodes[node.inputs[0]].type.shape)
                self.dims[number] = tuple(d for axis, d in enumerate(whole) if axis not in axes)
                self.variables[number] = (*self.dims[number], *(whole[axis] for axis in axes))
                self.read(number, 0, whole)
            case Contract(spatial, reduced, lhs, rhs):
                self.dims[number] = self.fresh(spatial)
                self.variables[number] = (*self.dims[number], *self.fresh(reduced))
                for position, affine in enumerate((lhs, rhs)):
                    self.read_by_map(number, position, affine)
            case _:
                raise Refusal(number, f"{type(node.op).__name__.lower()} is not algebraic")

    def fresh(self, shape: Iterable[int]) -> tuple[Digits, ...]:
        return tuple(self.axes.fresh(extent) for extent in shape)

    def refuse_unprovable(self, number: int, fn: str) -> None:
        if fn not in PROVABLE:
            raise Refusal(number, f"{fn} is no function that is proven")

    def read(self, number: int, position: int, dims: Iterable[Digits]) -> None:
        """The operand has these dimensions."""
        source = self.graph.nodes[number].inputs[position]
        if isinstance(self.graph.nodes[source].op, Input):
            self.readings[number, position] = Reading(source, [Index((Term(d),) if d else ()) for d in dims])
            return
        for mine, theirs in zip(self.dims[source], dims, strict=True):
            if not self.axes.unify(mine, theirs):
                raise Refusal(number, "dimensions that cannot be made of the same axes")

    def read_by_map(self, number: int, position: int, affine: AffineMap) -> None:
        """The operand of a product is read by an affine map over its variables."""
        source = self.graph.nodes[number].inputs[position]
        shape = self.graph.nodes[source].type.shape
        variables = self.variables[number]
        index = []
        for dim in affine:
            terms = [Term(variables[v], c) for v, c in dim.terms if variables[v] and c]
            index.append(Index(tuple(sorted(terms, key=lambda term: -term.coefficient)), dim.offset))
        if isinstance(self.graph.nodes[source].op, Input):
            if not all(self.injective(one) for one in index):
                raise Refusal(number, "a window: its elements are read by several indices")
            self.readings[number, position] = Reading(source, index)
            return
        whole = [self.digits(one, size) for one, size in zip(index, shape, strict=True)]
        if any(digits is None for digits in whole):
            raise Refusal(number, "a part of what is computed here, or a window over it")
        self.read(number, position, [digits or () for digits in whole])

    def injective(self, index: Index) -> bool:
        """Do different values of the axes give different indices?"""
        reach = 0
        for term in reversed(index.terms):
            if term.coefficient <= reach:
                return False
            reach += term.coefficient * (self.axes.size(term.digits) - 1)
        return True

    def digits(self, index: Index, size: int) -> Digits | None:
        """The axes of which the index is the number, where it runs over the whole dimension."""
        stride = 1
        for term in reversed(index.terms):
            if term.coefficient != stride:
                return None
            stride *= self.axes.size(term.digits)
        return (
            tuple(axis for term in index.terms for axis in term.digits) if stride == size and not index.offset else None
        )

    # ------------------------------------------------------------------ all nodes

    def conflict(self) -> int | None:
        """The first node in which an axis would run along two dimensions."""
        for number, dims in self.dims.items():
            found = self.axes.expanded(joined(self.variables.get(number, dims)))
            if len(set(found)) < len(found):
                return number
        return None

    def share(self) -> None:
        """Equal axes for readings of one tensor, dimension by dimension, wherever no node has the axis twice then."""
        readings = list(self.readings.values())
        for later, reading in enumerate(readings):
            for earlier in readings[:later]:
                if earlier.source != reading.source:
                    continue
                shape = self.graph.nodes[reading.source].type.shape
                for one, other, size in zip(earlier.index, reading.index, shape, strict=True):
                    before = self.axes.copy()
                    if not self.equated(one, other, size) or self.conflict() is not None:
                        self.axes = before

    def equated(self, one: Index, other: Index, size: int) -> bool:
        whole, same = self.digits(one, size), self.digits(other, size)
        if whole is not None and same is not None:
            return self.axes.unify(whole, same)
        alike = (
            one.offset == other.offset
            and [t.coefficient for t in one.terms] == [t.coefficient for t in other.terms]
            and all(
                self.axes.size(t.digits) == self.axes.size(u.digits)
                for t, u in zip(one.terms, other.terms, strict=True)
            )
        )
        return alike and all(self.axes.unify(t.digits, u.digits) for t, u in zip(one.terms, other.terms, strict=True))


def rounds(graph: Graph, number: int) -> bool:
    """Is the node a cast from one of the reals to another?"""
    node = graph.nodes[number]
    return (
        node.op == Elementwise("cast") and node.type.dtype in REALS and graph.nodes[node.inputs[0]].type.dtype in REALS
    )


def joined(dims: Iterable[Digits]) -> Digits:
    return tuple(axis for digits in dims for axis in digits)


def _is_mask(graph: Graph, number: int) -> bool:
    """Is the value of type bool and nothing but a view of an input?"""
    node = graph.nodes[number]
    while isinstance(node.op, Reshape | Transpose | Broadcast | Slice):
        node = graph.nodes[node.inputs[0]]
    return node.type.dtype == "bool" and isinstance(node.op, Input)
