"""The algebra: what an interpreter of tensor operators asks of its values, and the NumPy kind of it.

The graph and the µGraph are run by one interpreter each, over floating-point arrays for the meaning and over residues
of primes for proofs.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np

from pipeline.errors import CheckError
from pipeline.ir.evaluate_scalar import apply_scalar
from pipeline.ir.graph import AffineMap, DType, Shape
from pipeline.ir.graph_types import FLOATS, TO_BOOL, dtype_name

V = TypeVar("V")
COMBINE = {"sum": "add", "prod": "mul", "max": "max", "min": "min"}
Product = Callable[[np.ndarray, np.ndarray], np.ndarray]
Total = Callable[[np.ndarray, tuple[int, ...]], np.ndarray]


class IndivisibleError(CheckError):
    """A dimension that is not a multiple of what it is cut into.

    size, pieces  of the dimension: it would have to be a multiple of the pieces
    """

    def __init__(self, where: str, dim: int, shape: Shape, pieces: int) -> None:
        super().__init__("a dimension is not cut into equal pieces", where=where,
                         why=f"dimension {dim} of {shape} into {pieces}")  # fmt: skip
        self.size, self.pieces = shape[dim], pieces


class Algebra(Protocol[V]):
    """Tensors of some kind of number, and the operators on them. Axes count from 0 and are not negative."""

    def shape(self, x: V) -> Shape: ...

    def scalar(self, value: float) -> V:
        """A number, of rank 0."""
        ...

    def constant(self, array: np.ndarray) -> V:
        """An array that is known now; integers and truth values stay what they are."""
        ...

    def elementwise(self, fn: str, *operands: V, dtype: DType | None = None) -> V:
        """A function of `pipeline.ir.graph.ELEMENTWISE`; operands broadcast as in NumPy. dtype: of a cast."""
        ...

    def contract(self, subscripts: str, a: V, b: V) -> V:
        """Multiplied and summed as einsum says; no letter twice in an operand."""
        ...

    def fold(self, kind: str, x: V, axes: Sequence[int], keep: int = 1) -> V:
        """sum, max, min or prod of each of `axes` to `keep` elements: out[j] combines x[g * keep + j] over g."""
        ...

    def reshape(self, x: V, shape: Shape) -> V: ...

    def transpose(self, x: V, perm: Sequence[int]) -> V: ...

    def index(self, x: V, where: tuple[slice, ...]) -> V:
        """A piece: one slice for each dimension."""
        ...

    def concat(self, values: Sequence[V], axis: int) -> V: ...

    def broadcast_to(self, x: V, shape: Shape) -> V: ...

    def pad(self, x: V, low: Shape, high: Shape, interior: Shape, value: float) -> V:
        """As `pipeline.ir.graph.Pad`."""
        ...

    def window(self, x: V, access: AffineMap, extents: Shape) -> V:
        """The operand read through an affine map: one dimension for each iteration variable."""
        ...


@dataclass(frozen=True, slots=True)
class FloatAlgebra:
    """Floating-point arrays; integers and truth values as they are.

    dtype   that every floating value is computed in: float64 or float32
    """

    dtype: DType = "float64"

    def shape(self, x: np.ndarray) -> Shape:
        return x.shape

    def scalar(self, value: float) -> np.ndarray:
        return np.asarray(value, self.dtype)

    def constant(self, array: np.ndarray) -> np.ndarray:
        return array.astype(self.dtype) if dtype_name(array.dtype) in FLOATS else array

    def elementwise(self, fn: str, *operands: np.ndarray, dtype: DType | None = None) -> np.ndarray:
        last = operands[-1].dtype
        own = self.dtype if last == self.dtype else dtype_name(last)  # the name of a dtype is slow to find
        if fn == "cast":
            own = self.dtype if dtype is None or dtype in FLOATS else dtype
        return apply_scalar(fn, operands, "bool" if fn in TO_BOOL else own)

    def contract(self, subscripts: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            return contract_arrays(subscripts, a, b, np.matmul, lambda x, axes: np.asarray(x.sum(axis=axes)))

    def fold(self, kind: str, x: np.ndarray, axes: Sequence[int], keep: int = 1) -> np.ndarray:
        combine: np.ufunc = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}[kind]
        whole, out = folded(x.shape, axes, keep)
        groups = tuple(axis + position for position, axis in enumerate(sorted(axes)))
        with np.errstate(all="ignore"):
            return np.asarray(combine.reduce(x.reshape(whole), axis=groups)).reshape(out)

    def reshape(self, x: np.ndarray, shape: Shape) -> np.ndarray:
        return x.reshape(shape)

    def transpose(self, x: np.ndarray, perm: Sequence[int]) -> np.ndarray:
        return x.transpose(tuple(perm))

    def index(self, x: np.ndarray, where: tuple[slice, ...]) -> np.ndarray:
        return x[where]

    def concat(self, values: Sequence[np.ndarray], axis: int) -> np.ndarray:
        return np.concatenate(values, axis=axis)

    def broadcast_to(self, x: np.ndarray, shape: Shape) -> np.ndarray:
        return np.broadcast_to(x, shape)

    def pad(self, x: np.ndarray, low: Shape, high: Shape, interior: Shape, value: float) -> np.ndarray:
        return pad_array(x, low, high, interior, value)

    def window(self, x: np.ndarray, access: AffineMap, extents: Shape) -> np.ndarray:
        return window_array(x, access, extents)


def folded(shape: Shape, axes: Sequence[int], keep: int) -> tuple[Shape, Shape]:
    """The shape with each of `axes` written as (groups, keep), and the shape of the result of a fold."""
    whole: list[int] = []
    out = list(shape)
    for axis, size in enumerate(shape):
        if axis not in axes:
            whole.append(size)
            continue
        if size == 0 or size % keep:
            raise IndivisibleError("fold", axis, shape, keep)
        whole += [size // keep, keep]
        out[axis] = keep
    return tuple(whole), tuple(out)


def contract_arrays(subscripts: str, a: np.ndarray, b: np.ndarray, product: Product, total: Total) -> np.ndarray:
    """An einsum of two operands as one batched product of matrices.

    product  of (batch, m, k) and (batch, k, n); a batch of one stands for any number
    total    sums the axes of an array away
    """
    left, right, out = split_subscripts(subscripts)
    sizes = _sizes(subscripts, (left, a.shape), (right, b.shape))
    a, left = _without_own(a, left, right + out, total)
    b, right = _without_own(b, right, left + out, total)
    batch = [c for c in out if c in left and c in right]
    rows = [c for c in left if c in out and c not in right]
    columns = [c for c in right if c in out and c not in left]
    inner = [c for c in left if c in right and c not in out]

    def matrices(x: np.ndarray, letters: str, first: list[str], second: list[str]) -> np.ndarray:
        order = [letters.index(c) for c in (*batch, *first, *second)]
        shape = [math.prod(sizes[c] for c in group) for group in (batch, first, second)]
        return x.transpose(order).reshape(shape)

    value = product(matrices(a, left, rows, inner), matrices(b, right, inner, columns))
    made = [*batch, *rows, *columns]
    value = value.reshape([sizes[c] for c in made])
    return value.transpose([made.index(c) for c in out])


@functools.lru_cache(maxsize=4096)
def split_subscripts(subscripts: str) -> tuple[str, str, str]:
    """The letters of the two operands and of the result of "ab,bc->ac"; CheckError for what is none."""
    operands, arrow, out = subscripts.partition("->")
    left, comma, right = operands.partition(",")
    letters = left + right + out
    once = all(len(set(part)) == len(part) for part in (left, right, out))
    if not (arrow and comma and once and set(out) <= set(left + right) and (letters.isalpha() or not letters)):
        raise CheckError("no contraction of two operands", where=f"{subscripts!r}",
                         why="a letter occurs twice in an operand, or a result letter in none")  # fmt: skip
    return left, right, out


def contraction_shape(subscripts: str, a: Shape, b: Shape) -> Shape:
    """The shape of an einsum of two operands of these shapes."""
    left, right, out = split_subscripts(subscripts)
    sizes = _sizes(subscripts, (left, a), (right, b))
    return tuple(sizes[letter] for letter in out)


def _sizes(subscripts: str, *operands: tuple[str, Shape]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for letters, shape in operands:
        if len(letters) != len(shape):
            raise CheckError("an operand has the wrong rank", where=f"contraction {subscripts!r}",
                             why=f"{letters!r} for shape {shape}")  # fmt: skip
        for letter, size in zip(letters, shape, strict=True):
            if sizes.setdefault(letter, size) != size:
                raise CheckError("the operands disagree", where=f"contraction {subscripts!r}",
                                 why=f"{letter} is {sizes[letter]} and {size}")  # fmt: skip
    return sizes


def _without_own(x: np.ndarray, letters: str, others: str, total: Total) -> tuple[np.ndarray, str]:
    own = tuple(axis for axis, letter in enumerate(letters) if letter not in others)
    return (total(x, own), "".join(c for c in letters if c in others)) if own else (x, letters)


def pad_array(x: np.ndarray, low: Shape, high: Shape, interior: Shape, value: Any) -> np.ndarray:
    """`pipeline.ir.graph.Pad` on an array; negative low and high crop."""
    full = [max(0, lo) + n + max(0, n - 1) * mid + max(0, hi)
            for lo, n, mid, hi in zip(low, x.shape, interior, high, strict=True)]  # fmt: skip
    out = np.full(full, value, x.dtype)
    inside = tuple(slice(max(0, lo), max(0, lo) + max(0, (n - 1) * (mid + 1) + 1 if n else 0), mid + 1)
                   for lo, n, mid in zip(low, x.shape, interior, strict=True))  # fmt: skip
    out[inside] = x
    return out[tuple(slice(max(0, -lo), n - max(0, -hi)) for lo, hi, n in zip(low, high, full, strict=True))]


def window_array(x: np.ndarray, access: AffineMap, extents: Shape) -> np.ndarray:
    """A copy with one dimension for each iteration variable: out[i] = x[access(i)]."""
    where = []
    for dim in access:
        place = np.asarray(dim.offset)
        for variable, coefficient in dim.terms:
            steps = np.arange(extents[variable]) * coefficient
            place = place + steps.reshape([-1 if v == variable else 1 for v in range(len(extents))])
        where.append(place)
    return np.broadcast_to(x[tuple(where)], extents)
