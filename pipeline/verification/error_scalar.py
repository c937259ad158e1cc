"""How errors of operands pass through each scalar function, and what the function adds.

An error is an array of bounds on |computed - exact|, or None where the value is exact. Bounds of several operands are
combined as the root of the sum of squares, as those of independent errors: the plain sum, which allows every error to
conspire, grows by a constant factor with every layer of a network and would let anything pass at its end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from pipeline.ir.evaluate_scalar import apply_scalar
from pipeline.ir.graph import DType
from pipeline.ir.graph_types import HALVES
from pipeline.verification.rounding import BASIC_ULPS, MATH_ULPS, Format, format_of

Array = np.ndarray
Error = Array | None

_UNROUNDED = frozenset({"neg", "abs", "identity", "sign", "where", "floor", "ceil", "round", "cast"})
_BASIC = frozenset({"add", "sub", "mul", "div", "sqrt", "reciprocal", "fmod", "mod"})
_ORDERED = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})

# Sums take the errors of their terms for independent. A rounding to a half is a term's largest error by far, evenly
# spread up to the unit: three units are five of its deviations at least, seven for most, so that no sum of many is
# found wrong by chance. A cast that nothing adds up is given three units, too, where one would do.
SPREAD = 3.0


def scalar_error(fn: str, values: Sequence[Array], errors: Sequence[Error], result: Array, dtype: DType) -> Error:
    """The bound for `result`, which is `fn` of the float64 (or integer) `values`. A bool that may flip has the bound 1.

    dtype  what the program under test computes and keeps the result in
    """
    passed = None if all(error is None for error in errors) else _passed(fn, values, errors, result, dtype)
    added = _added(fn, values, result, dtype)
    if passed is None or added is None:
        return added if passed is None else passed
    return both(passed, added)


def _added(fn: str, values: Sequence[Array], result: Array, dtype: DType) -> Error:
    """The rounding of the function itself."""
    kind = format_of(dtype)
    if kind is None:
        return None
    size = np.abs(result)
    if fn in ("max", "min"):
        return either_zero(values[0], values[1], result, kind)
    if fn in _UNROUNDED:
        narrows = fn == "cast" and values[0].dtype != np.bool_
        # a cast from float64 may come from a value of the same dtype; then the bound is an ulp too large
        return (SPREAD if dtype in HALVES else 1) * kind.unit * size + kind.subnormal if narrows else None
    if fn in ("mod", "fmod"):
        return 2 * BASIC_ULPS * kind.unit * (np.abs(values[0]) + np.abs(values[1])) + kind.subnormal
    if fn in _BASIC:
        return 2 * BASIC_ULPS * kind.unit * size + kind.subnormal
    # Results below the smallest normal number may be flushed to zero by a mathematical function.
    return 2 * MATH_ULPS * kind.unit * size + kind.normal


def either_zero(one: Array, other: Array, result: Array, kind: Format) -> Error:
    """Of the extremum of two zeros of different signs, the sign is left open, which 1 / x would tell: IEEE 754 does so
    for maxNum, and so do NumPy, processors and other runtimes. Then the bound is above that of an exact sum of zeros.
    """
    if result.all():
        return None
    open_ = (one == 0) & (other == 0) & (np.signbit(one) != np.signbit(other))
    return np.where(np.broadcast_to(open_, result.shape), 2 * kind.subnormal, 0.0) if open_.any() else None


def _passed(fn: str, values: Sequence[Array], errors: Sequence[Error], result: Array, dtype: DType) -> Array:
    e = [np.zeros((), np.float64) if error is None else error for error in errors]
    if fn in _ORDERED:
        return _flips(values[0].astype(np.float64), values[1].astype(np.float64), e[0] + e[1])
    if fn in _LOGIC:
        return np.broadcast_to(_LOGIC[fn](values, e), result.shape).astype(np.float64)
    if fn == "where":
        return _where(values, e)
    if fn == "cast" and dtype == "bool":
        return ((np.abs(values[0]) <= e[0]) & (e[0] > 0)).astype(np.float64)
    if fn == "cast" and format_of(dtype) is not None:
        return e[0]
    if values[0].dtype.kind in "iub" or result.dtype.kind in "iu":
        # An integer that may be another one: nothing is known of what follows from it.
        shaken = np.zeros(result.shape, bool)
        if fn == "cast":
            low, high = (apply_scalar(fn, [values[0] + sign * e[0]], dtype) for sign in (-1, 1))
            shaken |= low != high
        else:
            for error in e:
                shaken |= error > 0
        return np.where(shaken, np.inf, 0.0)
    rule = _RULES.get(fn)
    if rule is not None:
        return np.asarray(rule(values, e, result))
    return _perturbed(fn, values, e, result)


def both(one: Array, other: Array) -> Array:
    """Two independent errors together. np.hypot would take ten times as long; squares of tiny ones vanish."""
    return np.maximum(np.sqrt(np.square(one) + np.square(other)), np.maximum(one, other))


def _perturbed(fn: str, values: Sequence[Array], e: Sequence[Array], result: Array) -> Array:
    """The change of the result at both ends of each operand's range."""
    total = np.zeros(result.shape)
    for position, error in enumerate(e):
        if error.ndim == 0 and error == 0:
            continue
        worst = np.zeros(result.shape)
        for sign in (-1, 1):
            moved = list(values)
            moved[position] = values[position] + sign * error
            change = np.abs(apply_scalar(fn, moved, "float64") - result)
            worst = np.maximum(worst, np.where(np.isnan(change), np.inf, change))
        total = both(total, worst)
    return total


