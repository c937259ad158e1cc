"""Contractions and window reductions on NumPy arrays: strided views, then one batched matrix product."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from pipeline.ir.graph import AffineMap, Contract, DType, ReduceWindow, Shape
from pipeline.ir.graph_types import FLOATS, HALVES, dtype_name, numpy_dtype

CHUNK = 1 << 25  # elements of an unfolded operand that may exist at a time
BATCH = 1 << 20  # elements of both operands of a batched product that are taken at a time
LARGE_WINDOW = 64  # elements, above which a loop over them in Python costs more than it saves
EXACT = 1 << 53  # integers below this are exact in float64


def contract(op: Contract, lhs: np.ndarray, rhs: np.ndarray, dtype: DType) -> np.ndarray:
    """The sum of products, accumulated in float32 or wider, or in wrapping integers."""
    out = numpy_dtype(dtype)
    extents = (*op.spatial, *op.reduced)
    if dtype in FLOATS:
        work = np.dtype(np.float32) if dtype in HALVES | {"float32"} else np.dtype(np.float64)
        if np.float64 in (lhs.dtype, rhs.dtype):
            work = np.dtype(np.float64)
    else:
        largest = _largest(lhs) * _largest(rhs) * max(1, math.prod(op.reduced))
        work = np.dtype(np.float64) if largest < EXACT else np.result_type(out, np.int32)
    with np.errstate(all="ignore"):
        views = window(lhs, op.lhs, extents), window(rhs, op.rhs, extents)
        result = _product(op, *views, extents, lambda piece: piece.astype(work, copy=False), work)
        if dtype not in FLOATS and work.kind == "f":
            result = result.astype(np.int64)  # exact; the next conversion wraps
        return result.astype(out, copy=False)


def magnitudes(op: Contract, lhs: np.ndarray, rhs: np.ndarray, work: np.dtype[Any]) -> np.ndarray:
    """The sum of the products' magnitudes, in a floating dtype."""
    extents = (*op.spatial, *op.reduced)
    views = window(lhs, op.lhs, extents), window(rhs, op.rhs, extents)
    return _product(op, *views, extents, lambda piece: np.abs(piece.astype(work, copy=False)), work)


def window(x: np.ndarray, affine: AffineMap, extents: Shape) -> np.ndarray:
    """A view of `x` with one axis per iteration variable; a variable that is not in the map has stride 0."""
    if 0 in extents:
        return np.zeros(extents, x.dtype)
    strides = [0] * len(extents)
    for dim, stride in zip(affine, x.strides, strict=True):
        for variable, coefficient in dim.terms:
            strides[variable] += coefficient * stride
    start = x[tuple(slice(dim.offset, None) for dim in affine)] if affine else x
    return np.lib.stride_tricks.as_strided(start, extents, strides, writeable=False)


def reduce_window(op: ReduceWindow, x: np.ndarray, dtype: DType) -> np.ndarray:
    """Combines one window position at a time over the whole output, or whole windows where they are large."""
    if dtype in HALVES:
        x = x.astype(np.float32)
    view = window(x, op.operand, (*op.spatial, *op.reduced))
    combine = {"sum": np.add, "max": np.maximum, "min": np.minimum}[op.kind]
    with np.errstate(all="ignore"):
        if math.prod(op.reduced) > LARGE_WINDOW:
            out = np.asarray(combine.reduce(view, axis=tuple(range(len(op.spatial), view.ndim)), dtype=x.dtype))
        else:
            out = np.full(op.spatial, start_of(op.kind, x.dtype), x.dtype)
            for position in np.ndindex(*op.reduced):
                combine(out, view[(..., *position)], out=out)
        return out.astype(numpy_dtype(dtype), copy=False)


def start_of(kind: str, dtype: np.dtype[Any]) -> float | int | bool:
    """The value that leaves every other as it is under the combination."""
    if kind in ("sum", "prod"):
        return 0 if kind == "sum" else 1
    if dtype_name(dtype) in FLOATS:
        return -math.inf if kind == "max" else math.inf
    if dtype == np.bool_:
        return kind == "min"
    limits = np.iinfo(dtype)
    return int(limits.min if kind == "max" else limits.max)


def _largest(x: np.ndarray) -> int:
    return max(abs(int(x.max())), abs(int(x.min()))) if x.size else 0


def _used(view: np.ndarray, variables: Sequence[int]) -> tuple[int, ...]:
    """The variables that the view depends on; those of extent 1 count as absent."""
    return tuple(v for v in variables if view.strides[v] != 0 and view.shape[v] > 1)


def _only(view: np.ndarray, variables: Collection[int]) -> np.ndarray:
    """The view at index 0 of all other variables, which it does not depend on (their axes stay, with extent 1)."""
    return view[tuple(slice(None) if v in variables else slice(0, 1) for v in range(view.ndim))]


