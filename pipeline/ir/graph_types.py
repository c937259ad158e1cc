"""The type of every graph operation: shape and dtype of the result from those of the operands."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any, TypeVar, assert_never, get_args

import ml_dtypes
import numpy as np

from pipeline.errors import CheckError
from pipeline.ir import graph as g
from pipeline.ir.graph import AffineMap, DType, Shape, TensorType

T = TypeVar("T")

DTYPES: tuple[DType, ...] = get_args(DType)
FLOATS = frozenset({"float64", "float32", "float16", "bfloat16"})
HALVES = frozenset({"float16", "bfloat16"})
INTEGERS = frozenset(DTYPES) - FLOATS - {"bool"}

FLOAT_ONLY = frozenset({
    "exp", "log", "sqrt", "rsqrt", "reciprocal", "tanh", "sigmoid", "erf", "sin", "cos", "tan", "asin", "acos", "atan",
    "sinh", "cosh", "asinh", "acosh", "atanh", "floor", "ceil", "round", "isnan", "isinf",
})  # fmt: skip
LOGIC = frozenset({"not", "and", "or", "xor"})
COMPARISON = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})
TO_BOOL = COMPARISON | LOGIC | {"isnan", "isinf"}
REDUCTIONS = ("sum", "max", "min", "prod", "argmax", "argmin")
SCATTER_REDUCTIONS = ("none", "add", "mul", "max", "min")

MOST_BYTES = np.iinfo(np.int64).max
TOO_LARGE = "a tensor is too large"


@cache
def numpy_dtype(dtype: DType) -> np.dtype[Any]:
    """NumPy's dtype object of that name."""
    return np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)


@cache
def dtype_name(dtype: np.dtype[Any]) -> DType:
    """Our name of a NumPy dtype; CheckError for one that graphs do not have. NumPy composes `name` anew each time, and
    interpreters ask for it at each operation of each point."""
    if dtype.name not in DTYPES:
        raise CheckError("no such dtype in graphs", why=f"{dtype.name} is none of {', '.join(DTYPES)}")
    return dtype.name


def type_of(array: np.ndarray) -> TensorType:
    return TensorType(tuple(array.shape), dtype_name(array.dtype))


def refuse_too_large(kind: TensorType, where: str) -> None:
    """Raises a CheckError where a tensor has more bytes than a number of the machine can count."""
    nbytes = math.prod(kind.shape) * numpy_dtype(kind.dtype).itemsize
    if nbytes > MOST_BYTES:
        why = f"{kind.dtype} of shape {list(kind.shape)} has {float(nbytes):.3g} bytes"
        raise CheckError(TOO_LARGE, where=where, why=why)


def promote(dtypes: Sequence[DType]) -> DType:
    """The dtype that holds all of these, by NumPy's rules."""
    return dtypes[0] if len(set(dtypes)) == 1 else dtype_name(np.result_type(*map(numpy_dtype, dtypes)))


def infer(op: g.Op, operands: Sequence[TensorType], *, shape: Shape | None = None,
          dtype: DType | None = None) -> TensorType:  # fmt: skip
    """The type of `op` on operands of these types.

    shape  needed by operations whose size is their own: input, constant, reshape, slice, broadcast, iota
    dtype  needed by input, constant, iota and cast; may widen a contract
    """
    want = _arity(op)
    if want is not None and len(operands) != want:
        raise _error(op, f"{len(operands)} operands given, {want} expected")
    match op:
        case g.Input() | g.Constant():
            if min(_given(op, "shape", shape), default=0) < 0:
                raise _error(op, f"a size in {shape} is negative")
            return TensorType(_given(op, "shape", shape), _given(op, "dtype", dtype))
        case g.Iota(axis):
            out = TensorType(_given(op, "shape", shape), _given(op, "dtype", dtype))
            _axis(op, axis, out.shape)
            if out.dtype == "bool":
                raise _error(op, "an index is not a bool")
            return out
        case g.Elementwise(fn):
            return TensorType(_broadcast(op, operands), _elementwise_dtype(op, fn, operands, dtype))
        case g.Contract():
            return _contract(op, operands[0], operands[1], dtype)
        case g.Reduce(kind, axes, last):
            return _reduce(op, kind, axes, last, operands[0])
        case g.ReduceWindow(kind, spatial, reduced, operand):
            if kind not in ("sum", "max", "min"):
                raise _error(op, f"kind {kind!r} is none of sum, max, min")
            _map(op, "operand", operand, operands[0], len(spatial) + len(reduced))
            return TensorType(spatial, operands[0].dtype)
        case g.Gather() | g.GatherElements() | g.GatherND() | g.ScatterElements() | g.ScatterND():
            return _indexed(op, operands)
        case g.Scan(kind, axis):
            if kind not in ("sum", "prod", "max", "min"):
                raise _error(op, f"kind {kind!r} is none of sum, prod, max, min")
            _axis(op, axis, operands[0].shape)
            return operands[0]
        case g.TopK(axis, k, _, part):
            x = operands[0]
            _axis(op, axis, x.shape)
            if not 0 <= k <= x.shape[axis] or part not in ("values", "indices"):
                raise _error(op, f"k {k} of {x.shape[axis]}, part {part!r}")
            return TensorType(_replaced(x.shape, axis, k), x.dtype if part == "values" else "int64")
        case g.Reshape() | g.Transpose() | g.Slice() | g.Pad() | g.Broadcast() | g.Concat():
            return _view(op, operands, shape)
    assert_never(op)


