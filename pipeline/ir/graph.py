"""The graph: a flat list of primitive tensor operations in static single assignment form.

A node has one output. A value is named by its position in `Graph.nodes`; inputs of a node come earlier. Shapes and
dtypes are static. Composite operators of a front end are decomposed into these primitives.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

Shape = tuple[int, ...]
Number = float | int  # an int where the dtype is one of integers: a float has no room for large ones
DType = Literal["float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8",
                "uint64", "uint32", "uint16", "uint8", "bool"]  # fmt: skip

ITEM_BYTES: dict[DType, int] = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "int16": 2, "int8": 1,
    "uint64": 8, "uint32": 4, "uint16": 2, "uint8": 1, "bool": 1,
}  # fmt: skip

UNARY = frozenset({
    "neg", "abs", "sign", "exp", "log", "sqrt", "rsqrt", "reciprocal", "tanh", "sigmoid", "erf", "sin", "cos", "tan",
    "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "floor", "ceil", "round", "not", "isnan",
    "isinf", "cast", "identity",
})  # fmt: skip
BINARY = frozenset({
    "add", "sub", "mul", "div", "mod", "fmod", "pow", "max", "min", "and", "or", "xor",
    "eq", "ne", "lt", "le", "gt", "ge",
})  # fmt: skip
TERNARY = frozenset({"where"})
ELEMENTWISE = UNARY | BINARY | TERNARY


@dataclass(frozen=True, slots=True)
class TensorType:
    """Shape in elements and dtype by NumPy's name (and "bfloat16")."""

    shape: Shape
    dtype: DType


@dataclass(frozen=True, slots=True)
class AffineDim:
    """The index of one operand dimension: sum of coefficient * iteration variable, plus an offset.

    terms   (iteration variable, coefficient) pairs, in order of the variable
    """

    terms: tuple[tuple[int, int], ...]
    offset: int = 0


AffineMap = tuple[AffineDim, ...]


@dataclass(frozen=True, slots=True)
class Input:
    """A tensor that the caller gives at run time."""

    name: str


@dataclass(frozen=True, slots=True)
class Constant:
    """A tensor that is known now; `key` names its data in `Graph.constants`."""

    key: str


@dataclass(frozen=True, slots=True)
class Elementwise:
    """One scalar function (of `ELEMENTWISE`) on each element; operands broadcast as in NumPy.

    Comparison and logic give bool. `div` of integers truncates towards zero; `mod` has the sign of the divisor, `fmod`
    that of the dividend; `round` is half to even; `max` and `min` hand on NaN; `cast` takes its dtype from the node.
    """

    fn: str


@dataclass(frozen=True, slots=True)
class Contract:
    """out[s] = sum over r of lhs[lhs_map(s, r)] * rhs[rhs_map(s, r)].

    Iteration variables are numbered: first the spatial ones, whose extents are the output's shape, then the reduced
    ones. A matrix product is spatial (m, n), reduced (k), lhs (0, 2), rhs (2, 1); a convolution has window dimensions,
    such as 2*h + kh. Every index is in bounds: padding is a `Pad` before it. Accumulates in float32, float64 or int32.
    """

    spatial: Shape
    reduced: Shape
    lhs: AffineMap
    rhs: AffineMap


@dataclass(frozen=True, slots=True)
class Reduce:
    """Reduces `axes` away (no kept dimensions). kind: sum, max, min, prod, argmax, argmin (these two: one axis, int64,
    the first of equals, or the last where `last` is set)."""

    kind: str
    axes: tuple[int, ...]
    last: bool = False


@dataclass(frozen=True, slots=True)
class ReduceWindow:
    """out[s] = combine over r of operand[map(s, r)]: pooling. kind: sum, max, min. Numbered as in `Contract`."""

    kind: str
    spatial: Shape
    reduced: Shape
    operand: AffineMap


@dataclass(frozen=True, slots=True)
class Reshape:
    """The same elements in row-major order under the node's shape."""


@dataclass(frozen=True, slots=True)
class Transpose:
    """Output dimension i is input dimension perm[i]."""

    perm: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Slice:
    """out[i] = x[start + stride * i] along every dimension; a stride may be negative; sizes are the node's shape."""

    starts: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Pad:
    """`low` and `high` elements of `value` at the ends of each dimension, `interior` of them between neighbours.

    low and high may be negative (they crop)."""

    low: tuple[int, ...]
    high: tuple[int, ...]
    interior: tuple[int, ...]
    value: Number


@dataclass(frozen=True, slots=True)
class Broadcast:
    """NumPy broadcasting to the node's shape."""


@dataclass(frozen=True, slots=True)
class Concat:
    """Operands one after another along `axis`."""

    axis: int


@dataclass(frozen=True, slots=True)
class Gather:
    """ONNX Gather: operands data, indices (int32 or int64, negative ones count from the end, clipped to the bounds)."""

    axis: int


@dataclass(frozen=True, slots=True)
class GatherElements:
    """ONNX GatherElements: operands data, indices of the output's shape."""

    axis: int


@dataclass(frozen=True, slots=True)
class GatherND:
    """ONNX GatherND: operands data, indices."""

    batch_dims: int = 0


@dataclass(frozen=True, slots=True)
class ScatterElements:
    """ONNX ScatterElements: operands data, indices, updates; reduction: none, add, mul, max, min."""

    axis: int
    reduction: str = "none"


@dataclass(frozen=True, slots=True)
class ScatterND:
    """ONNX ScatterND: operands data, indices, updates; reduction as above."""

    reduction: str = "none"


@dataclass(frozen=True, slots=True)
class Scan:
    """Running combination along `axis`. kind: sum, prod, max, min."""

    kind: str
    axis: int
    exclusive: bool = False
    reverse: bool = False


@dataclass(frozen=True, slots=True)
class TopK:
    """The `k` first along `axis` in stable order (NaN counts as the largest). part: values, indices (int64)."""

    axis: int
    k: int
    largest: bool
    part: str


@dataclass(frozen=True, slots=True)
class Iota:
    """The index along `axis`, in the node's dtype and shape. No operands."""

    axis: int


Op = (Input | Constant | Elementwise | Contract | Reduce | ReduceWindow | Reshape | Transpose | Slice | Pad | Broadcast
      | Concat | Gather | GatherElements | GatherND | ScatterElements | ScatterND | Scan | TopK | Iota)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Node:
    """One operation: operands by value number, the type of its output, and where it came from (for reports)."""

    op: Op
    inputs: tuple[int, ...]
    type: TensorType
    name: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """Nodes in order, the data of its constants, and its outputs as (name, value number)."""

    nodes: tuple[Node, ...]
    outputs: tuple[tuple[str, int], ...]
    constants: Mapping[str, np.ndarray] = field(default_factory=dict)
