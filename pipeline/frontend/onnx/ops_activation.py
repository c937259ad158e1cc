"""Activation functions, each written as elementwise primitives."""

from __future__ import annotations

from pipeline.frontend.onnx.call import Call
from pipeline.frontend.onnx.operators import operator
from pipeline.frontend.onnx.tensor import Tensor


@operator("Relu", 1, 6, 13, 14)
def relu(call: Call) -> Tensor:
    return call.operand(0).fn("max", 0)


@operator("LeakyRelu", 1, 6, 16)
def leaky_relu(call: Call) -> Tensor:
    x = call.operand(0)
    return x.fn("lt", 0).where(x * call.number("alpha", 0.01), x)


@operator("PRelu", 7, 9, 16)
def parametric_relu(call: Call) -> Tensor:
    """The slope broadcasts to the data, never the other way."""
    x, slope = call.operand(0), call.operand(1)
    return x.fn("lt", 0).where(x * slope, x)


def exponential_minus_one_below_zero(x: Tensor) -> Tensor:
    """exp(min(x, 0)) - 1: zero for positive x, so that no branch overflows."""
    return x.fn("min", 0).fn("exp") - 1


@operator("Elu", 1, 6, 22)
def elu(call: Call) -> Tensor:
    x = call.operand(0)
    return x.fn("lt", 0).where(exponential_minus_one_below_zero(x) * call.number("alpha", 1.0), x)


@operator("Selu", 1, 6, 22)
def selu(call: Call) -> Tensor:
    x = call.operand(0)
    alpha, gamma = call.number("alpha", 1.67326319217681884765625), call.number("gamma", 1.05070102214813232421875)
    return x.fn("gt", 0).where(x * gamma, exponential_minus_one_below_zero(x) * (alpha * gamma))


@operator("Celu", 12, 28)
def celu(call: Call) -> Tensor:
    x, alpha = call.operand(0), call.number("alpha", 1.0)
    return x.fn("max", 0) + ((x * (1.0 / alpha)).fn("min", 0).fn("exp") - 1) * alpha


@operator("ThresholdedRelu", 10, 22)
def thresholded_relu(call: Call) -> Tensor:
    x = call.operand(0)
    return x.fn("gt", call.number("alpha", 1.0)).where(x, x.like(0))


@operator("HardSigmoid", 1, 6, 22)
def hard_sigmoid(call: Call) -> Tensor:
    return clamped_line(call.operand(0), call.number("alpha", 0.2), call.number("beta", 0.5))


@operator("HardSwish", 14, 22)
def hard_swish(call: Call) -> Tensor:
    x = call.operand(0)
    return x * clamped_line(x, 1.0 / 6.0, 0.5)


def clamped_line(x: Tensor, slope: float, offset: float) -> Tensor:
    return (x * slope + offset).fn("max", 0).fn("min", 1)


@operator("Softplus", 1, 22)
def softplus(call: Call) -> Tensor:
    return log_of_one_plus_exp(call.operand(0))


def log_of_one_plus_exp(x: Tensor) -> Tensor:
    """max(x, 0) + log(1 + exp(-|x|)): no overflow for large x."""
    return x.fn("max", 0) + ((-x.fn("abs")).fn("exp") + 1).fn("log")


@operator("Softsign", 1, 22)
def softsign(call: Call) -> Tensor:
    x = call.operand(0)
    return x / (x.fn("abs") + 1)


@operator("Mish", 18, 22)
def mish(call: Call) -> Tensor:
    x = call.operand(0)
    return x * log_of_one_plus_exp(x).fn("tanh")


@operator("Swish", 24)
def swish(call: Call) -> Tensor:
    x, alpha = call.operand(0), call.number("alpha", 1.0)
    return x * (x if alpha == 1.0 else x * alpha).fn("sigmoid")


@operator("Gelu", 20)
@operator("Gelu", 1, domain="com.microsoft")
def gelu(call: Call) -> Tensor:
    x = call.operand(0)
    return x.of(x.builder.gelu(x.value, call.get("approximate", "none")))


@operator("Shrink", 9)
def shrink(call: Call) -> Tensor:
    """Integers are compared and moved in floating point, because the threshold may be a fraction."""
    given, bias, lambd = call.operand(0), call.number("bias", 0.0), call.number("lambd", 0.5)
    x = given if given.is_float else given.cast("float32")
    inside = x.fn("gt", lambd).where(x - bias, x.like(0))
    return x.fn("lt", -lambd).where(x + bias, inside).cast(given.dtype)