def out_of_bounds(op: g.Op, operands: Sequence[TensorType]) -> str:
    """Why an index of a Contract or ReduceWindow leaves its operand, or "" if none does."""
    maps: tuple[tuple[str, AffineMap], ...]
    match op:
        case g.Contract(spatial, reduced, lhs, rhs):
            maps = (("lhs", lhs), ("rhs", rhs))
        case g.ReduceWindow(_, spatial, reduced, operand):
            maps = (("operand", operand),)
        case _:
            return ""
    extents = (*spatial, *reduced)
    if 0 in extents:
        return ""
    for (name, affine), operand_type in zip(maps, operands, strict=True):
        for position, (dim, size) in enumerate(zip(affine, operand_type.shape, strict=True)):
            ends = [(c * (extents[v] - 1)) for v, c in dim.terms]
            low = dim.offset + sum(min(0, end) for end in ends)
            high = dim.offset + sum(max(0, end) for end in ends)
            if low < 0 or high >= size:
                return f"dimension {position} of {name} is indexed {low} to {high}, its size is {size}"
    return ""


def _error(op: g.Op, why: str) -> CheckError:
    return CheckError("the operation has no type", where=type(op).__name__, why=why)


def _arity(op: g.Op) -> int | None:
    match op:
        case g.Input() | g.Constant() | g.Iota():
            return 0
        case g.Elementwise(fn):
            if fn not in g.ELEMENTWISE:
                raise _error(op, f"no such scalar function: {fn!r}")
            return 1 if fn in g.UNARY else 2 if fn in g.BINARY else 3
        case g.Concat():
            return None
        case g.Contract() | g.Gather() | g.GatherElements() | g.GatherND():
            return 2
        case g.ScatterElements() | g.ScatterND():
            return 3
        case _:
            return 1


def _given(op: g.Op, what: str, value: T | None) -> T:
    if value is None:
        raise _error(op, f"its {what} must be given")
    return value


def _axis(op: g.Op, axis: int, shape: Shape) -> None:
    if not 0 <= axis < len(shape):
        raise _error(op, f"axis {axis} of a tensor of rank {len(shape)}")


def _replaced(shape: Shape, axis: int, size: int) -> Shape:
    return (*shape[:axis], size, *shape[axis + 1:])  # fmt: skip


def _broadcast(op: g.Op, operands: Sequence[TensorType]) -> Shape:
    rank = max(len(t.shape) for t in operands)
    columns = zip(*((1,) * (rank - len(t.shape)) + t.shape for t in operands), strict=True)
    extents = [set(column) - {1} or {1} for column in columns]
    if any(len(different) > 1 for different in extents):
        raise _error(op, f"shapes {', '.join(str(t.shape) for t in operands)} do not broadcast")
    return tuple(extent for (extent,) in extents)


