"""The specification: a subprogram of a graph written over labelled axes, so that any of them may be shrunk.

Every axis of the subprogram has a number, and every value knows which axes it runs over. What a tensor looks like in
memory (heads side by side in one dimension, say) is said once, by the access maps of the inputs and the output.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from pipeline.ir.graph import AffineMap, DType, Graph, Shape
from pipeline.ir.graph_builder import GraphBuilder
from pipeline.ir.graph_types import HALVES

Labels = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SpecInput:
    """A tensor that the subprogram reads.

    labels   the axes it runs over, ascending
    shape    of the tensor in memory
    access   the index of each dimension in memory, over the labels
    key      of its data where it is a constant of the graph, else None
    source   the value of the whole graph that it is
    """

    name: str
    labels: Labels
    dtype: DType
    shape: Shape
    access: AffineMap
    key: str | None = None
    source: int = -1


@dataclass(frozen=True, slots=True)
class Number:
    """A scalar constant."""

    value: float


@dataclass(frozen=True, slots=True)
class Apply:
    """A scalar function of `pipeline.ir.graph.ELEMENTWISE`; operands are broadcast along the axes that they lack."""

    fn: str


@dataclass(frozen=True, slots=True)
class Product:
    """The product of two operands, summed over the axes `over`."""

    over: Labels


@dataclass(frozen=True, slots=True)
class Reduction:
    """Reduces the axes `over` away."""

    kind: Literal["sum", "max", "min", "prod"]
    over: Labels


SpecOp = Number | Apply | Product | Reduction


@dataclass(frozen=True, slots=True)
class SpecNode:
    """One operation; operands are values: the inputs first, then the nodes in order. `labels`, ascending."""

    op: SpecOp
    inputs: tuple[int, ...]
    labels: Labels
    dtype: DType = "float32"


@dataclass(frozen=True, slots=True)
class Spec:
    """A subprogram with one result.

    extents   of each axis, by its number
    output    the value that is the result
    shape     of the result in memory
    store     the index of each of its dimensions, over the labels of the output
    dtype     of the result in memory; everything inside is computed in float32
    """

    extents: tuple[int, ...]
    inputs: tuple[SpecInput, ...]
    nodes: tuple[SpecNode, ...]
    output: int
    shape: Shape
    store: AffineMap
    constants: Mapping[str, np.ndarray] = field(default_factory=dict, compare=False)
    dtype: DType = "float32"

    def labels(self, value: int) -> Labels:
        """The axes that a value runs over, ascending."""
        count = len(self.inputs)
        return self.inputs[value].labels if value < count else self.nodes[value - count].labels


def spec_graph(spec: Spec, extents: Sequence[int] | None = None) -> Graph:
    """The specification as a graph at other extents: each input has one dimension for each of its labels, ascending.

    So has the output. Numbers are float32, whatever they are in memory. This is what a µGraph of the specification is
    compared with: its inputs are these inputs.
    """
    sizes = spec.extents if extents is None else tuple(extents)
    b = GraphBuilder()
    values: list[int] = []

    def aligned(value: int, labels: Labels) -> int:
        """The value with a dimension of extent one for each label that it lacks."""
        own = spec.labels(value)
        shape = tuple(sizes[label] if label in own else 1 for label in labels)
        return values[value] if own == labels else b.reshape(values[value], shape)

    for tensor in spec.inputs:
        dtype: DType = "float32" if tensor.dtype in HALVES else tensor.dtype
        values.append(b.input(tensor.name, tuple(sizes[label] for label in tensor.labels), dtype))
    for node in spec.nodes:
        match node.op:
            case Number(value):
                values.append(b.constant(np.asarray(value, node.dtype)))
            case Apply(fn):
                whole = tuple(sizes[label] for label in node.labels)
                operands = [
                    values[i] if not spec.labels(i) else aligned(i, node.labels) for i in node.inputs
                ]  # a scalar stays one
                made = b.elementwise(fn, *operands, dtype=node.dtype if fn == "cast" else None)
                values.append(made if b.shape(made) == whole else b.broadcast(made, whole))
            case Product():
                operands = [values[i] for i in node.inputs]
                letters = ",".join(_letters(spec.labels(i)) for i in node.inputs)
                values.append(b.einsum(f"{letters}->{_letters(node.labels)}", *operands))
            case Reduction(kind, over):
                own = spec.labels(node.inputs[0])
                values.append(b.reduce(kind, values[node.inputs[0]], [own.index(label) for label in over]))
    return b.finish([("out", values[spec.output])])


def _letters(labels: Labels) -> str:
    return "".join(chr(ord("a") + label) for label in labels)
