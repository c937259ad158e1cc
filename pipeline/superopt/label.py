"""A graph with one output written over labelled axes: its specification, or the reason why it has none.

Dimensions are unified from operation to operation; a reshape splits an axis into digits, a product over `64*h + d`
reads two axes in one dimension. A value inside has one labelling; a tensor that is read in several ways, transposed
say, is several inputs of the specification. Readings of one tensor share their axes wherever that contradicts nothing,
so that what is reduced and what is scaled afterwards run over the same axis.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import Literal, cast, get_args

from pipeline.ir.graph import (
    AffineDim,
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
from pipeline.superopt.axes import Axes, Digits
from pipeline.superopt.spec import Apply, Labels, Number, Product, Reduction, Spec, SpecInput, SpecNode, SpecOp

Kind = Literal["sum", "max", "min", "prod"]

ALGEBRAIC = frozenset({"add", "sub", "mul", "div", "neg", "reciprocal", "sqrt", "rsqrt", "where", "identity"})
EXPONENTIAL = frozenset({"exp", "sigmoid"})  # at most one of them on a path can be proven
KEYED = frozenset({"tanh", "erf", "max", "min", "abs"})  # a random function of the whole value stands for each
PROVABLE = ALGEBRAIC | EXPONENTIAL | KEYED
MOST_LABELS = 20
NOTHING = "nothing is computed"
BROADCAST = "its output is a broadcast"


@dataclass(frozen=True, slots=True)
class Opaque:
    """Why a graph has no specification: the number of the node at which it fails, and the reason."""

    node: int
    reason: str


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


def specify(graph: Graph, constants: Collection[str] = ()) -> Spec | Opaque:
    """The specification of a graph with one output.

    constants   names of the inputs whose data is known when the model is compiled: they have that name as their `key`

    An input of the specification has as `source` the number of the input of the graph that it is, counted from zero.
    The first of those that read one tensor has its name, the others the name with a number.
    """
    labelling = _Labelling(graph)
    try:
        labelling.run()
        return _Writer.of(labelling, constants).spec()
    except _Refusal as refusal:
        return Opaque(refusal.node, refusal.reason)


class _Refusal(Exception):
    def __init__(self, node: int, reason: str) -> None:
        self.node, self.reason = node, reason


@dataclass(slots=True)
class _Labelling:
    """dims: of each value inside, its dimensions · variables: of each product, its iteration variables
    readings: by (node, operand number)"""

    graph: Graph
    axes: Axes = field(default_factory=Axes)
    dims: dict[int, tuple[Digits, ...]] = field(default_factory=dict)
    variables: dict[int, tuple[Digits, ...]] = field(default_factory=dict)
    readings: dict[tuple[int, int], Reading] = field(default_factory=dict)

    def run(self) -> None:
        if len(self.graph.outputs) != 1:
            raise _Refusal(0, f"it has {len(self.graph.outputs)} outputs, not one")
        for number, node in enumerate(self.graph.nodes):
            if 0 in node.type.shape:
                raise _Refusal(number, "a tensor without elements")
            if not isinstance(node.op, Input):
                if node.type.dtype != "float32" and not _is_mask(self.graph, number):
                    raise _Refusal(number, f"{node.type.dtype}: only float32 is proven")
                self.label(number, node)
        conflict = self.conflict()
        if conflict is not None:
            raise _Refusal(conflict, "an axis would run along two dimensions of one value")
        self.share()

    # ------------------------------------------------------------------ one node

    def label(self, number: int, node: Node) -> None:
        shape = node.type.shape
        match node.op:
            case Constant():
                self.dims[number] = ((),) * len(shape)
            case Elementwise(fn):
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
                if not self.axes.unify(_joined(whole), _joined(self.dims[number])):
                    raise _Refusal(number, "a reshape that only moves the borders of dimensions in part")
                self.read(number, 0, whole)
            case Slice(starts, strides):
                if not isinstance(self.graph.nodes[node.inputs[0]].op, Input):
                    raise _Refusal(number, "a slice of what is computed here")
                if any(step != 1 for step, n in zip(strides, shape, strict=True) if n > 1):
                    raise _Refusal(number, "a slice with a stride")
                self.dims[number] = self.fresh(shape)
                index = [Index((Term(d),), start) for d, start in zip(self.dims[number], starts, strict=True)]
                self.readings[number, 0] = Reading(node.inputs[0], index)
            case Reduce(kind, axes, _):
                if kind not in get_args(Kind):
                    raise _Refusal(number, f"{kind} is no value of the field")
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
                raise _Refusal(number, f"{type(node.op).__name__.lower()} is not algebraic")

    def fresh(self, shape: Iterable[int]) -> tuple[Digits, ...]:
        return tuple(self.axes.fresh(extent) for extent in shape)

    def refuse_unprovable(self, number: int, fn: str) -> None:
        if fn not in PROVABLE:
            raise _Refusal(number, f"{fn} is no function that is proven")

    def read(self, number: int, position: int, dims: Iterable[Digits]) -> None:
        """The operand has these dimensions."""
        source = self.graph.nodes[number].inputs[position]
        if isinstance(self.graph.nodes[source].op, Input):
            self.readings[number, position] = Reading(source, [Index((Term(d),) if d else ()) for d in dims])
            return
        for mine, theirs in zip(self.dims[source], dims, strict=True):
            if not self.axes.unify(mine, theirs):
                raise _Refusal(number, "dimensions that cannot be made of the same axes")

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
                raise _Refusal(number, "a window: its elements are read by several indices")
            self.readings[number, position] = Reading(source, index)
            return
        whole = [self.digits(one, size) for one, size in zip(index, shape, strict=True)]
        if any(digits is None for digits in whole):
            raise _Refusal(number, "a part of what is computed here, or a window over it")
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
            found = self.axes.expanded(_joined(self.variables.get(number, dims)))
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


def _joined(dims: Iterable[Digits]) -> Digits:
    return tuple(axis for digits in dims for axis in digits)


def _is_mask(graph: Graph, number: int) -> bool:
    """Is the value of type bool and nothing but a view of an input?"""
    node = graph.nodes[number]
    while isinstance(node.op, Reshape | Transpose | Broadcast | Slice):
        node = graph.nodes[node.inputs[0]]
    return node.type.dtype == "bool" and isinstance(node.op, Input)


@dataclass(frozen=True, slots=True)
class _Value:
    """A node of the specification (`inside`), or one of its inputs, by number."""

    inside: bool
    number: int


@dataclass(slots=True)
class _Writer:
    """Writes the nodes of a labelled graph as those of a specification.

    order    axis -> label
    read     inputs of the specification in the order in which they are read
    values   node of the graph -> value of the specification
    operands of each of its nodes
    depths   of each value, exponentials on the longest path to it
    """

    labelling: _Labelling
    constants: Collection[str]
    order: dict[int, int]
    read: list[SpecInput] = field(default_factory=list)
    nodes: list[SpecNode] = field(default_factory=list)
    values: dict[int, _Value] = field(default_factory=dict)
    depths: dict[_Value, int] = field(default_factory=dict)
    operands: list[tuple[_Value, ...]] = field(default_factory=list)

    @staticmethod
    def of(labelling: _Labelling, constants: Collection[str]) -> _Writer:
        """Axes numbered from those of the output, in order, to those that were met last."""
        axes, output = labelling.axes, labelling.graph.outputs[0][1]
        if output not in labelling.dims:
            raise _Refusal(output, "its output is one of its inputs")
        met = list(_joined(labelling.dims[output]))
        for number, dims in labelling.dims.items():
            met += _joined(labelling.variables.get(number, dims))
        order = {axis: label for label, axis in enumerate(dict.fromkeys(axes.expanded(met)))}
        if len(order) > MOST_LABELS:
            raise _Refusal(output, f"{len(order)} axes, more than {MOST_LABELS}")
        return _Writer(labelling, constants, order)

    def spec(self) -> Spec:
        graph, axes = self.labelling.graph, self.labelling.axes
        for number, node in enumerate(graph.nodes):
            if not isinstance(node.op, Input):
                self.values[number] = self.write(number, node)
        output = graph.outputs[0][1]
        result, dims = self.values[output], self.labelling.dims[output]
        if not result.inside:
            raise _Refusal(output, NOTHING)
        if set(self.labels(result)) != set(self.labels_of(dims)):
            raise _Refusal(output, BROADCAST)
        inputs = sorted(range(len(self.read)), key=lambda i: self.read[i].source)
        place = {_Value(False, old): new for new, old in enumerate(inputs)}
        place |= {_Value(True, n): len(inputs) + n for n in range(len(self.nodes))}
        return Spec(
            extents=tuple(axes.extents[axis] for axis in self.order),
            inputs=tuple(self.read[i] for i in inputs),
            nodes=tuple(
                replace(node, inputs=tuple(place[value] for value in operands))
                for node, operands in zip(self.nodes, self.operands, strict=True)
            ),
            output=place[result],
            shape=graph.nodes[output].type.shape,
            store=tuple(self.affine(Index((Term(digits),))) for digits in dims),
        )

    def write(self, number: int, node: Node) -> _Value:
        operands = tuple(self.operand(number, position) for position in range(len(node.inputs)))
        match node.op:
            case Constant(key):
                return self.add(number, Number(float(self.labelling.graph.constants[key].reshape(()))), (), ())
            case Elementwise("identity") | Broadcast() | Transpose() | Reshape() | Slice():
                return operands[0]
            case Elementwise(fn):
                labels = sorted({label for value in operands for label in self.labels(value)})
                return self.add(number, Apply(fn), operands, tuple(labels))
            case Reduce(kind):
                over = self.labels_of(self.labelling.variables[number][len(node.type.shape) :])
                return self.summed(number, Reduction(cast(Kind, kind), over), operands) if over else operands[0]
            case Contract():
                over = self.labels_of(self.labelling.variables[number][len(node.type.shape) :])
                return self.summed(number, Product(over), operands)
        raise AssertionError(f"{node.op} was refused before")

    def summed(self, number: int, op: Product | Reduction, operands: tuple[_Value, ...]) -> _Value:
        all_labels = {label for value in operands for label in self.labels(value)}
        if not set(op.over) <= all_labels:
            raise _Refusal(number, "a reduction over an axis along which its operand is broadcast")
        return self.add(number, op, operands, tuple(sorted(all_labels - set(op.over))))

    def add(self, number: int, op: SpecOp, operands: tuple[_Value, ...], labels: Labels) -> _Value:
        depth = max((self.depths[value] for value in operands), default=0)
        if isinstance(op, Apply) and op.fn in EXPONENTIAL:
            depth += 1
        if depth > 1:
            raise _Refusal(number, "a second exponential on one path")
        self.nodes.append(SpecNode(op, (), labels))
        self.operands.append(operands)
        value = _Value(True, len(self.nodes) - 1)
        self.depths[value] = depth
        return value

    def operand(self, number: int, position: int) -> _Value:
        """The value that is read there; a tensor from outside becomes an input, once for each way of reading it."""
        graph = self.labelling.graph
        reading = self.labelling.readings.get((number, position))
        if reading is None:
            return self.values[graph.nodes[number].inputs[position]]
        source = graph.nodes[reading.source]
        assert isinstance(source.op, Input)
        sources = [n for n, node in enumerate(graph.nodes) if isinstance(node.op, Input)]
        access = tuple(self.affine(index) for index in reading.index)
        labels = self.labels_of(term.digits for index in reading.index for term in index.terms)
        place = sources.index(reading.source)
        same = [one for one in self.read if one.source == place]
        for one in same:
            if (one.labels, one.access) == (labels, access):
                return _Value(False, self.read.index(one))
        key = source.op.name if source.op.name in self.constants else None
        name = f"{source.op.name}_{len(same)}" if same else source.op.name
        self.read.append(SpecInput(name, labels, source.type.dtype, source.type.shape, access, key, place))
        value = _Value(False, len(self.read) - 1)
        self.depths[value] = 0
        return value

    def labels(self, value: _Value) -> Labels:
        return (self.nodes if value.inside else self.read)[value.number].labels

    def labels_of(self, dims: Iterable[Digits]) -> Labels:
        return tuple(sorted(self.order[axis] for axis in self.labelling.axes.expanded(_joined(dims))))

    def affine(self, index: Index) -> AffineDim:
        axes, terms = self.labelling.axes, dict[int, int]()
        for term in index.terms:
            stride = term.coefficient
            for axis in reversed(axes.expanded(term.digits)):
                terms[self.order[axis]] = terms.get(self.order[axis], 0) + stride
                stride *= axes.extents[axis]
        return AffineDim(tuple(sorted(terms.items())), index.offset)