def _elementwise_dtype(op: g.Op, fn: str, operands: Sequence[TensorType], dtype: DType | None) -> DType:
    if fn == "cast":
        return _given(op, "dtype", dtype)
    values = operands
    if fn == "where":
        if operands[0].dtype != "bool":
            raise _error(op, f"the condition of where is {operands[0].dtype}, not bool")
        values = operands[1:]
    kinds = {t.dtype for t in values}
    if len(kinds) != 1:
        raise _error(op, f"operands of {fn} have different dtypes: {', '.join(t.dtype for t in values)}")
    kind = values[0].dtype
    if fn in LOGIC and kind != "bool":
        raise _error(op, f"{fn} of {kind}, not bool")
    if fn in FLOAT_ONLY and kind not in FLOATS:
        raise _error(op, f"{fn} of {kind}, not a floating type")
    if kind == "bool" and fn not in LOGIC | COMPARISON | {"where", "identity"}:
        raise _error(op, f"{fn} of bool")
    out: DType = "bool" if fn in TO_BOOL else kind
    if dtype is not None and dtype != out:
        raise _error(op, f"{fn} of {kind} gives {out}, not {dtype}; add a cast")
    return out


def _map(op: g.Op, name: str, affine: AffineMap, operand: TensorType, variables: int) -> None:
    if len(affine) != len(operand.shape):
        raise _error(op, f"{name} has {len(affine)} indices for a tensor of rank {len(operand.shape)}")
    for dim in affine:
        numbers = [v for v, _ in dim.terms]
        if numbers != sorted(set(numbers)) or any(not 0 <= v < variables for v in numbers):
            raise _error(op, f"{name} names iteration variables {numbers} of {variables}")


def _contract(op: g.Contract, lhs: TensorType, rhs: TensorType, dtype: DType | None) -> TensorType:
    variables = len(op.spatial) + len(op.reduced)
    _map(op, "lhs", op.lhs, lhs, variables)
    _map(op, "rhs", op.rhs, rhs, variables)
    if (lhs.dtype in FLOATS) != (rhs.dtype in FLOATS) or "bool" in (lhs.dtype, rhs.dtype):
        raise _error(op, f"a product of {lhs.dtype} and {rhs.dtype}")
    natural = promote([lhs.dtype, rhs.dtype])
    if dtype is None:
        small = natural in INTEGERS and numpy_dtype(natural).itemsize < 4
        return TensorType(op.spatial, "int32" if small else natural)
    if (dtype in FLOATS) != (natural in FLOATS) or dtype == "bool":
        raise _error(op, f"a product of {lhs.dtype} and {rhs.dtype} as {dtype}")
    return TensorType(op.spatial, dtype)


def _reduce(op: g.Op, kind: str, axes: tuple[int, ...], last: bool, x: TensorType) -> TensorType:
    if kind not in REDUCTIONS:
        raise _error(op, f"kind {kind!r} is none of {', '.join(REDUCTIONS)}")
    if list(axes) != sorted(set(axes)):
        raise _error(op, f"axes {axes} are not in order or not unique")
    for axis in axes:
        _axis(op, axis, x.shape)
    rest = tuple(size for axis, size in enumerate(x.shape) if axis not in axes)
    if kind in ("argmax", "argmin"):
        if len(axes) != 1 or x.shape[axes[0]] == 0:
            raise _error(op, f"{kind} along axes {axes} of shape {x.shape}: one axis with at least one element")
        return TensorType(rest, "int64")
    if last or (x.dtype == "bool" and kind in ("sum", "prod")):
        raise _error(op, f"{kind} of {x.dtype} with last={last}")
    return TensorType(rest, x.dtype)


