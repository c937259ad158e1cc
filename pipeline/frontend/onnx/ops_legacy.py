"""Operators as they were before opset 7, when broadcasting was an attribute and test mode too."""

from __future__ import annotations

import functools

from pipeline.frontend.onnx.call import Call
from pipeline.frontend.onnx.operators import Result, operator
from pipeline.frontend.onnx.ops_linear import gemm
from pipeline.frontend.onnx.ops_norm import batch_normalization
from pipeline.frontend.onnx.ops_pool import average_pool
from pipeline.frontend.onnx.ops_shape import reshaped
from pipeline.frontend.onnx.tensor import Tensor

BINARY: tuple[tuple[str, str, tuple[int, ...]], ...] = (
    ("Add", "add", (1, 6)), ("Sub", "sub", (1, 6)), ("Mul", "mul", (1, 6)), ("Div", "div", (1, 6)),
    ("And", "and", (1,)), ("Or", "or", (1,)), ("Xor", "xor", (1,)), ("Equal", "eq", (1,)), ("Greater", "gt", (1,)),
    ("Less", "lt", (1,)), ("Pow", "pow", (1,)),
)  # fmt: skip


def binary(fn: str, call: Call) -> Tensor:
    """The second operand is laid over the first from dimension `axis` on, or over its last dimensions."""
    a, b = call.operand(0), call.operand(1)
    if not call.get("broadcast", 0) and a.shape != b.shape:
        call.refuse(f"{call.op} of {list(a.shape)} and {list(b.shape)}", why="the attribute broadcast is not set")
    if "axis" in call.attributes:
        behind = a.rank - call.axis(a.rank, 0) - b.rank
        b = b.reshape((*b.shape, *[1] * behind))
    return a.fn(fn, b)


for _name, _fn, _since in BINARY:
    operator(_name, *_since)(functools.partial(binary, _fn))

operator("Gemm", 1, 6)(gemm)
operator("AveragePool", 1)(average_pool)


@operator("PRelu", 1, 6)
def parametric_relu(call: Call) -> Tensor:
    """One slope for all, or one per channel."""
    x, slope = call.operand(0), call.operand(1)
    slope = slope.along(1, x.rank) if slope.rank == 1 and slope.shape[0] > 1 else slope
    return x.fn("lt", 0).where(x * slope, x)


@operator("BatchNormalization", 1, 6)
def tested_batch_normalization(call: Call) -> Result:
    if not call.get("is_test", 0):
        call.refuse("BatchNormalization in training mode", todo="Export the model for inference")
    return batch_normalization(call)


@operator("Dropout", 1, 6)
def dropout(call: Call) -> tuple[Tensor, ...]:
    x = call.operand(0)
    return x, x.like(1).broadcast(x.shape)


@operator("Reshape", 1)
def reshape(call: Call) -> Tensor:
    return reshaped(call, [int(extent) for extent in call.get("shape", ())])
