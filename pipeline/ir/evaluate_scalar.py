"""The scalar functions of `Elementwise`, vectorised, accurate to the dtype they are computed in."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pipeline.ir.graph import DType
from pipeline.ir.graph_types import FLOATS, HALVES, dtype_name, numpy_dtype

ERF_NODES_PER_UNIT = 32  # Taylor expansions around i/32, so |h| <= 1/64
ERF_TERMS = 10  # the remainder is below 2**-60 of the value
ERF_FLAT = 6.0  # 1 - erf(6) is 2e-17: one in double precision
ERF_CHUNK = 1 << 15  # temporaries stay in the cache


def apply_scalar(fn: str, operands: Sequence[np.ndarray], dtype: DType) -> np.ndarray:
    """`fn` on each element; halves are computed in float32, integers wrap."""
    if fn == "cast":
        return cast_to(operands[0], dtype)
    if fn == "where":
        return np.where(*operands)
    if dtype_name(operands[0].dtype) in HALVES:
        operands = [x.astype(np.float32) for x in operands]
    with np.errstate(all="ignore"):
        result = FUNCTIONS[fn](*operands)
        return np.asarray(result).astype(numpy_dtype(dtype), copy=False)


def cast_to(x: np.ndarray, dtype: DType) -> np.ndarray:
    """Conversion; a float outside the range of an integer type saturates, NaN becomes 0, fractions are cut off."""
    target = numpy_dtype(dtype)
    if dtype == "bool":
        return np.asarray(x != 0)
    with np.errstate(all="ignore"):
        if dtype_name(x.dtype) not in FLOATS or dtype in FLOATS:
            return x.astype(target, copy=False)
        wide = x.astype(np.float64)
        limits = np.iinfo(target)
        inside = (wide > float(limits.min) - 1) & (wide < float(limits.max) + 1)
        if limits.bits == 64:  # here the additions of one are lost in rounding
            inside = (wide >= float(limits.min)) & (wide < float(limits.max))
        clipped = np.where(wide < 0, limits.min, limits.max)
        result = np.where(inside, np.where(inside, wide, 0).astype(target), clipped.astype(target))
        return np.asarray(np.where(np.isnan(wide), target.type(0), result))


def erf(x: np.ndarray) -> np.ndarray:
    """The error function, in float64 to about one unit in the last place."""
    flat = np.ascontiguousarray(x, dtype=np.float64).reshape(-1)
    out = np.empty_like(flat)
    for begin in range(0, flat.size, ERF_CHUNK):
        part = flat[begin : begin + ERF_CHUNK]
        size = np.minimum(np.abs(part), ERF_FLAT)
        size = np.where(np.isnan(size), 0.0, size)
        node = np.rint(size * ERF_NODES_PER_UNIT).astype(np.intp)
        h = size - node / ERF_NODES_PER_UNIT
        value = ERF_TABLE[ERF_TERMS - 1].take(node)
        for row in ERF_TABLE[ERF_TERMS - 2 :: -1]:
            value *= h
            value += row.take(node)
        value = np.copysign(value, part)
        out[begin : begin + ERF_CHUNK] = np.where(np.isnan(part), np.nan, value)
    return out.reshape(np.shape(x)).astype(np.result_type(x, np.float32), copy=False)


def _erf_table() -> np.ndarray:
    """Taylor coefficients of erf at the nodes, one row a power.

    g = erf' satisfies g'(x) = -2 x g(x), so (n + 1) g[n+1] = -2 x0 g[n] - 2 g[n-1].
    """
    table = np.zeros((ERF_TERMS, int(ERF_FLAT * ERF_NODES_PER_UNIT) + 1))
    for i in range(table.shape[1]):
        x0 = i / ERF_NODES_PER_UNIT
        slope = [2 / math.sqrt(math.pi) * math.exp(-x0 * x0)]
        for n in range(ERF_TERMS - 2):
            slope.append((-2 * x0 * slope[n] - 2 * (slope[n - 1] if n else 0.0)) / (n + 1))
        table[0, i] = math.erf(x0)
        for n, value in enumerate(slope):
            table[n + 1, i] = value / (n + 1)
    return table


ERF_TABLE = _erf_table()


def _is_float(x: np.ndarray) -> bool:
    return dtype_name(x.dtype) in FLOATS


def _div(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Integers truncate towards zero; division by zero gives 0."""
    if _is_float(a):
        return np.asarray(a / b)
    quotient = np.floor_divide(a, b)
    exact = quotient * b == a
    return np.asarray(quotient + ((b != 0) & ~exact & ((a < 0) != (b < 0))).astype(a.dtype))


def _pow(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """A negative power of an integer is its reciprocal, truncated: not 0 only for 1 and -1."""
    if _is_float(a) or a.dtype.kind == "u":
        return np.asarray(np.power(a, b))
    inverse = np.where(a == 1, 1, np.where(a == -1, np.where(b % 2 == 0, 1, -1), 0)).astype(a.dtype)
    return np.where(b < 0, inverse, np.power(a, np.maximum(b, 0)))


def _rsqrt(x: np.ndarray) -> np.ndarray:
    return np.asarray(1 / np.sqrt(x))


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return np.asarray(1 / (1 + np.exp(-x)))


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "neg": np.negative, "abs": np.abs, "sign": np.sign, "exp": np.exp, "log": np.log, "sqrt": np.sqrt, "rsqrt": _rsqrt,
    "reciprocal": lambda x: 1 / x, "tanh": np.tanh, "sigmoid": _sigmoid, "erf": erf, "sin": np.sin, "cos": np.cos,
    "tan": np.tan, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "sinh": np.sinh, "cosh": np.cosh,
    "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh, "floor": np.floor, "ceil": np.ceil, "round": np.rint,
    "not": np.logical_not, "isnan": np.isnan, "isinf": np.isinf, "identity": lambda x: x,
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": _div, "mod": np.mod, "fmod": np.fmod, "pow": _pow,
    "max": np.maximum, "min": np.minimum, "and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor,
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip
