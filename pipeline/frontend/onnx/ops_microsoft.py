"""Operators of the domain com.microsoft, which ONNX Runtime's optimizer writes for common patterns."""

from __future__ import annotations

from pipeline.frontend.onnx.call import Call
from pipeline.frontend.onnx.operators import operator
from pipeline.frontend.onnx.ops_linear import product
from pipeline.frontend.onnx.ops_norm import normalized, root_mean_square_normalized
from pipeline.frontend.onnx.tensor import Tensor

DOMAIN = "com.microsoft"


@operator("FusedMatMul", 1, domain=DOMAIN)
def fused_matmul(call: Call) -> Tensor:
    a, b = call.operand(0), call.operand(1)
    if call.get("transBatchA", 0) or call.get("transBatchB", 0):
        call.refuse("FusedMatMul with transposed batch dimensions is not supported")
    a = swapped(a) if call.get("transA", 0) else a
    b = swapped(b) if call.get("transB", 0) else b
    out, alpha = product(a, b), call.number("alpha", 1.0)
    return out if alpha == 1.0 else out * alpha


def swapped(x: Tensor) -> Tensor:
    """With the last two dimensions exchanged; a vector stays."""
    return x if x.rank < 2 else x.transpose((*range(x.rank - 2), x.rank - 1, x.rank - 2))


@operator("BiasGelu", 1, domain=DOMAIN)
def bias_gelu(call: Call) -> Tensor:
    x = call.operand(0) + call.operand(1)
    return x.of(x.builder.gelu(x.value))


@operator("FastGelu", 1, domain=DOMAIN)
def fast_gelu(call: Call) -> Tensor:
    x, bias = call.operand(0), call.optional(1)
    x = x if bias is None else x + bias
    return x.of(x.builder.gelu(x.value, "tanh"))


@operator("QuickGelu", 1, domain=DOMAIN)
def quick_gelu(call: Call) -> Tensor:
    x = call.operand(0)
    return x * (x * call.number("alpha", 1.702)).fn("sigmoid")


@operator("SkipLayerNormalization", 1, domain=DOMAIN)
def skip_layer_normalization(call: Call) -> tuple[Tensor | None, ...]:
    """The sum of input, skip and bias, normalised; the fourth result is the sum itself."""
    gamma, beta = call.operand(2), call.optional(3)
    total = summed(call, 4)
    out = normalized(total, (total.rank - 1,), call.number("epsilon", 1e-12)) * gamma
    return (out if beta is None else out + beta), None, None, total


@operator("SkipSimplifiedLayerNormalization", 1, domain=DOMAIN)
def skip_simplified_layer_normalization(call: Call) -> tuple[Tensor | None, ...]:
    total = summed(call, 3)
    out = root_mean_square_normalized(total, (total.rank - 1,), call.number("epsilon", 1e-12))
    return out * call.operand(2), None, None, total


def summed(call: Call, bias_position: int) -> Tensor:
    total, bias = call.operand(0) + call.operand(1), call.optional(bias_position)
    return total if bias is None else total + bias


@operator("SimplifiedLayerNormalization", 1)
def simplified_layer_normalization(call: Call) -> Tensor:
    """In the default domain, although ONNX does not define it."""
    x = call.operand(0)
    axes = tuple(range(call.axis(x.rank, -1), x.rank))
    return root_mean_square_normalized(x, axes, call.number("epsilon", 1e-5)) * call.operand(1)
