"""A value of the graph under construction, written with like a NumPy array."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from pipeline.ir.graph import DType, Number, Shape, Slice
from pipeline.ir.graph_builder import GraphBuilder
from pipeline.ir.graph_types import FLOATS, numpy_dtype

Operand: TypeAlias = "Tensor | float | int | bool"


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """A value number and the builder that made it. Numbers in arithmetic become constants of the tensor's dtype."""

    builder: GraphBuilder
    value: int

    @property
    def shape(self) -> Shape:
        return self.builder.shape(self.value)

    @property
    def dtype(self) -> DType:
        return self.builder.dtype(self.value)

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def is_float(self) -> bool:
        return self.dtype in FLOATS

    def known(self) -> np.ndarray | None:
        """The elements, where they do not depend on an input of the model."""
        return self.builder.value_of(self.value)

    def of(self, value: int) -> Tensor:
        return Tensor(self.builder, value)

    def like(self, data: float | int | bool | np.ndarray | Sequence[float]) -> Tensor:
        """A constant in this tensor's dtype."""
        return constant(self.builder, data, self.dtype)

    def fn(self, name: str, *others: Operand, dtype: DType | None = None) -> Tensor:
        """An elementwise function of the graph with this tensor as its first operand."""
        operands = [other if isinstance(other, Tensor) else self.like(other) for other in others]
        numbers = [self.value, *(operand.value for operand in operands)]
        return self.of(self.builder.elementwise(name, *numbers, dtype=dtype))

    def __add__(self, other: Operand) -> Tensor:
        return self.fn("add", other)

    def __radd__(self, other: Operand) -> Tensor:
        return self.fn("add", other)

    def __sub__(self, other: Operand) -> Tensor:
        return self.fn("sub", other)

    def __rsub__(self, other: float | int) -> Tensor:
        return self.like(other).fn("sub", self)

    def __mul__(self, other: Operand) -> Tensor:
        return self.fn("mul", other)

    def __rmul__(self, other: Operand) -> Tensor:
        return self.fn("mul", other)

    def __truediv__(self, other: Operand) -> Tensor:
        return self.fn("div", other)

    def __neg__(self) -> Tensor:
        return self.fn("neg")

    def cast(self, dtype: DType) -> Tensor:
        return self if dtype == self.dtype else self.fn("cast", dtype=dtype)

    def where(self, then: Tensor, other: Tensor) -> Tensor:
        """`then` where this tensor (of bool) is true, `other` elsewhere; a known condition that is the same everywhere
        only picks one of them."""
        known = self.known()
        if known is not None and known.size and (known == known.flat[0]).all():
            shape = np.broadcast_shapes(self.shape, then.shape, other.shape)
            return (then if known.flat[0] else other).broadcast(shape)
        return self.of(self.builder.elementwise("where", self.value, then.value, other.value))

    def reshape(self, shape: Iterable[int]) -> Tensor:
        return self.of(self.builder.reshape(self.value, [int(extent) for extent in shape]))

    def transpose(self, perm: Iterable[int]) -> Tensor:
        return self.of(self.builder.transpose(self.value, [int(axis) for axis in perm]))

    def broadcast(self, shape: Iterable[int]) -> Tensor:
        return self.of(self.builder.broadcast(self.value, [int(extent) for extent in shape]))

    def part(self, axis: int, start: int, stop: int) -> Tensor:
        """The elements from `start` up to `stop` along `axis`."""
        starts, stops = [0] * self.rank, list(self.shape)
        starts[axis], stops[axis] = start, stop
        return self.strided(starts, [end - begin for begin, end in zip(starts, stops, strict=True)], [1] * self.rank)

    def strided(self, starts: Sequence[int], sizes: Sequence[int], strides: Sequence[int]) -> Tensor:
        """out[i] = x[start + stride * i] for i below `sizes`, along every dimension."""
        if tuple(sizes) == self.shape and all(stride == 1 for stride in strides) and not any(starts):
            return self
        return self.of(self.builder.add(Slice(tuple(starts), tuple(strides)), self.value, shape=tuple(sizes)))

    def pad(self, low: Sequence[int], high: Sequence[int], value: Number = 0.0) -> Tensor:
        """`value` around the elements; a negative number of elements crops."""
        return self.of(self.builder.pad(self.value, low, high, value=value))

    def reduce(self, kind: str, axes: Sequence[int], keepdims: bool = False) -> Tensor:
        return self.of(self.builder.reduce(kind, self.value, tuple(axes), keepdims))

    def take(self, indices: Sequence[int] | np.ndarray, axis: int) -> Tensor:
        """The elements at known positions along `axis`."""
        at = constant(self.builder, np.asarray(indices, np.int64), "int64")
        return self.of(self.builder.gather(self.value, at.value, axis))

    def unsqueeze(self, *axes: int) -> Tensor:
        """With extents of one at the given positions of the result."""
        rank = self.rank + len(axes)
        at = {axis % rank for axis in axes}
        rest = iter(self.shape)
        return self.reshape([1 if axis in at else next(rest) for axis in range(rank)])

    def along(self, axis: int, rank: int) -> Tensor:
        """A vector laid along `axis` of a tensor of `rank` dimensions, ready to broadcast."""
        return self.reshape([self.shape[0] if position == axis else 1 for position in range(rank)])


@dataclass(frozen=True, slots=True, eq=False)
class TensorSequence:
    """A list of tensors: what a sequence of ONNX is once its length is known."""

    items: tuple[Tensor, ...]


Value: TypeAlias = Tensor | TensorSequence


def constant(builder: GraphBuilder, data: object, dtype: DType) -> Tensor:
    """A constant of the given dtype."""
    return Tensor(builder, builder.constant(np.asarray(data).astype(numpy_dtype(dtype), copy=False)))
