"""A graph as an ONNX model, in the largest operators that say the same: another runtime is measured at its best.

Attention is two products with a softmax between them, which every runtime knows. Not found again: transposed
convolutions that are dilated (they are written as ordinary ones).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import assert_never

import numpy as np

from pipeline.errors import UserError
from pipeline.ir import graph as g
from pipeline.ir.graph import Graph
from pipeline.ir.graph_types import FLOATS, numpy_dtype
from pipeline.report import onnx_products as products
from pipeline.report.composites import Composite, composites
from pipeline.report.onnx_writer import OnnxWriter

_UNARY = {
    "neg": "Neg", "abs": "Abs", "sign": "Sign", "exp": "Exp", "log": "Log", "sqrt": "Sqrt", "reciprocal": "Reciprocal",
    "tanh": "Tanh", "sigmoid": "Sigmoid", "erf": "Erf", "sin": "Sin", "cos": "Cos", "tan": "Tan", "asin": "Asin",
    "acos": "Acos", "atan": "Atan", "sinh": "Sinh", "cosh": "Cosh", "asinh": "Asinh", "acosh": "Acosh",
    "atanh": "Atanh", "floor": "Floor", "ceil": "Ceil", "round": "Round", "not": "Not", "isnan": "IsNaN",
    "isinf": "IsInf", "identity": "Identity",
}  # fmt: skip
_BINARY = {
    "add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "pow": "Pow", "max": "Max", "min": "Min", "and": "And",
    "or": "Or", "xor": "Xor", "eq": "Equal", "lt": "Less", "le": "LessOrEqual", "gt": "Greater",
    "ge": "GreaterOrEqual",
}  # fmt: skip
_REDUCE = {"sum": "ReduceSum", "max": "ReduceMax", "min": "ReduceMin", "prod": "ReduceProd"}
_LIMIT = 2**31 - 2**20  # of a protocol buffer
_LARGEST_LAYOUT = 2**28
_FARTHEST = -(2**62)
_UNSEEN = 1e-30  # beside a mean square; ONNX Runtime takes away a sum with 0 and then knows the chain no more


def to_onnx(graph: Graph) -> bytes:
    """The serialised model. `UserError` where an operation has no ONNX form, or the weights exceed 2 GiB."""
    size = sum(array.nbytes for array in graph.constants.values())
    if size > _LIMIT:
        raise UserError("the model is too large for one ONNX file", why=f"its weights take {size:,} bytes")
    export = _Export(graph)
    inputs = [(node.op.name, v) for v, node in enumerate(graph.nodes) if isinstance(node.op, g.Input)]
    for value in _needed(graph, export):
        export.write(value)
    return export.writer.model(inputs, graph.outputs).SerializeToString()


def _needed(graph: Graph, export: _Export) -> list[int]:
    """The values that the outputs need once composites and windows stand for their parts, in order."""
    wanted = {value for _, value in graph.outputs}
    for value in range(len(graph.nodes) - 1, -1, -1):
        if value in wanted:
            wanted.update(export.operands(value))
    wanted.update(v for v, node in enumerate(graph.nodes) if isinstance(node.op, g.Input))
    return sorted(wanted)


class _Export:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.writer = OnnxWriter(graph)
        self.composites = composites(graph)
        self._topk: dict[tuple[int, int, int, bool], str] = {}
        self._plan: dict[int, tuple[tuple[int, ...], Callable[[], str]]] = {}

    def operands(self, value: int) -> tuple[int, ...]:
        """The values whose ONNX form this one is made from."""
        return self._planned(value)[0]

    def write(self, value: int) -> None:
        self.writer.set(value, self._planned(value)[1]())

    def _planned(self, value: int) -> tuple[tuple[int, ...], Callable[[], str]]:
        if value not in self._plan:
            self._plan[value] = self._choose(value)
        return self._plan[value]

    def _choose(self, value: int) -> tuple[tuple[int, ...], Callable[[], str]]:
        node = self.graph.nodes[value]
        if (average := self._average(value)) is not None:
            return average
        if (composite := self.composites.get(value)) is not None:
            return composite.inputs, lambda: self._composite(composite, value)
        if (transposed := products.find_transposed(self.graph, value)) is not None:
            return (transposed.source, transposed.weights), lambda: self._transposed(transposed, value)
        if isinstance(node.op, g.Contract):
            if (convolution := products.find_convolution(self.graph, value)) is not None:
                sources = (convolution.source, node.inputs[1])
                return sources, lambda: self._convolution(convolution, value)
            return node.inputs, lambda: self._product(value)
        if isinstance(node.op, g.ReduceWindow):
            return self._pooling(node.op, value)
        return node.inputs, lambda: self._plain(value)

    def _dtype(self, value: int) -> str:
        return self.graph.nodes[value].type.dtype

    def _shape(self, value: int) -> g.Shape:
        return self.graph.nodes[value].type.shape

    def _number(self, number: float, value: int) -> str:
        return self.writer.constant(np.asarray(number).astype(numpy_dtype(self.graph.nodes[value].type.dtype)))

    def _composite(self, found: Composite, value: int) -> str:
        emit, names = self.writer.emit, [self.writer.name(i) for i in found.inputs]
        rank = len(self._shape(found.inputs[0]))
        match found.kind:
            case "softmax":
                return emit("Softmax", names, axis=found.axes[0])
            case "log_softmax":
                return emit("LogSoftmax", names, axis=found.axes[0])
            case "gelu":
                return emit("Gelu", names)
            case "gelu_tanh":
                return emit("Gelu", names, approximate="tanh")
            case "relu":
                return emit("Relu", names)
            case "clip":
                return emit("Clip", [*names, self._number(found.low, value), self._number(found.high, value)])
            case "mean":
                return emit("ReduceMean", [*names, self.writer.integers(found.axes)], keepdims=int(found.keep))
            case "layer_norm":
                if len(names) == 1:
                    extents = self._shape(found.inputs[0])[found.axes[0] :]
                    ones = np.ones(extents, numpy_dtype(self.graph.nodes[value].type.dtype))
                    names.append(self.writer.constant(ones))
                return emit("LayerNormalization", names, axis=found.axes[0] - rank, epsilon=found.eps)
            case "rms_norm":
                return self._rms_norm(found, names, value)
            case _:
                assert_never(found.kind)

    def _rms_norm(self, found: Composite, names: list[str], value: int) -> str:
        """In the plain operators that ONNX Runtime and OpenVINO have one kernel for, also where there is no gain and
        nothing is added: operators for all of it are younger than most runtimes, and slower in OpenVINO."""
        emit = self.writer.emit
        width = self._shape(value)[-1:]
        dtype = numpy_dtype(self.graph.nodes[value].type.dtype)
        gain = names[1] if len(names) > 1 else self.writer.constant(np.ones(width, dtype))
        square = emit("Pow", [names[0], self._number(2, value)])
        mean = emit("ReduceMean", [square, self.writer.integers([-1])], keepdims=1)
        root = emit("Sqrt", [emit("Add", [mean, self._number(found.eps or _UNSEEN, value)])])
        return emit("Mul", [emit("Div", [names[0], root]), gain])

    def _convolution(self, found: products.Convolution, value: int) -> str:
        node, writer = self.graph.nodes[value], self.writer
        x = self._as(found.source, node.type.dtype)
        w = self._as(node.inputs[1], node.type.dtype)
        window = found.window
        if found.reversed:
            axes = [2 + place for place in found.reversed]
            count = len(axes)
            limits = [writer.integers(numbers) for numbers in ([-1] * count, [_FARTHEST] * count, axes, [-1] * count)]
            w = writer.emit("Slice", [w, *limits])
        if found.swapped:
            rank = len(window.sizes)
            w = writer.reshape(w, [found.groups, found.inner, found.outer, *window.sizes])
            w = writer.emit("Transpose", [w], perm=[0, 2, 1, *range(3, 3 + rank)])
            w = writer.reshape(w, [found.groups * found.outer, found.inner, *window.sizes])
        y = writer.emit("Conv", [x, w], kernel_shape=window.sizes, strides=window.strides, dilations=window.dilations,
                        pads=window.pads, group=found.groups)  # fmt: skip
        space = node.type.shape[len(node.type.shape) - len(window.sizes) :]
        whole = (self._shape(found.source)[0], found.groups * found.outer, *space)
        return y if whole == node.type.shape else writer.reshape(y, node.type.shape)

    def _as(self, value: int, dtype: g.DType) -> str:
        name = self.writer.name(value)
        return name if self._dtype(value) == dtype else self.writer.cast(name, dtype)

    def _transposed(self, found: products.Transposed, value: int) -> str:
        x, w = (self._as(v, self.graph.nodes[value].type.dtype) for v in (found.source, found.weights))
        window = found.window
        return self.writer.emit("ConvTranspose", [x, w], kernel_shape=window.sizes, strides=window.strides,
                                pads=window.pads, group=found.groups,
                                output_padding=found.padding_beyond)  # fmt: skip

    def _laid_out(self, name: str, side: products.Side, extents: tuple[int, ...]) -> tuple[str, g.Shape | None]:
        """The operand with its windows laid out, and its shape where that has changed."""
        for axis, index in side.gathers:
            name = self.writer.emit("Gather", [name, self.writer.constant(index)], axis=axis)
        if not side.gathers:
            return name, None
        shape = tuple(extents[v] for v in side.variables)
        if math.prod(shape) > _LARGEST_LAYOUT:
            raise products.unsupported("a contraction", f"its window laid out has {math.prod(shape):,} elements")
        return self.writer.reshape(name, shape), shape

    def _product(self, value: int) -> str:
        node, writer = self.graph.nodes[value], self.writer
        found = products.find_einsum(self.graph, value)
        assert isinstance(node.op, g.Contract)
        if found is None:
            raise products.unsupported("a contraction", f"an output variable has no operand: {node.op}")
        extents = (*node.op.spatial, *node.op.reduced)
        sides = (found.lhs, found.rhs)
        live = tuple(v for v in range(len(node.op.spatial)) if any(v in side.variables for side in sides))
        names: list[str] = []
        shapes: list[g.Shape] = []
        for operand, side in zip(node.inputs, sides, strict=True):
            name, changed = self._laid_out(self._as(operand, node.type.dtype), side, extents)
            names.append(name)
            shapes.append(self._shape(operand) if changed is None else changed)
        lhs, rhs = (side.variables for side in sides)
        if not found.is_product or 0 in extents:
            plain = [writer.reshape(name, [extents[v] for v in side])
                     for name, side in zip(names, (lhs, rhs), strict=True)]  # fmt: skip
            spec = ",".join(map(products.letters_of, (lhs, rhs))) + "->" + products.letters_of(live)
            return writer.reshape(writer.emit("Einsum", plain, equation=spec), node.type.shape)

        def size(variables: tuple[int, ...]) -> int:
            return math.prod(extents[v] for v in variables)

        batch = [extents[v] for v in found.batch]
        # Where nothing is shared with the right side, one product takes any number of row dimensions.
        rows = [extents[v] for v in found.rows] if not batch and found.rows else [size(found.rows)]
        left = self._ordered(names[0], shapes[0], lhs,
                             (*found.batch, *found.rows, *found.inner), extents,
                             [*batch, *rows, size(found.inner)])  # fmt: skip
        right = self._ordered(names[1], shapes[1], rhs,
                              (*found.batch, *found.inner, *found.columns), extents,
                              [*batch, size(found.inner), size(found.columns)])  # fmt: skip
        made = writer.emit("MatMul", [left, right])
        shape: list[int] = [*batch, *rows, size(found.columns)]
        order = (*found.batch, *found.rows, *found.columns)
        if order != live:
            made = writer.reshape(made, [extents[v] for v in order])
            made = writer.emit("Transpose", [made], perm=[order.index(v) for v in live])
            shape = [extents[v] for v in live]
        return made if tuple(shape) == node.type.shape else writer.reshape(made, node.type.shape)

    def _ordered(self, name: str, shape: g.Shape, given: tuple[int, ...], wanted: tuple[int, ...],
                 extents: tuple[int, ...], target: list[int]) -> str:  # fmt: skip
        """The operand with its variables in another order, then in another shape."""
        if given != wanted:
            if len(shape) != len(given):
                name = self.writer.reshape(name, [extents[v] for v in given])
            name = self.writer.emit("Transpose", [name], perm=[given.index(v) for v in wanted])
            shape = tuple(extents[v] for v in wanted)
        return name if list(shape) == target else self.writer.reshape(name, target)

    def _pooling(self, op: g.ReduceWindow, value: int) -> tuple[tuple[int, ...], Callable[[], str]]:
        fill = {"max": -math.inf, "sum": 0.0, "min": None}[op.kind]
        found = products.find_pooling(self.graph, value, merge=fill)
        if found is None or self._dtype(value) not in FLOATS:
            raise products.unsupported("a window reduction", f"it is not over the dimensions after the first two: {op}")
        window, kind = found.window, op.kind

        def write() -> str:
            name = self.writer.name(found.source)
            if kind == "sum":
                mean = self._window_of("AveragePool", name, window, count_include_pad=1)
                return self.writer.emit("Mul", [mean, self._number(math.prod(window.sizes), value)])
            if kind == "max":
                return self._window_of("MaxPool", name, window)
            least = self._window_of("MaxPool", self.writer.emit("Neg", [name]), window)
            return self.writer.emit("Neg", [least])

        return (found.source,), write

    def _average(self, value: int) -> tuple[tuple[int, ...], Callable[[], str]] | None:
        """A sum over windows divided by their sizes, with the padding counted or not."""
        node = self.graph.nodes[value]
        if node.op != g.Elementwise("div") or node.type.dtype not in FLOATS:
            return None
        total, divisor = (self.graph.nodes[i] for i in node.inputs)
        if not isinstance(total.op, g.ReduceWindow) or not isinstance(divisor.op, g.Constant) or total.op.kind != "sum":
            return None
        found = products.find_pooling(self.graph, node.inputs[0], merge=0.0)
        if found is None or total.type.shape != node.type.shape:
            return None
        window, counts = found.window, self.graph.constants[divisor.op.key]
        inside = products.counts_of(window, self._shape(found.source)[2:], total.type.shape[2:])
        if counts.ndim > inside.ndim:
            return None
        for counted, right in ((1, np.asarray(float(math.prod(window.sizes)))), (0, inside)):
            if np.array_equal(np.broadcast_to(counts, inside.shape), np.broadcast_to(right, inside.shape)):
                return (found.source,), lambda counted=counted: self._window_of(  # type: ignore[misc]
                    "AveragePool", self.writer.name(found.source), window, count_include_pad=counted
                )
        return None

    def _window_of(self, op: str, name: str, window: products.Window, **attributes: int) -> str:
        return self.writer.emit(op, [name], kernel_shape=window.sizes, strides=window.strides, pads=window.pads,
                                dilations=window.dilations, **attributes)  # fmt: skip

    def _plain(self, value: int) -> str:
        node, writer = self.graph.nodes[value], self.writer
        names = [writer.name(i) for i in node.inputs]
        match node.op:
            case g.Input(name):
                return name
            case g.Constant(key):
                return writer.constant(self.graph.constants[key])
            case g.Elementwise(fn):
                return self._elementwise(fn, names, value)
            case g.Reduce(kind, axes, last):
                if kind in ("argmax", "argmin"):
                    op = "ArgMax" if kind == "argmax" else "ArgMin"
                    return writer.emit(op, names, axis=axes[0], keepdims=0, select_last_index=int(last))
                return writer.emit(_REDUCE[kind], [*names, writer.integers(axes)], keepdims=0)
            case g.Reshape():
                return writer.reshape(names[0], node.type.shape)
            case g.Transpose(perm):
                return writer.emit("Transpose", names, perm=perm)
            case g.Slice(starts, strides):
                ends = [start + step * size for start, step, size in zip(starts, strides, node.type.shape, strict=True)]
                ends = [end if end >= 0 else _FARTHEST for end in ends]
                axes = tuple(range(len(starts)))
                return writer.emit("Slice", [*names, *map(writer.integers, (starts, ends, axes, strides))])
            case g.Pad():
                return self._pad(node.op, names[0], self._shape(node.inputs[0]), value)
            case g.Broadcast():
                return writer.emit("Expand", [*names, writer.integers(node.type.shape)])
            case g.Concat(axis):
                return writer.emit("Concat", names, axis=axis)
            case g.Gather(axis):
                return writer.emit("Gather", names, axis=axis)
            case g.GatherElements(axis):
                return writer.emit("GatherElements", names, axis=axis)
            case g.GatherND(batch_dims):
                return writer.emit("GatherND", names, batch_dims=batch_dims)
            case g.ScatterElements(axis, reduction):
                return writer.emit("ScatterElements", names, axis=axis, reduction=reduction)
            case g.ScatterND(reduction):
                return writer.emit("ScatterND", names, reduction=reduction)
            case g.Scan("sum", axis, exclusive, reverse):
                place = writer.constant(np.asarray(axis, np.int64))
                return writer.emit("CumSum", [*names, place], exclusive=int(exclusive), reverse=int(reverse))
            case g.Scan(kind):
                raise products.unsupported(f"a running {kind}", "ONNX has running sums only")
            case g.TopK(axis, k, largest, part):
                pair = (node.inputs[0], axis, k, largest)
                if pair not in self._topk:
                    self._topk[pair] = writer.emit(
                        "TopK", [*names, writer.integers([k])], 2, axis=axis, largest=int(largest)
                    )
                return self._topk[pair] + ("" if part == "values" else ".1")
            case g.Iota(axis):
                column = [-1 if i == axis else 1 for i in range(len(node.type.shape))]
                index = np.arange(node.type.shape[axis]).reshape(column)
                return writer.constant(np.broadcast_to(index, node.type.shape).astype(numpy_dtype(node.type.dtype)))
            case g.Contract() | g.ReduceWindow():
                raise AssertionError("chosen before")
            case _:
                assert_never(node.op)

    def _elementwise(self, fn: str, names: list[str], value: int) -> str:
        emit, dtype = self.writer.emit, self.graph.nodes[value].type.dtype
        match fn:
            case "cast":
                return self.writer.cast(names[0], dtype)
            case "rsqrt":
                return emit("Reciprocal", [emit("Sqrt", names)])
            case "where":
                return emit("Where", names)
            case "ne":
                return emit("Not", [emit("Equal", names)])
            case "fmod":
                return emit("Mod", names, fmod=1)
            case "mod" if dtype not in FLOATS:
                return emit("Mod", names)
            case "mod":
                rest = emit("Mod", names, fmod=1)
                zero = self._number(0, value)
                apart = emit("Xor", [emit("Less", [rest, zero]), emit("Less", [names[1], zero])])
                wrong = emit("And", [apart, emit("Not", [emit("Equal", [rest, zero])])])
                return emit("Where", [wrong, emit("Add", [rest, names[1]]), rest])
            case _:
                return emit(_UNARY[fn] if fn in _UNARY else _BINARY[fn], names)

    def _pad(self, op: g.Pad, name: str, shape: g.Shape, value: int) -> str:
        writer, fill = self.writer, self._number(op.value, value)
        if any(op.interior):
            between = [gap if size > 1 else 0 for gap, size in zip(op.interior, shape, strict=True)]
            split = [extent for size in shape for extent in (size, 1)]
            ends = [extent for gap in between for extent in (0, gap)]
            name = writer.reshape(name, split)
            name = writer.emit("Pad", [name, writer.integers([0] * len(split) + ends), fill])
            wide = [size * (gap + 1) for size, gap in zip(shape, between, strict=True)]
            name = writer.reshape(name, wide)
            stops = [max(0, extent - gap) for extent, gap in zip(wide, between, strict=True)]
            axes = tuple(range(len(shape)))
            name = writer.emit("Slice", [name, *map(writer.integers, ([0] * len(shape), stops, axes))])
        return writer.emit("Pad", [name, writer.integers([*op.low, *op.high]), fill])
