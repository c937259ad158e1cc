"""The algebra of degrees: how high the polynomials are that an identity test of a program compares.

An element is a fraction of polynomials over the inputs and, as variables of their own, the exponentials, unknown
functions and maxima that it contains. A sum of fractions is brought to the product of their denominators, or to one
where it is known that they have the same, as in the rows of a softmax. The root of a fraction has half its degrees.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipeline.ir.algebra import contraction_shape, folded, split_subscripts
from pipeline.ir.graph import AffineMap, DType, Shape
from pipeline.ir.graph_types import COMPARISON


@dataclass(frozen=True, slots=True)
class Degree:
    """A bound for every element of a tensor.

    above, below  the degree of the numerator and of the denominator
    known         the number that every element is, where it is a constant
    same          the axes along which all elements have one denominator, besides those of extent one
    """

    shape: Shape
    above: int = 0
    below: int = 0
    known: float | None = None
    same: frozenset[int] = frozenset()

    def difference(self, other: Degree) -> int:
        """The degree of the difference, cleared of denominators."""
        return max(self.above + other.below, other.above + self.below)

    def one_denominator(self, axis: int) -> bool:
        """Along an axis; axes before the first are those that broadcasting adds."""
        return self.below == 0 or axis < 0 or self.shape[axis] == 1 or axis in self.same


class DegreeAlgebra:
    """As an Algebra, of Degree."""

    def shape(self, x: Degree) -> Shape:
        return x.shape

    def scalar(self, value: float) -> Degree:
        return Degree((), known=float(value))

    def constant(self, array: np.ndarray) -> Degree:
        return Degree(array.shape, known=float(array) if array.ndim == 0 and array.dtype != bool else None)

    def elementwise(self, fn: str, *operands: Degree, dtype: DType | None = None) -> Degree:
        above, below = _degrees(fn, operands)
        shape = tuple(np.broadcast_shapes(*(x.shape for x in operands)))
        same = frozenset(axis for axis in range(len(shape)) if _one_denominator(fn, operands, axis - len(shape)))
        return Degree(shape, above, below, same=same)

    def contract(self, subscripts: str, a: Degree, b: Degree) -> Degree:
        left, right, out = split_subscripts(subscripts)
        sizes = dict(zip(left + right, a.shape + b.shape, strict=True))

        def one(letter: str) -> bool:
            return a.one_denominator(left.find(letter)) and b.one_denominator(right.find(letter))

        terms = math.prod(size for letter, size in sizes.items() if letter not in out and not one(letter))
        above, below = _sum(terms, a.above + b.above, a.below + b.below)
        same = frozenset(axis for axis, letter in enumerate(out) if one(letter))
        return Degree(contraction_shape(subscripts, a.shape, b.shape), above, below, same=same)

    def fold(self, kind: str, x: Degree, axes: Sequence[int], keep: int = 1) -> Degree:
        shape = folded(x.shape, axes, keep)[1]
        if kind == "sum":
            terms = math.prod(x.shape[axis] // keep for axis in axes if not x.one_denominator(axis))
            return Degree(shape, *_sum(terms, x.above, x.below), same=x.same)
        if kind == "prod":
            terms = math.prod(x.shape[axis] // keep for axis in axes)
            return Degree(shape, terms * x.above, terms * x.below)
        return Degree(shape, max(1, x.above), x.below)

    def reshape(self, x: Degree, shape: Shape) -> Degree:
        """Keeps what it knows where only dimensions of extent one come or go."""
        own = [axis for axis, size in enumerate(x.shape) if size != 1]
        new = [axis for axis, size in enumerate(shape) if size != 1]
        if [x.shape[axis] for axis in own] != [shape[axis] for axis in new]:
            return replace(x, shape=shape, same=frozenset())
        places = dict(zip(own, new, strict=True))
        return replace(x, shape=shape, same=frozenset(places[axis] for axis in x.same if axis in places))

    def transpose(self, x: Degree, perm: Sequence[int]) -> Degree:
        same = frozenset(place for place, axis in enumerate(perm) if axis in x.same)
        return replace(x, shape=tuple(x.shape[axis] for axis in perm), same=same)

    def index(self, x: Degree, where: tuple[slice, ...]) -> Degree:
        return replace(x, shape=tuple(len(range(*cut.indices(size))) for cut, size in zip(where, x.shape, strict=True)))

    def concat(self, values: Sequence[Degree], axis: int) -> Degree:
        first = values[0].shape
        shape = (*first[:axis], sum(x.shape[axis] for x in values), *first[axis + 1 :])
        same = frozenset(i for i in range(len(shape)) if i != axis and all(x.one_denominator(i) for x in values))
        return Degree(shape, max(x.above for x in values), max(x.below for x in values), same=same)

    def broadcast_to(self, x: Degree, shape: Shape) -> Degree:
        added = len(shape) - len(x.shape)
        same = frozenset(axis for axis in range(len(shape)) if axis < added or x.one_denominator(axis - added))
        return replace(x, shape=shape, same=same)

    def pad(self, x: Degree, low: Shape, high: Shape, interior: Shape, value: float) -> Degree:
        sizes = zip(low, x.shape, interior, high, strict=True)
        return Degree(tuple(lo + n + max(0, n - 1) * mid + hi for lo, n, mid, hi in sizes), x.above, x.below)

    def window(self, x: Degree, access: AffineMap, extents: Shape) -> Degree:
        return replace(x, shape=extents, same=frozenset())


def _sum(terms: int, above: int, below: int) -> tuple[int, int]:
    return above + (terms - 1) * below, terms * below


def _one_denominator(fn: str, operands: Sequence[Degree], axis: int) -> bool:
    """Whether all results along an axis, counted from the last (-1), have one denominator."""

    def one(x: Degree) -> bool:
        return len(x.shape) + axis < 0 or x.one_denominator(len(x.shape) + axis)

    def constant(x: Degree) -> bool:
        return len(x.shape) + axis < 0 or x.shape[axis] == 1 or x.known is not None

    match fn:
        case "add" | "sub" | "mul" | "neg" | "cast" | "identity":
            return all(one(x) for x in operands)
        case "div":
            return one(operands[0]) and constant(operands[1])
    return all(constant(x) for x in operands)


def _degrees(fn: str, x: Sequence[Degree]) -> tuple[int, int]:
    match fn:
        case "add" | "sub":
            return max(x[0].above + x[1].below, x[1].above + x[0].below), x[0].below + x[1].below
        case "mul":
            return x[0].above + x[1].above, x[0].below + x[1].below
        case "div":
            return x[0].above + x[1].below, x[0].below + x[1].above
        case "neg" | "cast" | "identity":
            return x[0].above, x[0].below
        case "reciprocal":
            return x[0].below, x[0].above
        case "sqrt":
            return -(-x[0].above // 2), -(-x[0].below // 2)
        case "rsqrt":
            return -(-x[0].below // 2), -(-x[0].above // 2)
        case "pow" if x[1].known is not None and (2 * x[1].known).is_integer():
            size = math.ceil(abs(x[1].known))
            above, below = size * x[0].above, size * x[0].below
            return (above, below) if x[1].known >= 0 else (below, above)
        case "max" | "min":
            return max(1, x[0].above, x[1].above), max(x[0].below, x[1].below)
        case "where":
            return max(x[1].above, x[2].above), max(x[1].below, x[2].below)
        case "sigmoid" | "tanh":
            return 1, 1
        case _ if fn in COMPARISON:
            return 0, 0
    return 1, 0  # an exponential or an unknown function: a variable
