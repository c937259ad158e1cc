"""Operators that make a tensor from a shape or from numbers: shapes themselves, ranges, constants, masks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pipeline.frontend.onnx.call import Call
from pipeline.frontend.onnx.dtypes import dtype_of
from pipeline.frontend.onnx.operators import operator
from pipeline.frontend.onnx.stored import stored_array
from pipeline.frontend.onnx.tensor import Tensor
from pipeline.ir.graph import DType


@operator("Constant", 1, 9, 11, 12, 13, 19, 21, 23, 24, 25)
def constant_node(call: Call) -> Tensor:
    name: str
    value: Any
    name, value = next(iter(call.attributes.items()), ("", None))
    match name:
        case "value":
            data, dtype = stored_array(value, call.where)
            return call.constant(data, dtype)
        case "value_float" | "value_floats":
            return call.constant(value, "float32")
        case "value_int" | "value_ints":
            return call.constant(value, "int64")
        case _:
            call.refuse(
                f"a Constant of kind {name or 'none'} is not supported", why="it is not a dense tensor of numbers"
            )


@operator("Shape", 1, 13, 15, 19, 21, 23, 24, 25)
def shape(call: Call) -> Tensor:
    x = call.operand(0)
    return call.constant(np.array(x.shape[call.get("start", 0) : call.get("end", None)], np.int64), "int64")


@operator("Size", 1, 13, 19, 21, 23, 24, 25)
def size(call: Call) -> Tensor:
    return call.constant(math.prod(call.operand(0).shape), "int64")


@operator("ConstantOfShape", 9, 20, 21, 23, 24, 25)
def constant_of_shape(call: Call) -> Tensor:
    value: Any = call.get("value")
    dtype: DType = "float32"
    data = np.zeros(1)
    if value is not None:
        data, dtype = stored_array(value, call.where)
    return call.constant(data.reshape(()), dtype).broadcast(call.integers(0, "extents"))


@operator("Range", 11, 27)
def arange(call: Call) -> Tensor:
    start, limit, delta = (call.known(position, "bounds").reshape(-1)[0] for position in range(3))
    count = max(math.ceil((limit - start) / delta), 0)
    return call.constant(start + np.arange(count) * delta, call.operand(0).dtype)


@operator("EyeLike", 9, 22)
def eye_like(call: Call) -> Tensor:
    x = call.operand(0)
    dtype = dtype_of(int(call.get("dtype")), call.where) if "dtype" in call.attributes else x.dtype
    return call.constant(np.eye(x.shape[0], x.shape[1], k=int(call.get("k", 0))), dtype)


@operator("Trilu", 14)
def triangle(call: Call) -> Tensor:
    """Upper or lower triangle of the last two dimensions, by a mask that is known at import."""
    x = call.operand(0)
    k = call.integers(1, "diagonal")[0] if call.optional(1) is not None else 0
    rows, columns = np.ogrid[: x.shape[-2], : x.shape[-1]]
    mask = columns - rows >= k if call.get("upper", 1) else columns - rows <= k
    return call.constant(mask, "bool").where(x, x.like(0))


@operator("NonZero", 9, 13)
def non_zero(call: Call) -> Tensor:
    return call.constant(np.array(np.nonzero(call.known(0, "positions of the elements that are not zero"))), "int64")


@operator("Unique", 11, 28)
def unique(call: Call) -> tuple[Tensor, ...]:
    """Of known elements only, since the number of results depends on them; sorted, or by first appearance."""
    data, axis = call.known(0, "unique elements"), call.get("axis")
    values, first, inverse, counts = np.unique(
        data, return_index=True, return_inverse=True, return_counts=True, axis=axis
    )
    inverse = inverse.reshape(-1)
    if not call.get("sorted", 1):
        order = np.argsort(first, kind="stable")
        place = np.argsort(order, kind="stable")
        values = np.take(values, order, axis=0 if axis is None else axis)
        first, counts, inverse = first[order], counts[order], place[inverse]
    rest = (call.constant(part, "int64") for part in (first, inverse, counts))
    return (call.constant(values, call.operand(0).dtype), *rest)
