"""The tolerance of a graph: its outputs in float64, and for each element how far a right program may be off.

A running error analysis: every value carries a bound on the error that a program in the graph's own dtypes makes in it.
Each operation passes its operands' bounds on and adds its own rounding (`rounding`, `error_scalar`, `error_tensor`).
Sums may be taken in any order and operations fused; a program that drops a term, accumulates in halves or approximates
is outside.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from pipeline.ir import graph as g
from pipeline.ir.evaluate import evaluate_node
from pipeline.ir.graph import Graph
from pipeline.ir.graph_types import FLOATS
from pipeline.verification.error_scalar import Array, Error
from pipeline.verification.error_tensor import node_error
from pipeline.verification.rounding import format_of


@dataclass(frozen=True, slots=True, eq=False)
class Reference:
    """One output: its exact value (float64 for floating dtypes) and the bound of each element: 0 where it is exact,
    infinity where nothing can be said."""

    value: Array
    bound: Array


def evaluate_with_bound(graph: Graph, feeds: Mapping[str, Array]) -> dict[str, Reference]:
    """The outputs by name. Costs two to three evaluations in float64."""
    last = {number: len(graph.nodes) for _, number in graph.outputs}
    for number in range(len(graph.nodes) - 1, -1, -1):
        if number in last:
            for operand in graph.nodes[number].inputs:
                last.setdefault(operand, number)
    values: dict[int, Array] = {}
    errors: dict[int, Error] = {}
    for number, node in enumerate(graph.nodes):
        if number not in last:
            continue
        wide = node.type.dtype in FLOATS
        match node.op:
            case g.Input(name):
                values[number], errors[number] = np.asarray(feeds[name]), None
            case g.Constant(key):
                values[number], errors[number] = graph.constants[key], None
            case op:
                # A product widens its operands itself, and its bound wants large float32 weights as they are.
                narrow = isinstance(op, g.Contract) and node.type.dtype != "float64"
                operands = [values[i] if narrow else _widened(graph, values, i) for i in node.inputs]
                type_ = replace(node.type, dtype="float64") if wide else node.type
                with np.errstate(all="ignore"):
                    result = evaluate_node(op, operands, type_)
                # The float64 reference is itself off by as much as a float64 program.
                error = node_error(op, operands, [errors[i] for i in node.inputs], result, node.type)
                values[number] = result
                errors[number] = error * 2 if error is not None and node.type.dtype == "float64" else error
        for operand in set(node.inputs):
            if last[operand] == number:
                del values[operand], errors[operand]
    outputs = {}
    for name, number in graph.outputs:
        value, error = _widened(graph, values, number), errors[number]
        outputs[name] = Reference(value, np.zeros(value.shape) if error is None else np.array(error))
    return outputs


def _widened(graph: Graph, values: Mapping[int, Array], number: int) -> Array:
    wide = format_of(graph.nodes[number].type.dtype) is not None
    return values[number].astype(np.float64, copy=False) if wide else values[number]
