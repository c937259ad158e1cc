"""How errors of operands pass through contractions, reductions, views, gathers, scatters, scans and sorting."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from types import EllipsisType
from typing import assert_never

import numpy as np

from pipeline.ir import graph as g
from pipeline.ir.evaluate import evaluate_node
from pipeline.ir.evaluate_product import contract, magnitudes
from pipeline.ir.graph import TensorType
from pipeline.ir.graph_types import dtype_name
from pipeline.verification.error_scalar import Array, Error, both, either_zero, scalar_error
from pipeline.verification.rounding import accumulator, format_of, sum_factor

# Elements of one operation that are looked at together: what is made of them on the way stays in caches. Fresh memory
# for each step would cost several times what the arithmetic does.
PIECE = 1 << 13
Piece = tuple[slice | EllipsisType, ...]
LEAST_SQUARED = 1e-16  # numbers from here on have squares well inside float32's normal range
POLES = {"reciprocal": 0, "div": 1, "rsqrt": 0, "log": 0, "pow": 0}  # the operand whose zeros become infinities
NEAR_THE_END = 8.0  # units of roundoff beyond the largest number that still count as that number


def node_error(op: g.Op, values: Sequence[Array], errors: Sequence[Error], result: Array, type_: TensorType) -> Error:
    """The bound for `result`, the value of `op` on exact `values`, in a program whose operands are off by `errors`.

    Infinity where nothing can be said: a choice near a tie, a number near the end of the dtype's range. Where the exact
    value is not finite, 0: a program must give the same infinity, or a NaN for a NaN.
    """
    if all(error is None for error in errors) and format_of(type_.dtype) is None:
        return None
    errors = tuple(error if error is None or np.any(error) else None for error in errors)
    with np.errstate(all="ignore"):
        if isinstance(op, g.Elementwise):
            return _of_elements(op, values, errors, result, type_)
        return _settled(op, values, errors, result, type_)


def _settled(op: g.Op, values: Sequence[Array], errors: Sequence[Error], result: Array, type_: TensorType) -> Error:
    error = _rule(op, values, errors, result, type_)
    return None if error is None else _settle(op, error, values, errors, result, type_)


def _of_elements(
    op: g.Elementwise, values: Sequence[Array], errors: Sequence[Error], result: Array, type_: TensorType
) -> Error:
    """The same where each element depends on its own operands alone."""

    def settled(piece: Piece) -> Error:
        def part(array: Array) -> Array:
            return array if array.ndim == 0 else np.broadcast_to(array, result.shape)[piece]

        off = [None if error is None else part(error) for error in errors]
        return _settled(op, [part(value) for value in values], off, result[piece], type_)

    return _by_pieces(result.shape, settled)


def _by_pieces(shape: tuple[int, ...], make: Callable[[Piece], Error]) -> Error:
    """What `make` gives for each piece, together; None stands for zeros."""
    if math.prod(shape) <= PIECE:
        return make((...,))
    made: Error = None
    for piece in _pieces(shape):
        error = make(piece)
        if error is None:
            continue
        if made is None:
            made = np.zeros(shape, error.dtype)
        made[piece] = error
    return made


def _pieces(shape: tuple[int, ...]) -> Iterator[Piece]:
    """Blocks that cover an array, in order, of `PIECE` elements at most."""
    inner = math.prod(shape[1:])
    if inner > PIECE:
        for first in range(shape[0]):
            yield from ((slice(first, first + 1), *rest) for rest in _pieces(shape[1:]))
        return
    step = max(1, PIECE // max(inner, 1))
    for first in range(0, shape[0], step):
        yield (slice(first, first + step),)


def _settle(
    op: g.Op, error: Array, values: Sequence[Array], errors: Sequence[Error], result: Array, type_: TensorType
) -> Error:
    kind = format_of(type_.dtype)
    if result.dtype.kind != "f":
        return np.broadcast_to(error, result.shape)
    given = np.broadcast_to(error, result.shape)
    unknown: Array | bool = False
    if not np.isfinite(result).all():
        for operand in errors:
            if operand is not None:
                wild = np.isinf(operand)
                unknown = unknown | (wild if isinstance(op, g.Elementwise) else bool(wild.any()))
        if isinstance(op, g.Elementwise) and kind is not None and (at := POLES.get(op.fn)) is not None:
            off = errors[at]
            if off is not None:  # which infinity, and whether it is one, depends on what a zero was rounded from
                unknown = unknown | ((values[at] == 0) & (off > kind.subnormal))
    lost = np.broadcast_to(unknown, result.shape)

    def settled(piece: Piece) -> Array:
        error, exact = given[piece], result[piece]
        error = np.where(np.isnan(error), np.inf, error)
        if not np.isfinite(exact).all():
            error = np.where(np.isfinite(exact), error, np.where(lost[piece], np.inf, 0.0))
        if kind is not None:
            # An overflow: the program has an infinity where the exact value is a large number. The largest number
            # itself, which exporters write for minus infinity in masks, stays what it is when little is added to it.
            end = kind.largest * (1.0 + NEAR_THE_END * kind.unit)
            size = np.abs(exact)
            error = np.where(np.isfinite(exact) & ((size > kind.largest) | (size + error > end)), np.inf, error)
        return error

    return _by_pieces(result.shape, settled)


def _rule(op: g.Op, values: Sequence[Array], errors: Sequence[Error], result: Array, type_: TensorType) -> Error:
    match op:
        case g.Elementwise(fn):
            return scalar_error(fn, values, errors, result, type_.dtype)
        case g.Contract():
            return _contract(op, values, errors, result, type_)
        case g.Reduce("argmax" | "argmin"):
            return _arg(op, values[0], errors[0], result)
        case g.Reduce() | g.ReduceWindow() | g.Scan():
            return _combined(op, values[0], errors[0], result, type_)
        case g.Reshape() | g.Transpose() | g.Slice() | g.Broadcast() | g.Concat():
            return (
                _moved(op, [_full(e, v) for e, v in zip(errors, values, strict=True)], type_)
                if any_of(errors)
                else None
            )
        case g.Pad():
            return _moved(replace(op, value=0.0), [_full(errors[0], values[0])], type_) if any_of(errors) else None
        case g.Gather() | g.GatherElements() | g.GatherND():
            if errors[1] is not None:
                return np.full(result.shape, np.inf)
            return None if errors[0] is None else _moved(op, [errors[0], values[1]], type_)
        case g.ScatterElements() | g.ScatterND():
            return _scatter(op, values, errors, result, type_)
        case g.TopK():
            return _top(op, values[0], errors[0], result)
        case g.Input() | g.Constant() | g.Iota():
            return None
    assert_never(op)


def any_of(errors: Sequence[Error]) -> bool:
    return any(error is not None for error in errors)


def _full(error: Error, value: Array) -> Array:
    return np.zeros(value.shape) if error is None else np.broadcast_to(error, value.shape)


def _moved(op: g.Op, operands: Sequence[Array], type_: TensorType) -> Array:
    return evaluate_node(op, operands, TensorType(type_.shape, "float64"))


def _contract(
    op: g.Contract, values: Sequence[Array], errors: Sequence[Error], result: Array, type_: TensorType
) -> Error:
    if format_of(type_.dtype) is None:
        return np.full(result.shape, np.inf) if any_of(errors) else None
    kind = accumulator(type_.dtype)
    # Bounds need few digits: float32 halves the cost, except for programs in float64.
    work = np.dtype(np.float64 if type_.dtype == "float64" else np.float32)
    size = magnitudes(op, values[0], values[1], work)
    terms = math.prod(op.reduced)
    passed = [
        _root_of_squares(op, error, np.abs(values[1 - position].astype(work, copy=False)), position)
        for position, error in enumerate(errors) if error is not None
    ]  # fmt: skip

    def bound(piece: Piece) -> Array:
        magnitude = size[piece].astype(np.float64)
        error = sum_factor(terms) * kind.unit * magnitude + terms * kind.subnormal
        error = both(error, _stored(result[piece], type_))
        for one in passed:
            error = both(error, one[piece])
        return np.where(magnitude > kind.largest, np.inf, error)

    return _by_pieces(result.shape, bound)


def _stored(result: Array, type_: TensorType) -> Array:
    """The rounding of a sum when it is stored."""
    kind = format_of(type_.dtype)
    assert kind is not None
    return 2 * kind.unit * np.abs(result) + kind.subnormal


def _root_of_squares(op: g.Contract, error: Array, size: Array, position: int) -> Array:
    """√ Σ (error · size)² for the error of operand `position`; scaled, so that no square overflows, and in float64
    where one would vanish in float32: far below the largest probability of a softmax there are others, off by less.

    Where a size is not finite, neither is the result, and the error there does not matter.
    """
    if not np.isfinite(size.max(initial=0.0)):
        size = np.where(np.isfinite(size), size, size.dtype.type(0))
    finite = np.isfinite(error)
    known = error if finite.all() else np.where(finite, error, 0.0)
    scales = [float(array.max(initial=0.0)) or 1.0 for array in (known, size)]
    if 1e-12 < scales[1] < 1e12:  # spares large weights a pass
        scales[1] = 1.0
    least = _least(known) / scales[0], _least(size) / scales[1]
    if size.dtype == np.float32 and min(*least, math.prod(least)) < LEAST_SQUARED:
        size = size.astype(np.float64)
    scaled = size if scales[1] == 1.0 else size / size.dtype.type(scales[1])
    pair = [np.square((known / scales[0]).astype(size.dtype)), np.square(scaled)]
    pair = pair if position == 0 else pair[::-1]
    root = np.sqrt(_products(op, pair[0], pair[1]).astype(np.float64)) * (scales[0] * scales[1])
    if finite.all():
        return root
    flags = [(~finite).astype(size.dtype), np.ones(size.shape, size.dtype)]
    flags = flags if position == 0 else flags[::-1]
    return np.where(_products(op, flags[0], flags[1]) > 0, np.inf, root)


def _least(array: Array) -> float:
    """The least positive number; infinity where there is none."""
    return float(np.min(array, where=array > 0, initial=np.inf))


def _products(op: g.Contract, lhs: Array, rhs: Array) -> Array:
    return contract(op, lhs, rhs, dtype_name(lhs.dtype))


def _combined(
    op: g.Reduce | g.ReduceWindow | g.Scan, x: Array, error: Error, result: Array, type_: TensorType
) -> Error:
    kind = format_of(type_.dtype)
    if kind is None:
        return None if error is None else np.full(result.shape, np.inf)
    double = TensorType(type_.shape, "float64")
    terms = _terms(op, x)
    match op.kind:
        case "max" | "min":
            own = None
            if not result.all():  # zeros of either sign among what is reduced
                highest = replace(op, kind="max")
                plus, minus = (
                    evaluate_node(highest, [((x == 0) & (np.signbit(x) == negative)).astype(np.float64)], double)
                    for negative in (False, True)
                )
                own = either_zero(np.where(plus > 0, 0.0, 1.0), np.where(minus > 0, -0.0, 1.0), result, kind)
            if error is None:
                return own
            low, high = (evaluate_node(op, [x + sign * error], double) for sign in (-1, 1))
            passed = np.maximum(np.abs(high - result), np.abs(result - low))
            return passed if own is None else np.maximum(passed, own)
        case "sum":
            size = evaluate_node(op, [np.abs(x)], double)
            work = accumulator(type_.dtype)
            own = sum_factor(terms) * work.unit * size + kind.subnormal
            own = np.where(size > work.largest, np.inf, both(own, _stored(result, type_)))
            if error is None:
                return own
            return both(own, np.sqrt(evaluate_node(op, [np.square(_full(error, x))], double)))
        case "prod":
            # Relative errors add; a factor of zero hides its relative error, and then nothing is said if it has one.
            own = (sum_factor(terms) + 2) * kind.unit * np.abs(result) + terms * kind.subnormal
            if error is None:
                return own
            relative = np.square(_full(error, x) / np.abs(x))
            relative = np.where(np.isnan(relative), 0.0, relative)
            total = evaluate_node(replace(op, kind="sum"), [relative], double)
            return both(own, np.where(np.isinf(total), np.inf, np.sqrt(total) * np.abs(result)))
    raise AssertionError(op.kind)


def _terms(op: g.Reduce | g.ReduceWindow | g.Scan, x: Array) -> int:
    match op:
        case g.Reduce(_, axes):
            return math.prod(x.shape[axis] for axis in axes)
        case g.ReduceWindow():
            return math.prod(op.reduced)
        case g.Scan(_, axis):
            return x.shape[axis]
    assert_never(op)


def _arg(op: g.Reduce, x: Array, error: Error, result: Array) -> Error:
    """Another element may win where it comes as near to the winner as their errors together reach."""
    if error is None:
        return None
    axis = op.axes[0]
    toward = 1.0 if op.kind == "argmax" else -1.0
    chosen = np.expand_dims(result, axis)
    error = np.broadcast_to(error, x.shape)
    floor = np.take_along_axis(toward * x, chosen, axis) - np.take_along_axis(error, chosen, axis)
    rivals = toward * x + error >= floor
    np.put_along_axis(rivals, chosen, False, axis)
    shaky = rivals & ((error > 0) | (np.take_along_axis(error, chosen, axis) > 0))
    return np.where(shaky.any(axis=axis), np.inf, 0.0)


def _top(op: g.TopK, x: Array, error: Error, result: Array) -> Error:
    if error is None:
        return None
    error = np.broadcast_to(error, x.shape)
    if op.part == "values":
        # Sorted values move by no more than the largest error does.
        return np.broadcast_to(error.max(axis=op.axis, keepdims=True, initial=0.0), result.shape)
    order = evaluate_node(replace(op, k=x.shape[op.axis], part="indices"), [x], TensorType(x.shape, "int64"))
    values, errors = np.take_along_axis(x, order, op.axis), np.take_along_axis(error, order, op.axis)
    gap = np.abs(np.diff(values, axis=op.axis))
    reach = np.take(errors, range(1, x.shape[op.axis]), op.axis) + np.take(errors, range(x.shape[op.axis] - 1), op.axis)
    close = (gap <= reach) & (reach > 0)
    edge = np.zeros([1 if i == op.axis else n for i, n in enumerate(x.shape)], bool)
    shaky = np.concatenate([edge, close], op.axis) | np.concatenate([close, edge], op.axis)
    return np.where(np.take(shaky, range(op.k), op.axis), np.inf, 0.0)


def _scatter(op: g.ScatterElements | g.ScatterND, values: Sequence[Array], errors: Sequence[Error], result: Array,
             type_: TensorType) -> Error:  # fmt: skip
    if errors[1] is not None:
        return np.full(result.shape, np.inf)
    kind = format_of(type_.dtype)
    if kind is None:
        return None if not any_of(errors) else np.full(result.shape, np.inf)
    data, updates = _full(errors[0], values[0]), _full(errors[2], values[2])
    match op.reduction:
        case "none":
            return _moved(op, [data, values[1], updates], type_) if any_of(errors) else None
        case "max" | "min":
            return _moved(replace(op, reduction="max"), [data, values[1], updates], type_) if any_of(errors) else None
    adding = replace(op, reduction="add")
    terms = _moved(adding, [np.ones(values[0].shape), values[1], np.ones(values[2].shape)], type_)
    steps = np.minimum(terms, sum_factor(int(terms.max(initial=1.0))))
    if op.reduction == "add":
        size = _moved(adding, [np.abs(values[0]), values[1], np.abs(values[2])], type_)
        squares = _moved(adding, [np.square(data), values[1], np.square(updates)], type_)
        return both(steps * kind.unit * size, np.sqrt(squares)) + kind.subnormal
    relative = [np.square(np.nan_to_num(e / np.abs(v), nan=0.0, posinf=np.inf))
                for e, v in ((data, values[0]), (updates, values[2]))]  # fmt: skip
    total = _moved(adding, [relative[0], values[1], relative[1]], type_)
    passed = np.where(np.isinf(total), np.inf, np.sqrt(total) * np.abs(result))
    return both(steps * kind.unit * np.abs(result), passed) + kind.subnormal
