"""An exported model as a torch.fx module: straight-line code of PyTorch's own operators, ready for `torch.compile`.

A product with a constant matrix becomes a linear layer with its bias; constant scales and offsets after a convolution
go into its weights, as an export from PyTorch would have it. A chain that PyTorch has a function for is that function.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from pipeline.errors import UserError
from pipeline.report.peers.onnx_types import OnnxTypes
from pipeline.report.peers.torch_fusions import Fusions, attend
from pipeline.report.peers.torch_names import BINARY, SCATTER, UNARY

# The node whose outputs are made, the values that they are made from, and how.
_Plan = tuple[onnx.NodeProto, list[str], Callable[..., Any]]


def to_torch(model: onnx.ModelProto, torch: Any, *, attention: bool = True) -> Any:
    """The torch.fx.GraphModule of a model that `to_onnx` made: inputs in order, a tuple of outputs.

    attention  where the model has attention, call `scaled_dot_product_attention`; else its products and softmax
    """
    return _Translation(model, torch, attention).module()


class _Translation:
    def __init__(self, model: onnx.ModelProto, torch: Any, attention: bool) -> None:
        self._torch, self._model, self._attention = torch, model, attention
        self._root = torch.nn.Module()
        self._code = torch.fx.Graph()
        self._constants = {item.name: numpy_helper.to_array(item) for item in model.graph.initializer}
        self._types = OnnxTypes(model, self._constants)
        self._values: dict[str, Any] = {}
        self._by_output = {node.output[0]: node for node in model.graph.node}
        self._uses: dict[str, int] = {}
        self._stored_count = 0
        for node in model.graph.node:
            for name in node.input:
                self._uses[name] = self._uses.get(name, 0) + 1
        self._fusions = Fusions(self._by_output, self._constants, self._uses, self._types.shape)

    def module(self) -> Any:
        graph = self._model.graph
        for value in graph.input:
            self._values[value.name] = self._code.placeholder(f"input_{len(self._values)}")
        outputs = [self._value(value.name) for value in graph.output]
        self._code.output(tuple(outputs))
        module = self._torch.fx.GraphModule(self._root, self._code)
        return module.eval()

    def _value(self, wanted: str) -> Any:
        """The fx node of a value; what it needs is written first, without recursion as deep as the model."""
        pending = [wanted]
        while pending:
            name = pending[-1]
            if name in self._values:
                pending.pop()
                continue
            if name in self._constants:
                self._values[name] = self._stored(self._constants[name])
                continue
            node, needs, write = self._planned(name)
            missing = [need for need in needs if need not in self._values]
            if missing:
                pending.extend(missing)
                continue
            made = write(*(self._values[need] for need in needs))
            for place, output in enumerate(node.output):
                self._values[output] = made if len(node.output) == 1 else self._call(operator.getitem, made, place)
        return self._values[wanted]

    def _planned(self, name: str) -> _Plan:
        """The node, the values that it is made from, and how; a chain that PyTorch has one operator for is one."""
        base = name.partition(".")[0] if name not in self._by_output else name
        node = self._by_output[base]
        if (fused := self._fused(node) or self._layer(node)) is not None:
            return fused
        needs, write = self._operator(node)
        return node, needs, write

    def _fused(self, last: onnx.NodeProto) -> _Plan | None:
        torch, call = self._torch, self._call
        functional = torch.nn.functional
        if self._attention and (found := self._fusions.attention(last)) is not None:
            names, mask = [found.query, found.key, found.value], found.mask
            if isinstance(mask, str):
                return last, [*names, mask], lambda q, k, v, m: attend(found, torch, call, q, k, v, m)

            def write(q: Any, k: Any, v: Any) -> Any:
                return attend(found, torch, call, q, k, v, None if mask is None else self._stored(mask))

            return last, names, write
        if (gate := self._fusions.silu(last)) is not None:
            return last, [gate], lambda x: call(functional.silu, x)
        if (norm := self._fusions.rms_norm(last)) is not None:
            needs, shape = [norm.x, *([] if norm.gain is None else [norm.gain])], self._types.shape(norm.x)[-1:]
            return last, needs, lambda x, gain=None: call(functional.rms_norm, x, shape, gain, norm.eps)
        return None

    def _layer(self, last: onnx.NodeProto) -> _Plan | None:
        """A linear layer or a convolution with what follows it, where its weights are constant."""
        scale: np.ndarray | None = None
        offset: np.ndarray | None = None
        node = last
        while node.op_type in ("Add", "Mul"):
            names = [name for name in node.input if name in self._constants]
            others = [name for name in node.input if name not in self._constants]
            if len(names) != 1 or others[0] not in self._by_output or self._uses[others[0]] != 1:
                return None
            value = self._constants[names[0]]
            if node.op_type == "Add":
                if offset is not None or scale is not None:
                    return None
                offset = value
            elif scale is not None:
                return None
            else:
                scale = value
            node = self._by_output[others[0]]
        weights = self._constants.get(node.input[1]) if len(node.input) > 1 else None
        if weights is None or node.op_type not in ("MatMul", "Conv"):
            return None
        if node.op_type == "MatMul":
            return self._linear(last, node, weights, scale, offset)
        return self._convolution(last, node, weights, scale, offset)

    def _linear(self, last: onnx.NodeProto, node: onnx.NodeProto, weights: np.ndarray, scale: np.ndarray | None,
                offset: np.ndarray | None) -> _Plan | None:  # fmt: skip
        if weights.ndim != 2 or scale is not None or weights.dtype.kind != "f":
            return None
        if offset is not None and offset.shape != weights.shape[1:]:
            return None
        functional = self._torch.nn.functional

        def write(x: Any) -> Any:
            bias = None if offset is None else self._stored(offset)
            return self._call(functional.linear, x, self._stored(np.ascontiguousarray(weights.T)), bias)

        return last, [node.input[0]], write

    def _convolution(self, last: onnx.NodeProto, node: onnx.NodeProto, weights: np.ndarray, scale: np.ndarray | None,
                     offset: np.ndarray | None) -> _Plan | None:  # fmt: skip
        channels, rank = weights.shape[0], weights.ndim - 2
        flat: list[np.ndarray | None] = []
        for value in (scale, offset):
            if value is None:
                flat.append(None)
            elif value.shape in ((channels, *(1,) * rank), (1, channels, *(1,) * rank)):
                flat.append(value.reshape(-1))
            else:
                return None
        if flat[0] is not None:
            weights = weights * flat[0].reshape(-1, *(1,) * (rank + 1))

        def write(x: Any) -> Any:
            bias = None if flat[1] is None else self._stored(flat[1])
            return self._convolve(node, x, self._stored(weights), bias)

        return last, [node.input[0]], write

    def _call(self, function: Any, *arguments: Any, **named: Any) -> Any:
        return self._code.call_function(function, arguments, named)

    def _stored(self, array: np.ndarray) -> Any:
        if array.dtype.name == "bfloat16":
            tensor = self._torch.from_numpy(array.view(np.int16).copy()).view(self._torch.bfloat16)
        else:
            tensor = self._torch.from_numpy(np.array(array, order="C"))
        self._stored_count += 1
        name = f"constant_{self._stored_count}"
        self._root.register_buffer(name, tensor)
        return self._code.get_attr(name)

    def _known(self, name: str) -> list[int]:
        return [int(number) for number in self._constants[name].reshape(-1)]

    def _operator(self, node: onnx.NodeProto) -> tuple[list[str], Callable[..., Any]]:
        torch, call = self._torch, self._call
        functional = torch.nn.functional
        names, a = list(node.input), {item.name: helper.get_attribute_value(item) for item in node.attribute}
        op = node.op_type
        match op:
            case _ if op in UNARY:
                return names, lambda x: call(getattr(torch, UNARY[op]), x)
            case _ if op in BINARY:
                return names, lambda x, y: call(getattr(torch, BINARY[op]), x, y)
            case "Identity":
                return names, lambda x: x
            case "Div":
                integers = self._types.kind(names[0]) in "iu"
                rounding = {"rounding_mode": "trunc"} if integers else {}
                return names, lambda x, y: call(torch.div, x, y, **rounding)
            case "Mod":
                function = torch.fmod if a.get("fmod", 0) else torch.remainder
                return names, lambda x, y: call(function, x, y)
            case "Cast":
                dtype = self._dtype(a["to"])
                return names, lambda x: call(torch.Tensor.to, x, dtype)
            case "Where":
                return names, lambda c, x, y: call(torch.where, c, x, y)
            case "Clip":
                low, high = (float(self._constants[name]) for name in names[1:])
                return names[:1], lambda x: call(torch.clamp, x, low, high)
            case "Gelu":
                approximate = a.get("approximate", b"none").decode()
                return names, lambda x: call(functional.gelu, x, approximate=approximate)
            case "Softmax" | "LogSoftmax":
                function = functional.softmax if op == "Softmax" else functional.log_softmax
                return names, lambda x: call(function, x, a["axis"])
            case "LayerNormalization":
                shape, eps = (
                    tuple(self._constants[names[1]].shape) if names[1] in self._constants else None,
                    a["epsilon"],
                )
                if shape is None:
                    shape = self._types.shape(names[1])
                return names, lambda x, w, b=None: call(functional.layer_norm, x, shape, w, b, eps)
            case "Conv":
                return names, lambda x, w: self._convolve(node, x, w, None)
            case "ConvTranspose":
                return names, lambda x, w: self._convolve_transposed(node, x, w)
            case "MaxPool" | "AveragePool":
                return names, lambda x: self._pool(op, a, x)
            case "Einsum":
                return names, lambda x, y: call(torch.einsum, a["equation"].decode(), x, y)
            case "ReduceSum" | "ReduceMax" | "ReduceMin" | "ReduceMean":
                axes = self._known(names[1])
                functions = {"ReduceSum": torch.sum, "ReduceMax": torch.amax, "ReduceMin": torch.amin,
                             "ReduceMean": torch.mean}  # fmt: skip
                extra = {"dtype": self._dtype(self._types.element(names[0]))} if op == "ReduceSum" else {}
                return names[:1], lambda x: call(functions[op], x, axes, bool(a["keepdims"]), **extra)
            case "ReduceProd":
                return names[:1], lambda x: self._product_over(x, self._known(names[1]))
            case "ArgMax" | "ArgMin":
                return names, lambda x: self._argument(op, a, names[0], x)
            case "CumSum" | "TopK" | "Gather" | "GatherElements" | "GatherND" | "ScatterElements" | "ScatterND":
                return self._indexed(op, names, a)
            case "Reshape":
                shape_to = self._known(names[1])
                return names[:1], lambda x: call(torch.reshape, x, shape_to)
            case "Transpose":
                return names, lambda x: call(torch.permute, x, list(a["perm"]))
            case "Expand":
                shape_to = self._known(names[1])
                return names[:1], lambda x: call(torch.Tensor.expand, x, shape_to)
            case "Concat":
                return names, lambda *xs: call(torch.cat, list(xs), a["axis"])
            case "Slice":
                return names[:1], lambda x: self._slice(names, x)
            case "Pad":
                low_high, fill = self._known(names[1]), self._constants[names[2]].item()
                return names[:1], lambda x: self._pad(x, low_high, fill)
            case _:
                raise UserError(f"{op} has no PyTorch form here", where=node.output[0])

    def _indexed(self, op: str, names: Sequence[str], a: dict[str, Any]) -> tuple[list[str], Callable[..., Any]]:
        torch, call = self._torch, self._call
        axis = a.get("axis", 0)
        long = torch.int64
        match op:
            case "CumSum":
                place = int(self._constants[names[1]])

                def running(x: Any) -> Any:
                    y = call(torch.flip, x, [place]) if a["reverse"] else x
                    total = call(torch.cumsum, y, place, dtype=self._dtype(self._types.element(names[0])))
                    total = call(torch.sub, total, y) if a["exclusive"] else total
                    return call(torch.flip, total, [place]) if a["reverse"] else total

                return [names[0]], running
            case "TopK":
                (k,) = self._known(names[1])
                return [names[0]], lambda x: call(torch.topk, x, k, axis, bool(a["largest"]), True)
            case "Gather":
                size, shape = self._types.shape(names[0])[axis], self._types.shape(names[1])

                def gather(x: Any, i: Any) -> Any:
                    i = call(torch.remainder, call(torch.Tensor.to, i, long), size)
                    flat = call(torch.index_select, x, axis, call(torch.reshape, i, [-1]))
                    whole = self._types.shape(names[0])
                    return call(torch.reshape, flat, [*whole[:axis], *shape, *whole[axis + 1 :]])

                return list(names), gather
            case "GatherElements":
                size = self._types.shape(names[0])[axis]
                return list(names), lambda x, i: call(
                    torch.gather, x, axis, call(torch.remainder, call(torch.Tensor.to, i, long), size)
                )
            case "ScatterElements":
                size, reduction = self._types.shape(names[0])[axis], a.get("reduction", b"none").decode()

                def scatter(x: Any, i: Any, u: Any) -> Any:
                    i = call(torch.remainder, call(torch.Tensor.to, i, long), size)
                    if reduction == "none":
                        return call(torch.scatter, x, axis, i, u)
                    return call(torch.scatter_reduce, x, axis, i, u, SCATTER[reduction])

                return list(names), scatter
            case _:
                raise UserError(f"{op} has no PyTorch form here", todo="Leave torch out of compare.peers")

    def _convolve(self, node: onnx.NodeProto, x: Any, w: Any, bias: Any) -> Any:
        a = {item.name: helper.get_attribute_value(item) for item in node.attribute}
        rank = len(a["kernel_shape"])
        low, high = a["pads"][:rank], a["pads"][rank:]
        if low != high:
            x, low = self._pad(x, [0, 0, *low, 0, 0, *high], 0.0), [0] * rank
        function = getattr(self._torch.nn.functional, f"conv{rank}d")
        return self._call(function, x, w, bias, list(a["strides"]), list(low), list(a["dilations"]), a["group"])

    def _convolve_transposed(self, node: onnx.NodeProto, x: Any, w: Any) -> Any:
        a = {item.name: helper.get_attribute_value(item) for item in node.attribute}
        rank = len(a["kernel_shape"])
        low, high = a["pads"][:rank], a["pads"][rank:]
        function = getattr(self._torch.nn.functional, f"conv_transpose{rank}d")
        same = [min(pair) for pair in zip(low, high, strict=True)]
        y = self._call(function, x, w, None, list(a["strides"]), same, list(a["output_padding"]), a["group"])
        for place, (lo, hi, both) in enumerate(zip(low, high, same, strict=True)):
            if lo > both or hi > both:
                y = self._call(
                    operator.getitem, y, (..., slice(lo - both, both - hi or None), *[slice(None)] * (rank - 1 - place))
                )
        return y

    def _pool(self, op: str, a: dict[str, Any], x: Any) -> Any:
        rank = len(a["kernel_shape"])
        low, high = list(a["pads"][:rank]), list(a["pads"][rank:])
        functional, window, strides = self._torch.nn.functional, list(a["kernel_shape"]), list(a["strides"])
        lopsided = low != high or any(2 * pad > size for pad, size in zip(low, window, strict=True))
        if op == "MaxPool":
            if lopsided:
                x, low = self._pad(x, [0, 0, *low, 0, 0, *high], -math.inf), [0] * rank
            return self._call(getattr(functional, f"max_pool{rank}d"), x, window, strides, low, list(a["dilations"]))
        counted = bool(a.get("count_include_pad", 0))
        if any(d != 1 for d in a["dilations"]) or (lopsided and not counted):
            raise UserError("this AveragePool has no PyTorch form here", todo="Leave torch out of compare.peers")
        if lopsided:
            x, low = self._pad(x, [0, 0, *low, 0, 0, *high], 0.0), [0] * rank
        return self._call(getattr(functional, f"avg_pool{rank}d"), x, window, strides, low, False, counted)

    def _pad(self, x: Any, low_high: Sequence[int], fill: float) -> Any:
        rank = len(low_high) // 2
        pairs = [low_high[side * rank + axis] for axis in reversed(range(rank)) for side in (0, 1)]
        return self._call(self._torch.nn.functional.pad, x, pairs, "constant", fill)

    def _slice(self, names: Sequence[str], x: Any) -> Any:
        starts, ends, axes = (self._known(name) for name in names[1:4])
        steps = self._known(names[4]) if len(names) > 4 else [1] * len(starts)
        shape = self._types.shape(names[0])
        backwards = [axis for axis, step in zip(axes, steps, strict=True) if step < 0]
        parts = [slice(None)] * len(shape)
        for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
            span = range(*slice(start, None if end < -shape[axis] else end, step).indices(shape[axis]))
            if not span:
                parts[axis] = slice(0, 0)
            elif step > 0:
                parts[axis] = slice(span[0], span[-1] + 1, step)
            else:
                parts[axis] = slice(span[-1], span[0] + 1, -step)
        y = self._call(operator.getitem, x, tuple(parts))
        return self._call(self._torch.flip, y, backwards) if backwards else y

    def _product_over(self, x: Any, axes: Sequence[int]) -> Any:
        for axis in sorted(axes, reverse=True):
            x = self._call(self._torch.prod, x, axis)
        return x

    def _argument(self, op: str, a: dict[str, Any], name: str, x: Any) -> Any:
        axis, last = a["axis"], bool(a.get("select_last_index", 0))
        function = self._torch.argmax if op == "ArgMax" else self._torch.argmin
        found = self._call(function, self._call(self._torch.flip, x, [axis]) if last else x, axis)
        return self._call(operator.sub, self._types.shape(name)[axis] - 1, found) if last else found

    def _dtype(self, onnx_type: int) -> Any:
        return getattr(self._torch, helper.tensor_dtype_to_np_dtype(onnx_type).name)
