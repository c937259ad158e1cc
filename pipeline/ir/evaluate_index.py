"""Views, gathers, scatters, scans and sorting on NumPy arrays, from the definitions in `graph.py`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from pipeline.ir import graph as g
from pipeline.ir.evaluate_product import start_of
from pipeline.ir.graph import Shape

COMBINE_AT: dict[str, Any] = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}
ACCUMULATE: dict[str, Any] = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}


def slice_of(op: g.Slice, x: np.ndarray, shape: Shape) -> np.ndarray:
    index = []
    for start, stride, size in zip(op.starts, op.strides, shape, strict=True):
        stop = start + stride * size
        index.append(slice(0, 0) if size == 0 else slice(start, None if stop < 0 else stop, stride))
    return x[tuple(index)]


def pad(op: g.Pad, x: np.ndarray, shape: Shape) -> np.ndarray:
    """Spreads the elements, writes them into a filled tensor, and crops where an end is negative."""
    value: float | int = op.value
    if x.dtype.kind in "iu":
        limits = np.iinfo(x.dtype)
        value = int(limits.min if value < limits.min else limits.max if value > limits.max else value)
    spread = [n + max(0, n - 1) * mid for n, mid in zip(x.shape, op.interior, strict=True)]
    whole = [max(0, lo) + n + max(0, hi) for lo, n, hi in zip(op.low, spread, op.high, strict=True)]
    out = np.full(whole, value, x.dtype)
    inside = tuple(slice(max(0, lo), max(0, lo) + n, mid + 1)
                   for lo, n, mid in zip(op.low, spread, op.interior, strict=True))  # fmt: skip
    out[inside] = x
    crop = tuple(slice(max(0, -lo), max(0, -lo) + size) for lo, size in zip(op.low, shape, strict=True))
    return out[crop]


def gather(op: g.Gather, data: np.ndarray, indices: np.ndarray) -> np.ndarray:
    return np.take(data, _inside(indices, data.shape[op.axis]), axis=op.axis)


def gather_elements(op: g.GatherElements, data: np.ndarray, indices: np.ndarray) -> np.ndarray:
    return np.asarray(data[_along(indices, op.axis, data.shape)])


def gather_nd(op: g.GatherND, data: np.ndarray, indices: np.ndarray) -> np.ndarray:
    batch, depth = op.batch_dims, indices.shape[-1]
    groups, count = math.prod(data.shape[:batch]), math.prod(indices.shape[batch:-1])
    flat = data.reshape(groups, *data.shape[batch:])
    tuples = indices.reshape(groups, count, depth)
    group = np.broadcast_to(np.arange(groups)[:, None], (groups, count))
    parts = [_inside(tuples[..., i], flat.shape[1 + i]) for i in range(depth)]
    return np.asarray(flat[(group, *parts)].reshape(indices.shape[:-1] + data.shape[batch + depth :]))


def scatter_elements(op: g.ScatterElements, data: np.ndarray, indices: np.ndarray, updates: np.ndarray) -> np.ndarray:
    return _scatter(data, _along(indices, op.axis, data.shape), updates, op.reduction)


def scatter_nd(op: g.ScatterND, data: np.ndarray, indices: np.ndarray, updates: np.ndarray) -> np.ndarray:
    depth = indices.shape[-1]
    return _scatter(data, tuple(_inside(indices[..., i], data.shape[i]) for i in range(depth)), updates, op.reduction)


def scan(op: g.Scan, x: np.ndarray) -> np.ndarray:
    values = np.flip(x, op.axis) if op.reverse else x
    if op.exclusive and x.shape[op.axis]:
        first = np.full_like(values.take([0], axis=op.axis), start_of(op.kind, x.dtype))
        values = np.concatenate([first, values.take(range(x.shape[op.axis] - 1), axis=op.axis)], axis=op.axis)
    with np.errstate(all="ignore"):
        out = ACCUMULATE[op.kind].accumulate(values, axis=op.axis, dtype=x.dtype)
    return np.flip(out, op.axis) if op.reverse else out


def top_k(op: g.TopK, x: np.ndarray) -> np.ndarray:
    """Stable: of equals the lower index first, for the largest too (hence the two flips)."""
    if op.largest:
        count = x.shape[op.axis]
        order = count - 1 - np.flip(np.argsort(np.flip(x, op.axis), axis=op.axis, kind="stable"), op.axis)
    else:
        order = np.argsort(x, axis=op.axis, kind="stable")
    chosen = order.take(range(op.k), axis=op.axis)
    return chosen.astype(np.int64) if op.part == "indices" else np.take_along_axis(x, chosen, axis=op.axis)


def iota(op: g.Iota, shape: Shape, dtype: np.dtype[Any]) -> np.ndarray:
    column = np.arange(shape[op.axis]).astype(dtype).reshape([-1 if i == op.axis else 1 for i in range(len(shape))])
    return np.broadcast_to(column, shape)


def _inside(indices: np.ndarray, size: int) -> np.ndarray:
    """Negative indices count from the end; what is still outside is clipped."""
    wide = indices.astype(np.int64)
    return np.clip(np.where(wide < 0, wide + size, wide), 0, max(0, size - 1))


def _along(indices: np.ndarray, axis: int, shape: Shape) -> tuple[np.ndarray, ...]:
    grid: list[np.ndarray] = list(np.ogrid[tuple(slice(n) for n in indices.shape)])
    grid[axis] = _inside(indices, shape[axis])
    return tuple(grid)


def _scatter(data: np.ndarray, index: Sequence[np.ndarray], updates: np.ndarray, reduction: str) -> np.ndarray:
    out = np.array(data)
    with np.errstate(all="ignore"):
        if reduction == "none":
            out[tuple(index)] = updates
        else:
            COMBINE_AT[reduction].at(out, tuple(index), updates)
    return out