def _flips(a: Array, b: Array, error: Array) -> Array:
    return ((np.abs(a - b) <= error) & (error > 0)).astype(np.float64)


def _where(values: Sequence[Array], e: Sequence[Array]) -> Array:
    chosen = np.where(values[0], e[1], e[2])
    if not np.any(e[0]):
        return chosen
    apart = np.abs(np.asarray(values[1], np.float64) - np.asarray(values[2], np.float64))
    either = np.maximum(np.maximum(e[1], e[2]), np.where(np.isnan(apart), np.inf, apart))
    return np.where(e[0] > 0, either, chosen)


def _and(values: Sequence[Array], e: Sequence[Array]) -> Array:
    sure = (~values[0] & (e[0] == 0)) | (~values[1] & (e[1] == 0))
    return ~sure & ((e[0] > 0) | (e[1] > 0))


def _or(values: Sequence[Array], e: Sequence[Array]) -> Array:
    sure = (values[0] & (e[0] == 0)) | (values[1] & (e[1] == 0))
    return ~sure & ((e[0] > 0) | (e[1] > 0))


_LOGIC: dict[str, Callable[[Sequence[Array], Sequence[Array]], Array]] = {
    "not": lambda _, e: e[0] > 0,
    "xor": lambda _, e: (e[0] > 0) | (e[1] > 0),
    "and": _and,
    "or": _or,
    "isnan": lambda _, e: ~np.isfinite(e[0]),
    "isinf": lambda _, e: ~np.isfinite(e[0]),
}


def _near(denominator: Array) -> Array:
    """A denominator that its error may bring to zero bounds nothing."""
    return np.where(denominator > 0, denominator, 0.0)


Rule = Callable[[Sequence[Array], Sequence[Array], Array], Array]
# Upper bounds of |f(x ± e) - f(x)|, with v = f(x). They are what `_perturbed` finds, without evaluating f again.
_RULES: dict[str, Rule] = {
    "neg": lambda x, e, v: e[0],
    "abs": lambda x, e, v: e[0],
    "identity": lambda x, e, v: e[0],
    "add": lambda x, e, v: both(e[0], e[1]),
    "sub": lambda x, e, v: both(e[0], e[1]),
    "mul": lambda x, e, v: both(np.abs(x[1]) * e[0], np.abs(x[0]) * e[1]) + e[0] * e[1],
    "div": lambda x, e, v: both(e[0], np.abs(v) * e[1]) / _near(np.abs(x[1]) - e[1]),
    "max": lambda x, e, v: _select(np.maximum, x, e, v),
    "min": lambda x, e, v: _select(np.minimum, x, e, v),
    "exp": lambda x, e, v: _exp(x[0], e[0], v),
    "log": lambda x, e, v: e[0] / _near(x[0] - e[0]),
    "sqrt": lambda x, e, v: np.minimum(np.sqrt(e[0]), e[0] / v),
    "rsqrt": lambda x, e, v: 0.5 * e[0] / _near(x[0] - e[0]) / np.sqrt(_near(x[0] - e[0])),
    "reciprocal": lambda x, e, v: e[0] * np.abs(v) / _near(np.abs(x[0]) - e[0]),
    "tanh": lambda x, e, v: np.minimum(e[0] * (1 - v * v) + e[0] * e[0], 2.0),
    "sigmoid": lambda x, e, v: np.minimum(e[0] * v * (1 - v) + e[0] * e[0], 1.0),
    "erf": lambda x, e, v: np.minimum(1.1283791670955126 * e[0] * np.exp(-x[0] * x[0]) + e[0] * e[0], 2.0),
    "sin": lambda x, e, v: np.minimum(e[0], 2.0),
    "cos": lambda x, e, v: np.minimum(e[0], 2.0),
}


def _exp(x: Array, e: Array, v: Array) -> Array:
    """A large error of a very negative number, such as a mask, still leaves a zero."""
    return np.where(e <= 1.0, v * np.expm1(np.minimum(e, 1.0)), np.exp(x + e))


def _select(pick: Callable[[Array, Array], Array], x: Sequence[Array], e: Sequence[Array], v: Array) -> Array:
    low, high = pick(x[0] - e[0], x[1] - e[1]), pick(x[0] + e[0], x[1] + e[1])
    return np.maximum(np.abs(high - v), np.abs(v - low))
