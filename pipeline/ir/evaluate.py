"""The reference evaluation of a graph: NumPy from each operator's definition, in float64 unless told otherwise."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, assert_never

import numpy as np

from pipeline.errors import CheckError, UserError, listed
from pipeline.ir import evaluate_index as index
from pipeline.ir import graph as g
from pipeline.ir.evaluate_product import contract, reduce_window, start_of
from pipeline.ir.evaluate_scalar import apply_scalar
from pipeline.ir.graph import Graph, TensorType
from pipeline.ir.graph_types import FLOATS, HALVES, numpy_dtype, type_of

Precision = Literal["float64", "native"]
FOLDS: dict[str, Callable[..., Any]] = {"sum": np.sum, "prod": np.prod, "max": np.max, "min": np.min}


def evaluate(graph: Graph, feeds: Mapping[str, np.ndarray], *, precision: Precision = "float64",
             ) -> dict[str, np.ndarray]:  # fmt: skip
    """The outputs of `graph` by name.

    feeds      one array for each input of the graph, of its shape and dtype
    precision  "float64" computes every floating value in float64 and returns float64; "native" in the node's own dtype
               (halves through float32)
    """
    values: dict[int, np.ndarray] = {}
    last = _last_uses(graph)
    _refuse_unknown(graph, feeds)

    def fetch(number: int) -> np.ndarray:
        value = values[number]
        # constants stay in their own dtype until they are used, so that the weights are never all held twice
        wide = precision == "float64" and graph.nodes[number].type.dtype in FLOATS
        return value.astype(np.float64, copy=False) if wide else value

    for number, node in enumerate(graph.nodes):
        if number not in last:
            continue
        match node.op:
            case g.Input(name):
                values[number] = _feed(name, node.type, feeds)
            case g.Constant(key):
                values[number] = graph.constants[key]
            case _:
                wide = precision == "float64" and node.type.dtype in FLOATS
                result_type = replace(node.type, dtype="float64") if wide else node.type
                values[number] = evaluate_node(node.op, [fetch(i) for i in node.inputs], result_type)
        for operand in set(node.inputs):
            if last[operand] == number:
                del values[operand]
    return {name: np.array(fetch(number)) for name, number in graph.outputs}


def evaluate_node(op: g.Op, operands: Sequence[np.ndarray], result: TensorType) -> np.ndarray:
    """One operation on arrays, computed in the dtype of `result` (halves through float32); maybe a view of one."""
    value = _evaluate(op, operands, result)
    if value.shape != result.shape or value.dtype != numpy_dtype(result.dtype):
        raise CheckError("the value is not of the node's type", where=type(op).__name__,
                         why=f"{type_of(value)} instead of {result}")  # fmt: skip
    return value


def _evaluate(op: g.Op, operands: Sequence[np.ndarray], result: TensorType) -> np.ndarray:
    match op:
        case g.Elementwise(fn):
            return apply_scalar(fn, operands, result.dtype)
        case g.Contract():
            return contract(op, operands[0], operands[1], result.dtype)
        case g.Reduce():
            return _reduce(op, operands[0], result)
        case g.ReduceWindow():
            return reduce_window(op, operands[0], result.dtype)
        case g.Reshape():
            return operands[0].reshape(result.shape)
        case g.Transpose(perm):
            return operands[0].transpose(perm)
        case g.Slice():
            return index.slice_of(op, operands[0], result.shape)
        case g.Pad():
            return index.pad(op, operands[0], result.shape)
        case g.Broadcast():
            return np.broadcast_to(operands[0], result.shape)
        case g.Concat(axis):
            return np.concatenate(operands, axis=axis)
        case g.Gather():
            return index.gather(op, operands[0], operands[1])
        case g.GatherElements():
            return index.gather_elements(op, operands[0], operands[1])
        case g.GatherND():
            return index.gather_nd(op, operands[0], operands[1])
        case g.ScatterElements():
            return index.scatter_elements(op, operands[0], operands[1], operands[2])
        case g.ScatterND():
            return index.scatter_nd(op, operands[0], operands[1], operands[2])
        case g.Scan():
            return index.scan(op, operands[0])
        case g.TopK():
            return index.top_k(op, operands[0])
        case g.Iota():
            return index.iota(op, result.shape, numpy_dtype(result.dtype))
        case g.Input() | g.Constant():
            raise CheckError("an input or a constant is not computed", where=str(op))
    assert_never(op)


def _reduce(op: g.Reduce, x: np.ndarray, result: TensorType) -> np.ndarray:
    if op.kind in ("argmax", "argmin"):
        pick = np.argmax if op.kind == "argmax" else np.argmin
        axis = op.axes[0]
        chosen = pick(np.flip(x, axis), axis=axis) if op.last else pick(x, axis=axis)
        return np.asarray(x.shape[axis] - 1 - chosen if op.last else chosen).astype(np.int64, copy=False)
    work = np.dtype(np.float32) if result.dtype in HALVES else x.dtype
    x = x.astype(work, copy=False)
    extra = {"dtype": work} if op.kind in ("sum", "prod") else {}
    with np.errstate(all="ignore"):
        out = FOLDS[op.kind](x, axis=op.axes, initial=start_of(op.kind, x.dtype), **extra)
        return np.asarray(out).astype(numpy_dtype(result.dtype), copy=False)


def _last_uses(graph: Graph) -> dict[int, int]:
    """For each value that an output needs: the node that uses it last (one past the end for an output)."""
    last = {number: len(graph.nodes) for _, number in graph.outputs}
    for number in range(len(graph.nodes) - 1, -1, -1):
        if number in last:
            for operand in graph.nodes[number].inputs:
                last.setdefault(operand, number)
    return last


def _refuse_unknown(graph: Graph, feeds: Mapping[str, np.ndarray]) -> None:
    names = {node.op.name for node in graph.nodes if isinstance(node.op, g.Input)}
    unknown = set(feeds) - names
    if unknown:
        raise UserError("no such input", where=listed(unknown), todo=f"The inputs are {listed(names)}")


def _feed(name: str, expected: TensorType, feeds: Mapping[str, np.ndarray]) -> np.ndarray:
    if name not in feeds:
        raise UserError("the input is missing", where=name, todo=f"Give {expected.dtype} of shape {expected.shape}")
    array = np.asarray(feeds[name])
    if array.shape != expected.shape or array.dtype != numpy_dtype(expected.dtype):
        raise UserError("the input has the wrong type", where=name, why=f"{array.dtype} of shape {array.shape} given",
                        todo=f"Give {expected.dtype} of shape {expected.shape}")  # fmt: skip
    return array
