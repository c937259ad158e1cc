"""Quantised operators: between floating point and scaled integers, per tensor, per axis and per block."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pipeline.frontend.onnx.call import Call
from pipeline.frontend.onnx.dtypes import dtype_of, integer_range
from pipeline.frontend.onnx.operators import operator
from pipeline.frontend.onnx.ops_linear import convolution, product, shifted
from pipeline.frontend.onnx.tensor import Tensor
from pipeline.ir.graph import DType, Shape


def spread(factor: Tensor, shape: Shape, axis: int, block: int) -> Tensor:
    """A scale or zero point against the data: one number, one per index of `axis`, or one per block along it."""
    if math.prod(factor.shape) == 1 and not block:
        return factor.reshape(())
    if not block:
        return factor.along(axis, len(shape))
    blocks: Sequence[int] = factor.shape
    repeated = factor.unsqueeze(axis + 1).broadcast([*blocks[: axis + 1], block, *blocks[axis + 1 :]])
    repeated = repeated.reshape([*blocks[:axis], blocks[axis] * block, *blocks[axis + 1 :]])
    return repeated.part(axis, 0, shape[axis])


def saturated(x: Tensor, zero: Tensor | None, dtype: DType) -> Tensor:
    """Rounded half to even, moved by the zero point, clipped to the range of the dtype."""
    low, high = integer_range(dtype)
    rounded = x.fn("round")
    moved = rounded if zero is None else rounded + zero.cast(x.dtype)
    return moved.fn("max", low).fn("min", high).cast(dtype)


@operator("QuantizeLinear", 10, 13, 19, 21, 23, 24, 25, 28)
def quantize(call: Call) -> Tensor:
    x, scale, zero = call.operand(0), call.operand(1), call.optional(2)
    axis, block = (call.axis(x.rank, 1) if x.rank > 1 else 0), int(call.get("block_size", 0))
    named = int(call.get("output_dtype", 0))
    dtype = zero.dtype if zero is not None else dtype_of(named, call.where) if named else "uint8"
    x = x.cast("float32") if x.dtype != "float64" else x
    scale = spread(scale, x.shape, axis, block).cast(x.dtype)
    return saturated(x / scale, None if zero is None else spread(zero, x.shape, axis, block), dtype)


@operator("DequantizeLinear", 10, 13, 19, 21, 23, 24, 25, 28)
def dequantize(call: Call) -> Tensor:
    x, scale, zero = call.operand(0), call.operand(1), call.optional(2)
    axis, block = (call.axis(x.rank, 1) if x.rank > 1 else 0), int(call.get("block_size", 0))
    named = int(call.get("output_dtype", 0))
    dtype = dtype_of(named, call.where) if named else scale.dtype
    wide = x.cast("int32")
    if zero is not None:
        wide = wide - spread(zero, x.shape, axis, block).cast("int32")
    return (wide.cast("float32") * spread(scale, x.shape, axis, block).cast("float32")).cast(dtype)


@operator("QLinearMatMul", 10, 21)
def quantized_matmul(call: Call) -> Tensor:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = (call.operand(i) for i in range(8))
    total = product(shifted(a, a_zero, -2), shifted(b, b_zero, -1))
    left, right = spread_matrix(a_scale, -2), spread_matrix(b_scale, -1)
    scale = left.cast("float32") * right.cast("float32") / spread_matrix(y_scale, -2).cast("float32")
    return saturated(total.cast("float32") * scale, spread_matrix(y_zero, -2), y_zero.dtype)


def spread_matrix(factor: Tensor, axis: int) -> Tensor:
    """A factor of a matrix: one number, or one per row (-2) or column (-1)."""
    if math.prod(factor.shape) == 1:
        return factor.reshape(())
    return factor.along(2 + axis, 2) if factor.rank == 1 else factor


@operator("QLinearConv", 10)
def quantized_conv(call: Call) -> Tensor:
    """The bias is int32 in units of x_scale * w_scale."""
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero = (call.operand(i) for i in range(8))
    bias = call.optional(8)
    total = convolution(call, shifted(x, x_zero), shifted(w, w_zero, 0))
    if bias is not None:
        total = total + bias.along(1, total.rank)
    scale = x_scale.reshape(()) * w_scale / y_scale.reshape(())
    return saturated(total.cast("float32") * spread(scale, total.shape, 1, 0), y_zero.reshape(()), y_zero.dtype)
