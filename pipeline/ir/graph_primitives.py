"""The builder of single graph nodes: types are inferred, constants folded, equal nodes shared, identities dropped."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from pipeline.errors import CheckError
from pipeline.ir import graph as g
from pipeline.ir.evaluate import evaluate_node
from pipeline.ir.graph import AffineDim, AffineMap, DType, Node, Shape, TensorType
from pipeline.ir.graph_constant import constant_key
from pipeline.ir.graph_types import INTEGERS, infer, numpy_dtype, out_of_bounds, promote, refuse_too_large, type_of

FOLD_ALWAYS = 1 << 20  # elements; a larger result is folded when it is not much larger than its operands
FOLD_GROWTH = 4
RIGHT_IDENTITY = {"add": 0, "sub": 0, "mul": 1, "div": 1, "pow": 1}
LEFT_IDENTITY = {"add": 0, "mul": 1}


class PrimitiveBuilder:
    """Adds nodes one by one; every method gives the number of the value that it adds (or finds)."""

    def __init__(self) -> None:
        self._nodes: list[Node] = []
        self._constants: dict[str, np.ndarray] = {}
        self._known: dict[tuple[object, ...], int] = {}
        self._scopes: list[str] = []

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Nodes that are added inside are named after it; scopes nest with a slash."""
        self._scopes.append(name)
        try:
            yield
        finally:
            self._scopes.pop()

    def type(self, value: int) -> TensorType:
        return self._nodes[value].type

    def shape(self, value: int) -> Shape:
        return self._nodes[value].type.shape

    def dtype(self, value: int) -> DType:
        return self._nodes[value].type.dtype

    def value_of(self, value: int) -> np.ndarray | None:
        """The data if they are known now (not to be written to), else None."""
        op = self._nodes[value].op
        return self._constants[op.key] if isinstance(op, g.Constant) else None

    def input(self, name: str, shape: Sequence[int], dtype: DType) -> int:
        if any(isinstance(node.op, g.Input) and node.op.name == name for node in self._nodes):
            raise CheckError("two inputs have one name", where=name)
        return self.add(g.Input(name), shape=_ints(shape), dtype=dtype)

    def constant(self, array: np.ndarray | np.generic, name: str = "") -> int:
        """A known tensor. The data are not copied and must not change afterwards."""
        data = np.asarray(array, order="C").view()
        data.flags.writeable = False
        key = constant_key(data)
        self._constants.setdefault(key, data)
        kind = type_of(data)
        return self._append(g.Constant(key), (), kind, name)

    def add(self, op: g.Op, *operands: int, shape: Shape | None = None, dtype: DType | None = None) -> int:
        """A node of any operation; see `graph_types.infer` for the hints."""
        kinds = [self.type(v) for v in operands]
        result = infer(op, kinds, shape=shape, dtype=dtype)
        refuse_too_large(result, "/".join(self._scopes) or type(op).__name__)
        reason = out_of_bounds(op, kinds)
        if reason:
            raise CheckError("an index leaves its operand", where="/".join(self._scopes), why=reason)
        folded = self._fold(op, operands, result)
        return self._append(op, operands, result) if folded is None else folded

    def scalar(self, number: float, like: int) -> int:
        """A constant of rank 0 in the dtype of `like`."""
        return self.constant(np.asarray(number).astype(numpy_dtype(self.dtype(like))))

    def elementwise(self, fn: str, *operands: int, dtype: DType | None = None) -> int:
        """A scalar function with broadcasting; different dtypes are promoted by casts. `cast` needs `dtype`."""
        if fn == "identity":
            return operands[0]
        if fn == "cast":
            same = self.dtype(operands[0]) == dtype
            return operands[0] if same else self.add(g.Elementwise(fn), *operands, dtype=dtype)
        condition, values = (operands[:1], operands[1:]) if fn == "where" else ((), operands)
        if len({self.dtype(v) for v in values}) > 1:
            common = promote([self.dtype(v) for v in values])
            values = tuple(self.cast(v, common) for v in values)
        kept = self._neutral(fn, values)
        return self.add(g.Elementwise(fn), *condition, *values, dtype=dtype) if kept is None else kept

    def cast(self, x: int, dtype: DType) -> int:
        return self.elementwise("cast", x, dtype=dtype)

    def contract(self, lhs: int, rhs: int, spatial: Sequence[int], reduced: Sequence[int], lhs_map: AffineMap,
                 rhs_map: AffineMap, dtype: DType | None = None) -> int:  # fmt: skip
        """See `graph.Contract`; `dtype` may widen the result."""
        return self.add(g.Contract(_ints(spatial), _ints(reduced), lhs_map, rhs_map), lhs, rhs, dtype=dtype)

    def reduce(self, kind: str, x: int, axes: Sequence[int], keepdims: bool = False, last: bool = False) -> int:
        """A reduction of `graph.Reduce`, or "mean" (in float32 at least)."""
        shape = self.shape(x)
        ordered = tuple(sorted({_positive(axis, len(shape)) for axis in axes}))
        if kind == "mean":
            count = math.prod(shape[axis] for axis in ordered)
            wide = self.cast(x, "float32") if self.dtype(x) in ("float16", "bfloat16") else x
            total = self.reduce("sum", wide, ordered, keepdims)
            return self.cast(self.elementwise("div", total, self.scalar(count, total)), self.dtype(x))
        out = x if not ordered and kind in ("sum", "max", "min", "prod") else self.add(g.Reduce(kind, ordered, last), x)
        if not keepdims:
            return out
        return self.reshape(out, tuple(1 if axis in ordered else size for axis, size in enumerate(shape)))

    def reduce_window(self, kind: str, x: int, spatial: Sequence[int], reduced: Sequence[int],
                      operand_map: AffineMap) -> int:  # fmt: skip
        return self.add(g.ReduceWindow(kind, _ints(spatial), _ints(reduced), operand_map), x)

    def reshape(self, x: int, shape: Sequence[int]) -> int:
        """One size may be -1: it is what is left."""
        sizes = _ints(shape)
        if sizes.count(-1) == 1:
            rest = math.prod(size for size in sizes if size != -1)
            whole = math.prod(self.shape(x)) // rest if rest else 0
            sizes = tuple(whole if size == -1 else size for size in sizes)
        node = self._nodes[x]
        if isinstance(node.op, g.Reshape):
            x = node.inputs[0]
        return x if self.shape(x) == sizes else self.add(g.Reshape(), x, shape=sizes)

    def transpose(self, x: int, perm: Sequence[int]) -> int:
        order = tuple(_positive(p, len(self.shape(x))) for p in perm)
        node = self._nodes[x]
        if isinstance(node.op, g.Transpose) and sorted(order) == list(range(len(self.shape(x)))):
            inner = node.op.perm
            x, order = node.inputs[0], tuple(inner[p] for p in order)
        return x if order == tuple(range(len(self.shape(x)))) else self.add(g.Transpose(order), x)

    def slice(self, x: int, starts: Sequence[int | None], stops: Sequence[int | None],
              steps: Sequence[int] | None = None, axes: Sequence[int] | None = None) -> int:  # fmt: skip
        """Python's slicing (negative ends count from the back, all are clamped), of all dimensions or of `axes`."""
        shape = self.shape(x)
        chosen = range(len(shape)) if axes is None else [_positive(axis, len(shape)) for axis in axes]
        begin, stride, size = [0] * len(shape), [1] * len(shape), list(shape)
        for axis, start, stop, step in zip(chosen, starts, stops, steps or [1] * len(starts), strict=True):
            span = range(*slice(start, stop, step).indices(shape[axis]))
            begin[axis], stride[axis], size[axis] = (span[0] if span else 0), (span.step if span else 1), len(span)
        if tuple(size) == shape and all(step == 1 or n == 1 for step, n in zip(stride, size, strict=True)):
            return x
        return self.add(g.Slice(tuple(begin), tuple(stride)), x, shape=tuple(size))

    def pad(self, x: int, low: Sequence[int], high: Sequence[int], interior: Sequence[int] | None = None,
            value: g.Number = 0) -> int:  # fmt: skip
        """See `graph.Pad`; negative ends crop."""
        between = _ints(interior) if interior is not None else (0,) * len(self.shape(x))
        spread = any(mid and size > 1 for mid, size in zip(between, self.shape(x), strict=True))
        if not any(low) and not any(high) and not spread:
            return x
        if not spread and max(low) <= 0 and max(high) <= 0:
            stops = [size + hi for size, hi in zip(self.shape(x), high, strict=True)]
            if min(stops) >= 0:
                return self.slice(x, [-lo for lo in low], stops)
        whole = isinstance(value, int) and self.dtype(x) in INTEGERS
        return self.add(g.Pad(_ints(low), _ints(high), between, value if whole else float(value)), x)

    def broadcast(self, x: int, shape: Sequence[int]) -> int:
        return x if self.shape(x) == tuple(shape) else self.add(g.Broadcast(), x, shape=_ints(shape))

    def concat(self, xs: Sequence[int], axis: int) -> int:
        """Empty operands are left out."""
        place = _positive(axis, len(self.shape(xs[0])))
        full = [x for x in xs if self.shape(x)[place] != 0] or [xs[0]]
        return full[0] if len(full) == 1 else self.add(g.Concat(place), *full)

    def gather(self, data: int, indices: int, axis: int = 0) -> int:
        return self.add(g.Gather(_positive(axis, len(self.shape(data)))), data, indices)

    def gather_elements(self, data: int, indices: int, axis: int = 0) -> int:
        return self.add(g.GatherElements(_positive(axis, len(self.shape(data)))), data, indices)

    def gather_nd(self, data: int, indices: int, batch_dims: int = 0) -> int:
        return self.add(g.GatherND(int(batch_dims)), data, indices)

    def scatter_elements(self, data: int, indices: int, updates: int, axis: int = 0, reduction: str = "none") -> int:
        return self.add(g.ScatterElements(_positive(axis, len(self.shape(data))), reduction), data, indices, updates)

    def scatter_nd(self, data: int, indices: int, updates: int, reduction: str = "none") -> int:
        return self.add(g.ScatterND(reduction), data, indices, updates)

    def scan(self, kind: str, x: int, axis: int, exclusive: bool = False, reverse: bool = False) -> int:
        return self.add(g.Scan(kind, _positive(axis, len(self.shape(x))), exclusive, reverse), x)

    def topk(self, x: int, k: int, axis: int = -1, largest: bool = True) -> tuple[int, int]:
        """The values and their indices."""
        place = _positive(axis, len(self.shape(x)))
        parts = (self.add(g.TopK(place, int(k), largest, part), x) for part in ("values", "indices"))
        return next(parts), next(parts)

    def iota(self, shape: Sequence[int], axis: int, dtype: DType) -> int:
        return self.add(g.Iota(_positive(axis, len(shape))), shape=_ints(shape), dtype=dtype)

    def _append(self, op: g.Op, operands: tuple[int, ...], kind: TensorType, name: str = "") -> int:
        # equal floats may differ in the sign of zero, hence the text of a padding value
        key = (op, operands, kind, repr(op.value) if isinstance(op, g.Pad) else "")
        if key not in self._known:
            self._known[key] = len(self._nodes)
            path = [*self._scopes, name] if name else self._scopes
            self._nodes.append(Node(op, operands, kind, "/".join(path)))
        return self._known[key]

    def _fold(self, op: g.Op, operands: tuple[int, ...], result: TensorType) -> int | None:
        """The value of a node on constants, unless it is far larger than its operands."""
        if isinstance(op, g.Input):
            return None
        data = [value for v in operands if (value := self.value_of(v)) is not None]
        size = math.prod(result.shape)
        if len(data) < len(operands) or size > max(FOLD_ALWAYS, FOLD_GROWTH * sum(x.size for x in data)):
            return None
        return self.constant(evaluate_node(op, data, result))

    def _neutral(self, fn: str, values: Sequence[int]) -> int | None:
        """The operand that is the result already: x * 1, x + 0 and the like, exact in every bit."""
        for table, kept, other in ((RIGHT_IDENTITY, 0, 1), (LEFT_IDENTITY, 1, 0)):
            if len(values) != 2 or fn not in table:
                continue
            number = self.value_of(values[other])
            kind = self.type(values[kept])
            if number is None or number.size != 1 or kind.dtype == "bool":
                continue
            if len(number.shape) > len(kind.shape) or float(number.reshape(())) != table[fn]:
                continue
            # for floats only -0 is neutral in x + 0 (0 + -0 is 0), and only +0 in x - 0
            if fn in ("add", "sub") and number.dtype.kind not in "iu" and bool(np.signbit(number)) != (fn == "add"):
                continue
            return values[kept]
        return None


def axis_map(*variables: int | None) -> AffineMap:
    """The map of plain indices: one iteration variable for each dimension, None for index 0."""
    return tuple(AffineDim(() if v is None else ((v, 1),)) for v in variables)


def _positive(axis: int, rank: int) -> int:
    if not -rank <= axis < max(rank, 1):
        raise CheckError("no such axis", why=f"{axis} for rank {rank}")
    return int(axis) + rank if axis < 0 else int(axis)


def _ints(values: Sequence[int]) -> tuple[int, ...]:
    """Plain integers: NumPy's compare equal but print differently."""
    return tuple(int(value) for value in values)
