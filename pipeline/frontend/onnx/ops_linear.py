"""Matrix products and convolutions."""

from __future__ import annotations

import math

from pipeline.frontend.onnx.call import Call
from pipeline.frontend.onnx.operators import operator
from pipeline.frontend.onnx.tensor import Tensor
from pipeline.frontend.onnx.windows import windows_of


@operator("MatMul", 1, 9, 13)
def matmul(call: Call) -> Tensor:
    return product(call.operand(0), call.operand(1))


def product(a: Tensor, b: Tensor) -> Tensor:
    """As numpy.matmul: a vector is a row on the left and a column on the right, and leading dimensions broadcast."""
    return a.of(a.builder.matmul(a.value, b.value))


@operator("Gemm", 7, 9, 11, 13)
def gemm(call: Call) -> Tensor:
    a, b, c = call.operand(0), call.operand(1), call.optional(2)
    a = a.transpose((1, 0)) if call.get("transA", 0) else a
    b = b.transpose((1, 0)) if call.get("transB", 0) else b
    out, alpha, beta = product(a, b), call.get("alpha", 1.0), call.get("beta", 1.0)
    out = out if alpha == 1.0 else out * alpha
    if c is None or beta == 0.0:
        return out
    return out + (c if beta == 1.0 else c * beta)


@operator("Conv", 1, 11, 22)
def conv(call: Call) -> Tensor:
    return with_bias(convolution(call, call.operand(0), call.operand(1)), call.optional(2))


def convolution(call: Call, x: Tensor, weight: Tensor) -> Tensor:
    """Data (batch, channels, *extents) with weights (outputs, channels / group, *kernel); no bias."""
    if x.rank < 3 or weight.rank != x.rank:
        call.refuse(
            f"{call.op} of data {list(x.shape)} with weights {list(weight.shape)}", why="their ranks do not fit"
        )
    w = windows_of(call, x.shape[2:], weight.shape[2:])
    return x.of(
        x.builder.conv(
            x.value,
            weight.value,
            strides=w.strides,
            pads_low=w.low,
            pads_high=w.high,
            dilations=w.dilations,
            groups=int(call.get("group", 1)),
        )
    )


def with_bias(x: Tensor, bias: Tensor | None) -> Tensor:
    return x if bias is None else x + bias.along(1, x.rank)


@operator("ConvTranspose", 1, 11, 22)
def conv_transpose(call: Call) -> Tensor:
    """output_padding and output_shape become explicit padding: what is cropped at either end of the full result."""
    x, weight = call.operand(0), call.operand(1)
    extents, kernel, rank = x.shape[2:], weight.shape[2:], x.rank - 2
    strides, dilations = tuple(call.get("strides", (1,) * rank)), tuple(call.get("dilations", (1,) * rank))
    extra, auto = tuple(call.get("output_padding", (0,) * rank)), call.get("auto_pad", "NOTSET")
    pads = list(call.get("pads", (0,) * 2 * rank))
    wanted = list(call.get("output_shape", ()))[-rank:]
    if auto in ("SAME_UPPER", "SAME_LOWER") and not wanted:
        wanted = [extent * stride for extent, stride in zip(extents, strides, strict=True)]
    if auto == "VALID":
        pads = [0] * 2 * rank
    for axis, size in enumerate(wanted):
        reach = (kernel[axis] - 1) * dilations[axis] + 1
        total = strides[axis] * (extents[axis] - 1) + extra[axis] + reach - size
        half = total // 2
        pads[axis], pads[axis + rank] = (half, total - half) if auto == "SAME_UPPER" else (total - half, half)
    value = x.builder.conv_transpose(
        x.value,
        weight.value,
        strides=strides,
        pads_low=tuple(pads[:rank]),
        pads_high=tuple(pads[rank:]),
        output_padding=extra,
        dilations=dilations,
        groups=int(call.get("group", 1)),
    )
    return with_bias(x.of(value), call.optional(2))


def shifted(x: Tensor, zero_point: Tensor | None, axis: int | None = None) -> Tensor:
    """An integer tensor in int32, less its zero point, which may be a vector along `axis`."""
    wide = x.cast("int32")
    if zero_point is None:
        return wide
    zero = zero_point.cast("int32")
    if zero.rank == 1 and axis is not None and zero.shape[0] > 1:
        zero = zero.along(axis % x.rank, x.rank)
    elif math.prod(zero.shape) == 1:
        zero = zero.reshape(())
    return wide - zero


@operator("MatMulInteger", 10)
def matmul_integer(call: Call) -> Tensor:
    a, b = call.operand(0), call.operand(1)
    return product(shifted(a, call.optional(2), -2), shifted(b, call.optional(3), -1))


@operator("ConvInteger", 10)
def conv_integer(call: Call) -> Tensor:
    """Padding counts as the zero point, which is 0 once the zero point is taken off."""
    return convolution(call, shifted(call.operand(0), call.optional(2)), shifted(call.operand(1), call.optional(3), 0))