def _view(op: g.Reshape | g.Transpose | g.Slice | g.Pad | g.Broadcast | g.Concat, operands: Sequence[TensorType],
          shape: Shape | None) -> TensorType:  # fmt: skip
    x = operands[0] if operands else TensorType((), "float32")
    rank = len(x.shape)
    match op:
        case g.Reshape():
            out = _given(op, "shape", shape)
            if math.prod(out) != math.prod(x.shape) or min(out, default=0) < 0:
                raise _error(op, f"{x.shape} does not have the elements of {out}")
        case g.Transpose(perm):
            if sorted(perm) != list(range(rank)):
                raise _error(op, f"{perm} is no permutation of {rank} dimensions")
            out = tuple(x.shape[p] for p in perm)
        case g.Slice(starts, strides):
            out = _given(op, "shape", shape)
            if not len(starts) == len(strides) == len(out) == rank:
                raise _error(op, f"starts {starts}, strides {strides}, sizes {out} for rank {rank}")
            for start, stride, size, full in zip(starts, strides, out, x.shape, strict=True):
                end = start + stride * (size - 1)
                if size < 0 or stride == 0 or (size > 0 and not (0 <= start < full and 0 <= end < full)):
                    raise _error(op, f"{size} elements from {start} by {stride} of {full}")
        case g.Pad(low, high, interior, _):
            if not len(low) == len(high) == len(interior) == rank or min(interior, default=0) < 0:
                raise _error(op, f"low {low}, high {high}, interior {interior} for rank {rank}")
            out = tuple(lo + n + max(0, n - 1) * mid + hi
                        for lo, n, mid, hi in zip(low, x.shape, interior, high, strict=True))  # fmt: skip
            if min(out, default=0) < 0:
                raise _error(op, f"cropping {x.shape} to {out}")
        case g.Broadcast():
            out = _given(op, "shape", shape)
            if _broadcast(op, (x, TensorType(out, x.dtype))) != out:
                raise _error(op, f"{x.shape} does not broadcast to {out}")
        case g.Concat(axis):
            if not operands:
                raise _error(op, "nothing to concatenate")
            _axis(op, axis, x.shape)
            for other in operands[1:]:
                if other.dtype != x.dtype or _replaced(other.shape, axis, 0) != _replaced(x.shape, axis, 0):
                    raise _error(op, f"{other} after {x} along axis {axis}")
            out = _replaced(x.shape, axis, sum(t.shape[axis] for t in operands))
    return TensorType(out, x.dtype)


def _indexed(op: g.Gather | g.GatherElements | g.GatherND | g.ScatterElements | g.ScatterND,
             operands: Sequence[TensorType]) -> TensorType:  # fmt: skip
    data, indices = operands[0], operands[1]
    if indices.dtype not in ("int64", "int32"):
        raise _error(op, f"indices are {indices.dtype}, not int64 or int32")
    if isinstance(op, g.ScatterElements | g.ScatterND):
        if op.reduction not in SCATTER_REDUCTIONS:
            raise _error(op, f"reduction {op.reduction!r} is none of {', '.join(SCATTER_REDUCTIONS)}")
        if operands[2].dtype != data.dtype:
            raise _error(op, f"updates are {operands[2].dtype}, the data are {data.dtype}")
    match op:
        case g.Gather(axis):
            _axis(op, axis, data.shape)
            return TensorType(data.shape[:axis] + indices.shape + data.shape[axis + 1:], data.dtype)  # fmt: skip
        case g.GatherElements(axis) | g.ScatterElements(axis, _):
            _axis(op, axis, data.shape)
            fits = len(indices.shape) == len(data.shape) and all(
                small <= full
                for small, full in zip(_replaced(indices.shape, axis, 0), _replaced(data.shape, axis, 0), strict=True)
            )
            if not fits:
                raise _error(op, f"indices {indices.shape} for data {data.shape} along axis {axis}")
            if isinstance(op, g.GatherElements):
                return TensorType(indices.shape, data.dtype)
            if operands[2].shape != indices.shape:
                raise _error(op, f"updates {operands[2].shape} for indices {indices.shape}")
            return data
        case g.GatherND(batch_dims):
            depth = _depth(op, indices.shape, data.shape, batch_dims)
            if indices.shape[:batch_dims] != data.shape[:batch_dims]:
                raise _error(op, f"batch dimensions of {indices.shape} and {data.shape} differ")
            return TensorType(indices.shape[:-1] + data.shape[batch_dims + depth:], data.dtype)  # fmt: skip
        case g.ScatterND():
            depth = _depth(op, indices.shape, data.shape, 0)
            if operands[2].shape != indices.shape[:-1] + data.shape[depth:]:
                raise _error(op, f"updates {operands[2].shape} for indices {indices.shape} into {data.shape}")
            return data
    assert_never(op)


def _depth(op: g.Op, indices: Shape, data: Shape, batch_dims: int) -> int:
    if not indices or not 0 <= batch_dims < len(indices) or batch_dims + indices[-1] > len(data):
        raise _error(op, f"indices {indices} for data {data} with {batch_dims} batch dimensions")
    return indices[-1]
