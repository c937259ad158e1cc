"""Operators that work element by element: arithmetic, comparison, logic, rounding, casts."""

from __future__ import annotations

import functools

import numpy as np

from pipeline.frontend.onnx.call import Call
from pipeline.frontend.onnx.dtypes import UNSIGNED, dtype_of, integer_range
from pipeline.frontend.onnx.operators import operator
from pipeline.frontend.onnx.tensor import Tensor, Value
from pipeline.ir.graph_types import HALVES

UNARY: tuple[tuple[str, str, tuple[int, ...]], ...] = (
    ("Abs", "abs", (1, 6, 13)), ("Neg", "neg", (1, 6, 13)), ("Sign", "sign", (9, 13)), ("Exp", "exp", (1, 6, 13)),
    ("Log", "log", (1, 6, 13)), ("Sqrt", "sqrt", (1, 6, 13)), ("Reciprocal", "reciprocal", (1, 6, 13)),
    ("Tanh", "tanh", (1, 6, 13)), ("Sigmoid", "sigmoid", (1, 6, 13)), ("Erf", "erf", (9, 13)),
    ("Sin", "sin", (7, 22)), ("Cos", "cos", (7, 22)), ("Tan", "tan", (7, 22)), ("Asin", "asin", (7, 22)),
    ("Acos", "acos", (7, 22)), ("Atan", "atan", (7, 22)), ("Sinh", "sinh", (9, 22)), ("Cosh", "cosh", (9, 22)),
    ("Asinh", "asinh", (9, 22)), ("Acosh", "acosh", (9, 22)), ("Atanh", "atanh", (9, 22)),
    ("Floor", "floor", (1, 6, 13)), ("Ceil", "ceil", (1, 6, 13)), ("Round", "round", (11, 22)),
    ("IsNaN", "isnan", (9, 13, 20)), ("Not", "not", (1,)),
)  # fmt: skip
BINARY: tuple[tuple[str, str, tuple[int, ...]], ...] = (
    ("Add", "add", (7, 13, 14)), ("Sub", "sub", (7, 13, 14)), ("Mul", "mul", (7, 13, 14)), ("Div", "div", (7, 13, 14)),
    ("And", "and", (7,)), ("Or", "or", (7,)), ("Xor", "xor", (7,)), ("Equal", "eq", (7, 11, 13, 19)),
    ("Greater", "gt", (7, 9, 13)), ("Less", "lt", (7, 9, 13)), ("GreaterOrEqual", "ge", (12, 16)),
    ("LessOrEqual", "le", (12, 16)),
)  # fmt: skip


FOLDS: tuple[tuple[str, str, tuple[int, ...]], ...] = (
    ("Max", "max", (1, 6, 8, 12, 13)), ("Min", "min", (1, 6, 8, 12, 13)), ("Sum", "add", (1, 6, 8, 13)),
)  # fmt: skip


def unary(fn: str, call: Call) -> Tensor:
    return call.operand(0).fn(fn)


def binary(fn: str, call: Call) -> Tensor:
    return call.operand(0).fn(fn, call.operand(1))


for _name, _fn, _since in UNARY:
    operator(_name, *_since)(functools.partial(unary, _fn))
for _name, _fn, _since in BINARY:
    operator(_name, *_since)(functools.partial(binary, _fn))


def fold(fn: str, call: Call) -> Tensor:
    """An operator of any number of operands, from left to right."""
    return functools.reduce(lambda total, operand: total.fn(fn, operand), call.given())


for _name, _fn, _since in FOLDS:
    operator(_name, *_since)(functools.partial(fold, _fn))


@operator("Mean", 1, 6, 8, 13)
def mean(call: Call) -> Tensor:
    return fold("add", call) / float(len(call.given()))


@operator("Pow", 7, 12, 13, 15)
def power(call: Call) -> Tensor:
    """The result has the dtype of the base; mixed with a float exponent an integer base is raised in floating point."""
    base, exponent = call.operand(0), call.operand(1)
    if base.is_float or not exponent.is_float:
        return base.fn("pow", exponent.cast(base.dtype))
    return base.cast(exponent.dtype).fn("pow", exponent).cast(base.dtype)


@operator("Mod", 10, 13, 28)
def modulo(call: Call) -> Tensor:
    return call.operand(0).fn("fmod" if call.get("fmod", 0) else "mod", call.operand(1))


