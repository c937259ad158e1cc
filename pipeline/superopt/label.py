"""A graph with one output written over labelled axes: its specification, or the reason why it has none."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import Literal, cast

from pipeline.ir.graph import (
    AffineDim,
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
from pipeline.superopt.axes import Digits
from pipeline.superopt.labelling import EXPONENTIAL, Index, Labelling, Refusal, Term, joined, rounds
from pipeline.superopt.spec import Apply, Labels, Number, Product, Reduction, Spec, SpecInput, SpecNode, SpecOp

Kind = Literal["sum", "max", "min", "prod"]

MOST_LABELS = 20
NOTHING = "nothing is computed"
BROADCAST = "its output is a broadcast"


@dataclass(frozen=True, slots=True)
class Opaque:
    """Why a graph has no specification: the number of the node at which it fails, and the reason."""

    node: int
    reason: str


def specify(graph: Graph, constants: Collection[str] = ()) -> Spec | Opaque:
    """The specification of a graph with one output.

    constants   names of the inputs whose data is known when the model is compiled: they have that name as their `key`

    An input of the specification has as `source` the number of the input of the graph that it is, counted from zero.
    The first of those that read one tensor has its name, the others the name with a number.
    """
    labelling = Labelling(graph)
    try:
        labelling.run()
        return _Writer.of(labelling, constants).spec()
    except Refusal as refusal:
        return Opaque(refusal.node, refusal.reason)


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

    labelling: Labelling
    constants: Collection[str]
    order: dict[int, int]
    read: list[SpecInput] = field(default_factory=list)
    nodes: list[SpecNode] = field(default_factory=list)
    values: dict[int, _Value] = field(default_factory=dict)
    depths: dict[_Value, int] = field(default_factory=dict)
    operands: list[tuple[_Value, ...]] = field(default_factory=list)

    @staticmethod
    def of(labelling: Labelling, constants: Collection[str]) -> _Writer:
        """Axes numbered from those of the output, in order, to those that were met last."""
        axes, output = labelling.axes, labelling.graph.outputs[0][1]
        if output not in labelling.dims:
            raise Refusal(output, "its output is one of its inputs")
        met = list(joined(labelling.dims[output]))
        for number, dims in labelling.dims.items():
            met += joined(labelling.variables.get(number, dims))
        order = {axis: label for label, axis in enumerate(dict.fromkeys(axes.expanded(met)))}
        if len(order) > MOST_LABELS:
            raise Refusal(output, f"{len(order)} axes, more than {MOST_LABELS}")
        return _Writer(labelling, constants, order)

    def spec(self) -> Spec:
        graph, axes = self.labelling.graph, self.labelling.axes
        for number, node in enumerate(graph.nodes):
            if not isinstance(node.op, Input):
                self.values[number] = self.write(number, node)
        output = graph.outputs[0][1]
        result, dims = self.values[output], self.labelling.dims[output]
        if not result.inside:
            raise Refusal(output, NOTHING)
        if set(self.labels(result)) != set(self.labels_of(dims)):
            raise Refusal(output, BROADCAST)
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
            dtype=graph.nodes[output].type.dtype,
        )

    def write(self, number: int, node: Node) -> _Value:
        operands = tuple(self.operand(number, position) for position in range(len(node.inputs)))
        match node.op:
            case Constant(key):
                return self.add(number, Number(float(self.labelling.graph.constants[key].reshape(()))), (), ())
            case Elementwise("cast") if rounds(self.labelling.graph, number):
                return operands[0]
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
            raise Refusal(number, "a reduction over an axis along which its operand is broadcast")
        return self.add(number, op, operands, tuple(sorted(all_labels - set(op.over))))

    def add(self, number: int, op: SpecOp, operands: tuple[_Value, ...], labels: Labels) -> _Value:
        depth = max((self.depths[value] for value in operands), default=0)
        if isinstance(op, Apply) and op.fn in EXPONENTIAL:
            depth += 1
        if depth > 1:
            raise Refusal(number, "a second exponential on one path")
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
        return tuple(sorted(self.order[axis] for axis in self.labelling.axes.expanded(joined(dims))))

    def affine(self, index: Index) -> AffineDim:
        axes, terms = self.labelling.axes, dict[int, int]()
        for term in index.terms:
            stride = term.coefficient
            for axis in reversed(axes.expanded(term.digits)):
                terms[self.order[axis]] = terms.get(self.order[axis], 0) + stride
                stride *= axes.extents[axis]
        return AffineDim(tuple(sorted(terms.items())), index.offset)
