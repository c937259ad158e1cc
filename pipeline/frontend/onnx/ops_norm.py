"""Normalisations and softmax, written as reductions and elementwise primitives."""

from __future__ import annotations

import functools
import math

import numpy as np

from pipeline.frontend.onnx.call import Call
from pipeline.frontend.onnx.operators import operator
from pipeline.frontend.onnx.ops_pool import powered, root
from pipeline.frontend.onnx.tensor import Tensor
from pipeline.ir.graph_types import HALVES


@operator("Softmax", 13)
def softmax(call: Call) -> Tensor:
    x = call.operand(0)
    return x.of(x.builder.softmax(x.value, call.axis(x.rank, -1)))


@operator("LogSoftmax", 13)
def log_softmax(call: Call) -> Tensor:
    x = call.operand(0)
    return x.of(x.builder.log_softmax(x.value, call.axis(x.rank, -1)))


@operator("Hardmax", 13)
def hardmax(call: Call) -> Tensor:
    """One at the first of the largest elements along the axis, zero elsewhere."""
    x = call.operand(0)
    return first_largest(call, x, call.axis(x.rank, -1))


def first_largest(call: Call, x: Tensor, axis: int) -> Tensor:
    at = x.reduce("argmax", (axis,), True)
    steps = call.constant(np.arange(x.shape[axis]), "int64").along(axis, x.rank)
    return at.fn("eq", steps).cast(x.dtype)


@operator("Softmax", 1, 11)
@operator("LogSoftmax", 1, 11)
@operator("Hardmax", 1, 11)
def over_flattened(call: Call) -> Tensor:
    """Before opset 13 the axis splits the shape: all dimensions from it on are normalised together."""
    x = call.operand(0)
    axis = call.axis(x.rank, 1)
    if axis == x.rank - 1 and call.op != "Hardmax":
        flat = x
    else:
        flat = x.reshape((math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))
    match call.op:
        case "Softmax":
            out = x.of(x.builder.softmax(flat.value, flat.rank - 1))
        case "LogSoftmax":
            out = x.of(x.builder.log_softmax(flat.value, flat.rank - 1))
        case _:
            out = first_largest(call, flat, 1)
    return out.reshape(x.shape)


@operator("BatchNormalization", 7, 9, 14, 15)
def batch_normalization(call: Call) -> Tensor:
    """Of inference. With known statistics scale and offset fold to two constants per channel."""
    x, scale, bias, mean, variance = (call.operand(position) for position in range(5))
    if call.get("training_mode", 0):
        call.refuse("BatchNormalization in training mode", todo="Export the model for inference")
    factor = scale.cast(variance.dtype) / (variance + call.number("epsilon", 1e-5)).fn("sqrt")
    offset = bias.cast(variance.dtype) - mean * factor
    return x * factor.cast(x.dtype).along(1, x.rank) + offset.cast(x.dtype).along(1, x.rank)


def normalized(x: Tensor, axes: tuple[int, ...], epsilon: float) -> Tensor:
    """(x - mean) / sqrt(variance + epsilon) over `axes`, computed in float32 at least."""
    return x.of(x.builder.normalize(x.value, axes, epsilon)).cast(x.dtype)


@operator("LayerNormalization", 17)
def layer_normalization(call: Call) -> tuple[Tensor, ...]:
    """Over all axes from `axis` on; the other results are the mean and the reciprocal of the deviation."""
    x, scale, bias, epsilon = call.operand(0), call.operand(1), call.optional(2), call.number("epsilon", 1e-5)
    axes = tuple(range(call.axis(x.rank, -1), x.rank))
    out = normalized(x, axes, epsilon) * scale
    wide = x.cast("float32") if x.dtype in HALVES else x
    mean = wide.reduce("mean", axes, True)
    centred = wide - mean
    inverse = ((centred * centred).reduce("mean", axes, True) + epsilon).fn("rsqrt")
    return (out if bias is None else out + bias), mean, inverse


def root_mean_square_normalized(x: Tensor, axes: tuple[int, ...], epsilon: float) -> Tensor:
    """x / sqrt(mean of squares + epsilon) over `axes`, computed in float32 at least."""
    wide = x.cast("float32") if x.dtype in HALVES else x
    mean_square = (wide * wide).reduce("mean", axes, True)
    return (wide * (mean_square + epsilon).fn("rsqrt")).cast(x.dtype)


@operator("RMSNormalization", 23)
def rms_normalization(call: Call) -> Tensor:
    x = call.operand(0)
    axes = tuple(range(call.axis(x.rank, -1), x.rank))
    return root_mean_square_normalized(x, axes, call.number("epsilon", 1e-5)) * call.operand(1)


@operator("InstanceNormalization", 1, 6, 22)
def instance_normalization(call: Call) -> Tensor:
    x, scale, bias = call.operand(0), call.operand(1), call.operand(2)
    out = normalized(x, tuple(range(2, x.rank)), call.number("epsilon", 1e-5))
    return out * scale.along(1, x.rank) + bias.along(1, x.rank)


@operator("GroupNormalization", 18, 21)
def group_normalization(call: Call) -> Tensor:
    """Scale and bias are one number per group in version 18, one per channel from 21 on."""
    x, scale, bias, groups = call.operand(0), call.operand(1), call.operand(2), int(call.need("num_groups"))
    split = x.reshape((x.shape[0], groups, x.shape[1] // groups, *x.shape[2:]))
    out = normalized(split, tuple(range(2, split.rank)), call.number("epsilon", 1e-5))
    if call.since == 18:
        return (out * scale.along(1, split.rank) + bias.along(1, split.rank)).reshape(x.shape)
    return out.reshape(x.shape) * scale.along(1, x.rank) + bias.along(1, x.rank)


@operator("LRN", 1, 13)
def local_response_normalization(call: Call) -> Tensor:
    """x / (bias + alpha / size * sum of squares over `size` neighbouring channels) ^ beta."""
    x, size = call.operand(0), int(call.need("size"))
    before, after = (size - 1) // 2, size - 1 - (size - 1) // 2
    low, high = [0] * x.rank, [0] * x.rank
    low[1], high[1] = before, after
    squares = (x * x).pad(low, high)
    neighbours = [squares.part(1, i, i + x.shape[1]) for i in range(size)]
    window = functools.reduce(Tensor.__add__, neighbours)
    base = window * (call.number("alpha", 1e-4) / size) + call.number("bias", 1.0)
    return x / base.fn("pow", call.number("beta", 0.75))


@operator("MeanVarianceNormalization", 9, 13)
def mean_variance_normalization(call: Call) -> Tensor:
    x = call.operand(0)
    axes = tuple(call.dimension(int(axis), x.rank) for axis in call.get("axes", (0, 2, 3)))
    centred = x - x.reduce("mean", axes, True)
    return centred / ((centred * centred).reduce("mean", axes, True).fn("sqrt") + 1e-9)


@operator("LpNormalization", 1, 22)
def lp_normalization(call: Call) -> Tensor:
    """A vector of zeros stays one."""
    x, p = call.operand(0), int(call.get("p", 2))
    length = root(powered(x, p).reduce("sum", (call.axis(x.rank, -1),), True), p)
    return x / length.fn("eq", 0).where(length.like(1), length)
