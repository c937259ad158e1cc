"""Operators that reduce axes, and running sums along one."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

from pipeline.frontend.onnx.call import Call
from pipeline.frontend.onnx.dtypes import integer_range
from pipeline.frontend.onnx.operators import operator
from pipeline.frontend.onnx.ops_shape import axes_of
from pipeline.frontend.onnx.tensor import Tensor

Reduction = Callable[[Tensor, tuple[int, ...], bool], Tensor]


def extreme(kind: str, x: Tensor, axes: tuple[int, ...], keepdims: bool) -> Tensor:
    """Of bool by way of uint8; of nothing the neutral element."""
    if x.dtype == "bool":
        return extreme(kind, x.cast("uint8"), axes, keepdims).cast("bool")
    if 0 in (x.shape[axis] for axis in axes):
        low, high = (-math.inf, math.inf) if x.is_float else integer_range(x.dtype)
        shape = [1 if axis in axes else extent for axis, extent in enumerate(x.shape)]
        kept = [extent for axis, extent in enumerate(x.shape) if axis not in axes]
        return x.like(low if kind == "max" else high).broadcast(shape if keepdims else kept)
    return x.reduce(kind, axes, keepdims)


def log_sum_exp(x: Tensor, axes: tuple[int, ...], keepdims: bool) -> Tensor:
    """Relative to the largest element, so that no exponential overflows; an infinite one is taken as 0."""
    if 0 in (x.shape[axis] for axis in axes):
        return x.fn("exp").reduce("sum", axes, keepdims).fn("log")
    x = x if x.is_float else x.cast("float64")
    peak = x.reduce("max", axes, True)
    peak = peak.fn("isinf").where(peak.like(0), peak)
    total = (x - peak).fn("exp").reduce("sum", axes, True).fn("log") + peak
    return total if keepdims else total.reshape([extent for i, extent in enumerate(x.shape) if i not in axes])


def through_float(reduction: Reduction, x: Tensor, axes: tuple[int, ...], keepdims: bool) -> Tensor:
    """Roots and logarithms of integers are taken in floating point."""
    return reduction(x if x.is_float else x.cast("float64"), axes, keepdims).cast(x.dtype)


def simple(kind: str, x: Tensor, axes: tuple[int, ...], keepdims: bool) -> Tensor:
    return x.reduce(kind, axes, keepdims)


def norm_2(x: Tensor, axes: tuple[int, ...], keepdims: bool) -> Tensor:
    return (x * x).reduce("sum", axes, keepdims).fn("sqrt")


def reduction(kind: Reduction, call: Call) -> Tensor:
    """No axes means all of them, or none where noop_with_empty_axes is set."""
    x, axes = call.operand(0), axes_of(call, 1)
    if not axes:
        axes = [] if call.get("noop_with_empty_axes", 0) else list(range(x.rank))
    return kind(x, tuple(sorted({call.dimension(axis, x.rank) for axis in axes})), bool(call.get("keepdims", 1)))


KINDS: tuple[tuple[str, Reduction, tuple[int, ...]], ...] = (
    ("ReduceSum", functools.partial(simple, "sum"), (1, 11, 13)),
    ("ReduceProd", functools.partial(simple, "prod"), (1, 11, 13, 18)),
    ("ReduceMean", functools.partial(simple, "mean"), (1, 11, 13, 18)),
    ("ReduceMax", functools.partial(extreme, "max"), (1, 11, 12, 13, 18, 20)),
    ("ReduceMin", functools.partial(extreme, "min"), (1, 11, 12, 13, 18, 20)),
    ("ReduceL1", lambda x, axes, keep: x.fn("abs").reduce("sum", axes, keep), (1, 11, 13, 18)),
    ("ReduceL2", functools.partial(through_float, norm_2), (1, 11, 13, 18)),
    ("ReduceSumSquare", lambda x, axes, keep: (x * x).reduce("sum", axes, keep), (1, 11, 13, 18)),
    (
        "ReduceLogSum",
        functools.partial(through_float, lambda x, axes, keep: x.reduce("sum", axes, keep).fn("log")),
        (1, 11, 13, 18, 28),
    ),
    ("ReduceLogSumExp", functools.partial(through_float, log_sum_exp), (1, 11, 13, 18, 28)),
)
for _name, _kind, _since in KINDS:
    operator(_name, *_since)(functools.partial(reduction, _kind))


@operator("ArgMax", 1, 11, 12, 13)
@operator("ArgMin", 1, 11, 12, 13)
def arg_extreme(call: Call) -> Tensor:
    x = call.operand(0)
    axis = call.axis(x.rank, 0)
    kind, last = "argmax" if call.op == "ArgMax" else "argmin", bool(call.get("select_last_index", 0))
    at = x.of(x.builder.reduce(kind, x.value, (axis,), False, last=last))
    return at.unsqueeze(axis) if call.get("keepdims", 1) else at


@operator("CumSum", 11, 14)
@operator("CumProd", 26)
def running(call: Call) -> Tensor:
    x = call.operand(0)
    axis = call.dimension(call.integers(1, "axis")[0], x.rank)
    exclusive, reverse = bool(call.get("exclusive", 0)), bool(call.get("reverse", 0))
    kind = "sum" if call.op == "CumSum" else "prod"
    return x.of(x.builder.scan(kind, x.value, axis, exclusive, reverse))


@operator("TopK", 1)
def top_k_by_attribute(call: Call) -> tuple[Tensor, Tensor]:
    return first_k(call, int(call.need("k")))


@operator("TopK", 10, 11, 24)
def top_k(call: Call) -> tuple[Tensor, Tensor]:
    return first_k(call, call.integers(1, "k")[0])


def first_k(call: Call, k: int) -> tuple[Tensor, Tensor]:
    x = call.operand(0)
    axis, largest = call.axis(x.rank, -1), bool(call.get("largest", 1))
    if k > x.shape[axis]:
        call.refuse(f"TopK of {k} elements", why=f"axis {axis} has {x.shape[axis]}")
    values, indices = x.builder.topk(x.value, k, axis, largest)
    return x.of(values), x.of(indices)
