"""The algebra of shapes: a µGraph run over it checks that its parts fit together, without any data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from pipeline.ir.algebra import contraction_shape, folded
from pipeline.ir.graph import AffineMap, DType, Shape
from pipeline.superopt.mugraph.graph import MuGraph
from pipeline.superopt.mugraph.interpret import run_mugraph


class ShapeAlgebra:
    """Every value is its shape. As an Algebra, of Shape."""

    def shape(self, x: Shape) -> Shape:
        return x

    def scalar(self, value: float) -> Shape:
        return ()

    def constant(self, array: np.ndarray) -> Shape:
        return array.shape

    def elementwise(self, fn: str, *operands: Shape, dtype: DType | None = None) -> Shape:
        return _broadcast(*operands)

    def contract(self, subscripts: str, a: Shape, b: Shape) -> Shape:
        return contraction_shape(subscripts, a, b)

    def fold(self, kind: str, x: Shape, axes: Sequence[int], keep: int = 1) -> Shape:
        return folded(x, axes, keep)[1]

    def reshape(self, x: Shape, shape: Shape) -> Shape:
        return shape

    def transpose(self, x: Shape, perm: Sequence[int]) -> Shape:
        return tuple(x[axis] for axis in perm)

    def index(self, x: Shape, where: tuple[slice, ...]) -> Shape:
        return tuple(len(range(*cut.indices(size))) for cut, size in zip(where, x, strict=True))

    def concat(self, values: Sequence[Shape], axis: int) -> Shape:
        rests = {(*x[:axis], *x[axis + 1 :]) for x in values}
        if len(rests) > 1:
            raise ValueError(f"concatenation of shapes {', '.join(map(str, values))} along {axis}")
        return (*values[0][:axis], sum(x[axis] for x in values), *values[0][axis + 1 :])

    def broadcast_to(self, x: Shape, shape: Shape) -> Shape:
        if _broadcast(x, shape) != shape:
            raise ValueError(f"{x} does not broadcast to {shape}")
        return shape

    def pad(self, x: Shape, low: Shape, high: Shape, interior: Shape, value: float) -> Shape:
        return tuple(lo + n + max(0, n - 1) * mid + hi for lo, n, mid, hi in zip(low, x, interior, high, strict=True))

    def window(self, x: Shape, access: AffineMap, extents: Shape) -> Shape:
        return extents


def result_shapes(
    graph: MuGraph, inputs: Mapping[str, Shape], extents: Mapping[str, int] | None = None
) -> tuple[Shape, ...]:
    """The shapes of the results; CheckError, with the kernel and the node, where the parts do not fit together."""
    return run_mugraph(graph, inputs, ShapeAlgebra(), extents, once=True)


def _broadcast(*shapes: Shape) -> Shape:
    """As NumPy, of sizes without a limit."""
    rank = max((len(shape) for shape in shapes), default=0)
    aligned = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    sizes = [{size for size in dim if size != 1} for dim in zip(*aligned, strict=True)]
    if any(len(size) > 1 for size in sizes):
        raise ValueError(f"shapes {', '.join(map(str, shapes))} do not broadcast")
    return tuple(size.pop() if size else 1 for size in sizes)