def _product(
    op: Contract, lhs: np.ndarray, rhs: np.ndarray, extents: Shape, take: Callable[[np.ndarray], np.ndarray],
    work: np.dtype[Any],
) -> np.ndarray:  # fmt: skip
    """Over views of both operands with one axis for each variable.

    take  makes of a piece of an operand what is multiplied, in the dtype `work`: fresh memory for all of it costs more
    """
    spatial = range(len(op.spatial))
    reduced = range(len(op.spatial), len(extents))
    if 0 in extents:
        return np.zeros(op.spatial, work)
    in_lhs, in_rhs = set(_used(lhs, range(len(extents)))), set(_used(rhs, range(len(extents))))
    alone = {v for v in reduced if (v in in_lhs) != (v in in_rhs)}
    if alone and not (np.isfinite(_only(lhs, in_lhs)).all() and np.isfinite(_only(rhs, in_rhs)).all()):
        # inf * a + inf * b is not inf * (a + b): here no operand is summed before it is multiplied
        in_lhs, in_rhs = in_lhs | alone, in_rhs | alone
    lhs, rhs = _only(lhs, in_lhs), _only(rhs, in_rhs)
    only_lhs = tuple(v for v in reduced if v in in_lhs - in_rhs)
    only_rhs = tuple(v for v in reduced if v in in_rhs - in_lhs)
    lhs = take(lhs).sum(axis=only_lhs, keepdims=True, dtype=work) if only_lhs else lhs
    rhs = take(rhs).sum(axis=only_rhs, keepdims=True, dtype=work) if only_rhs else rhs
    times = math.prod(extents[v] for v in reduced if v not in in_lhs | in_rhs)
    batch = tuple(v for v in spatial if v in in_lhs & in_rhs)
    rows = tuple(v for v in spatial if v in in_lhs - in_rhs)
    columns = tuple(v for v in spatial if v in in_rhs - in_lhs)
    inner = tuple(v for v in reduced if v in in_lhs & in_rhs)

    out = np.empty([extents[v] for v in (*batch, *rows, *columns)], work)
    for some in _batches(batch, extents, max(lhs.size, rhs.size)):
        for row_part in _parts(lhs, rows, batch, extents):
            left = take(_matrices(lhs[_index(lhs, row_part | some)], batch, rows, inner))
            for column_part in _parts(rhs, columns, batch, extents):
                right = take(_matrices(rhs[_index(rhs, column_part | some)], batch, columns, inner)).swapaxes(-1, -2)
                part = row_part | column_part | some
                where = tuple(part.get(v, slice(None)) for v in (*batch, *rows, *columns))
                out[where] = np.matmul(left, right).reshape(out[where].shape)
    if times != 1:
        out *= out.dtype.type(times)
    order = (*batch, *rows, *columns)
    full = out.transpose([order.index(v) for v in spatial if v in order])
    full = full.reshape([extents[v] if v in order else 1 for v in spatial])
    return np.ascontiguousarray(np.broadcast_to(full, op.spatial)) if op.spatial else full


def _batches(batch: Sequence[int], extents: Shape, elements: int) -> list[dict[int, slice]]:
    """Pieces along the longest variable of a batch, so that each has at most `BATCH` elements of an operand."""
    if not batch or elements <= BATCH:
        return [{}]
    along = max(batch, key=lambda v: extents[v])
    step = max(1, BATCH * extents[along] // elements)
    return [{along: slice(i, i + step)} for i in range(0, extents[along], step)]


def _parts(view: np.ndarray, free: Sequence[int], batch: Sequence[int], extents: Shape) -> list[dict[int, slice]]:
    """Pieces along one variable, so that the unfolded operand of each stays below `CHUNK` elements."""
    pieces = -(-math.prod(view.shape) // CHUNK)
    candidates = [v for v in (*free, *batch) if extents[v] > 1]
    if pieces <= 1 or not free or not candidates:
        return [{}]
    along = max(free, key=lambda v: extents[v])
    step = max(1, extents[along] // pieces)
    return [{along: slice(i, i + step)} for i in range(0, extents[along], step)]


def _index(view: np.ndarray, part: dict[int, slice]) -> tuple[slice, ...]:
    return tuple(part.get(v, slice(None)) for v in range(view.ndim))


def _matrices(view: np.ndarray, batch: Sequence[int], free: Sequence[int], inner: Sequence[int]) -> np.ndarray:
    """The view as (batch, free, inner), laid out so that the innermost axis in memory stays innermost in the copy."""
    sizes = [math.prod(view.shape[v] for v in group) for group in (batch, free, inner)]

    def closeness(group: Sequence[int]) -> tuple[int, int]:
        return min(((abs(view.strides[v]), -view.shape[v]) for v in group), default=(1 << 62, 0))

    others = [v for v in range(view.ndim) if v not in (*batch, *free, *inner)]
    if closeness(free) < closeness(inner):
        order = (*batch, *inner, *free, *others)
        return view.transpose(order).reshape(sizes[0], sizes[2], sizes[1]).swapaxes(-1, -2)
    return view.transpose((*batch, *free, *inner, *others)).reshape(*sizes)