@operator("Where", 9, 16)
def where(call: Call) -> Tensor:
    return call.operand(0).where(call.operand(1), call.operand(2))


@operator("Clip", 1, 6)
def clip_by_attributes(call: Call) -> Tensor:
    """The bounds default to the ends of float32, so that an infinity is clipped too; halves do not reach them."""
    x = call.operand(0)
    end = None if x.dtype in HALVES else float(np.finfo(np.float32).max)
    low, high = call.get("min", None if end is None else -end), call.get("max", end)
    x = x if low is None else x.fn("max", low)
    return x if high is None else x.fn("min", high)


@operator("Clip", 11, 12, 13)
def clip(call: Call) -> Tensor:
    x, low, high = call.operand(0), call.optional(1), call.optional(2)
    x = x.fn("max", low.reshape(())) if low is not None else x
    return x.fn("min", high.reshape(())) if high is not None else x


@operator("IsInf", 10, 20)
def is_infinite(call: Call) -> Tensor:
    x = call.operand(0)
    negative, positive = call.get("detect_negative", 1), call.get("detect_positive", 1)
    infinite = x.fn("isinf")
    if negative and positive:
        return infinite
    wanted = x.fn("lt" if negative else "gt", 0.0)
    return infinite.fn("and", wanted) if negative or positive else infinite.fn("and", False)


@operator("Cast", 6, 9, 13, 19, 21, 23, 24, 25, 28)
def cast(call: Call) -> Tensor:
    return call.operand(0).cast(dtype_of(int(call.need("to")), call.where))


@operator("CastLike", 15, 19, 21, 23, 24, 25)
def cast_like(call: Call) -> Tensor:
    return call.operand(0).cast(call.operand(1).dtype)


@operator("Identity", 1, 13, 14, 16, 19, 21, 23, 24, 25)
def identity(call: Call) -> Value:
    return call.operands[0] or call.operand(0)


@operator("Dropout", 7, 10, 12, 13, 22)
def dropout(call: Call) -> tuple[Tensor, ...]:
    """Of inference: everything passes. Training is refused unless nothing is dropped."""
    x, training = call.operand(0), call.optional(2)
    if training is not None and call.known(2, "training mode").any():
        ratio = call.optional(1)
        if ratio is None or call.known(1, "ratio").any():
            call.refuse("Dropout in training mode draws random numbers", todo="Export the model for inference")
    return x, x.like(1).cast("bool").broadcast(x.shape)


@operator("BitwiseNot", 18)
def bitwise_not(call: Call) -> Tensor:
    x = call.operand(0)
    return (integer_range(x.dtype)[1] - x) if x.dtype in UNSIGNED else -x - 1


@operator("BitwiseAnd", 18)
@operator("BitwiseOr", 18)
@operator("BitwiseXor", 18)
def bitwise(call: Call) -> Tensor:
    """Of known integers only: the graph has no bitwise primitives."""
    function = {"BitwiseAnd": np.bitwise_and, "BitwiseOr": np.bitwise_or, "BitwiseXor": np.bitwise_xor}[call.op]
    data = function(call.known(0, "bits"), call.known(1, "bits"))
    return call.constant(data, call.operand(0).dtype)


@operator("BitShift", 11, 28)
def bit_shift(call: Call) -> Tensor:
    """A product with a power of two from a table, or a quotient by it, rounded down; a negative amount, or
    one that shifts all bits out, leaves the sign."""
    x, amount = call.operand(0), call.operand(1)
    signed = x.dtype not in UNSIGNED
    left = call.need("direction") == "LEFT"
    powers = np.iinfo(x.dtype).bits - (1 if signed and not left else 0)
    table = call.constant(np.array([1 << i for i in range(powers)], np.uint64), x.dtype)
    at = amount.fn("min", powers - 1).fn("max", 0).cast("int64")
    power_of_two = x.of(x.builder.gather(table.value, at.value, 0))
    gone = x.like(0)
    if left:
        shifted = x * power_of_two
    else:
        shifted = x / power_of_two
        if signed:
            down = x.fn("lt", 0).fn("and", (shifted * power_of_two).fn("ne", x))
            shifted, gone = shifted - down.cast(x.dtype), -x.fn("lt", 0).cast(x.dtype)
    return amount.fn("ge", powers).fn("or", amount.fn("lt", 0)).where(gone, shifted)
