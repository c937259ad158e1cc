"""Shapes and element types of the values of an exported model."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import onnx
from onnx import helper

_SMALL = 1024


class OnnxTypes:
    """Inferred when something is first asked for."""

    def __init__(self, model: onnx.ModelProto, constants: Mapping[str, np.ndarray]) -> None:
        self._model, self._constants = model, constants
        self._types: dict[str, onnx.TypeProto.Tensor] = {}

    def shape(self, name: str) -> tuple[int, ...]:
        if name in self._constants:
            return tuple(self._constants[name].shape)
        return tuple(dim.dim_value for dim in self._inferred(name).shape.dim)

    def element(self, name: str) -> int:
        """ONNX's number of the element type."""
        if name in self._constants:
            return int(helper.np_dtype_to_tensor_dtype(self._constants[name].dtype))
        return int(self._inferred(name).elem_type)

    def kind(self, name: str) -> str:
        """NumPy's letter for the kind of element: f, i, u, b."""
        return str(helper.tensor_dtype_to_np_dtype(self.element(name)).kind)

    def _inferred(self, name: str) -> onnx.TypeProto.Tensor:
        if not self._types:
            inferred = onnx.shape_inference.infer_shapes(self._without_weights()).graph
            self._types = {v.name: v.type.tensor_type for v in (*inferred.value_info, *inferred.input)}
        return self._types[name]

    def _without_weights(self) -> onnx.ModelProto:
        """The model with its large weights as inputs: their shapes are enough, and their data would be copied."""
        given = self._model.graph
        small = [item for item in given.initializer if math.prod(item.dims) <= _SMALL]
        large = [
            helper.make_tensor_value_info(item.name, item.data_type, list(item.dims))
            for item in given.initializer
            if math.prod(item.dims) > _SMALL
        ]
        graph = helper.make_graph(given.node, "shapes", [*given.input, *large], given.output, small)
        return helper.make_model(graph, opset_imports=self._model.opset_import, ir_version=self._model.ir_version)
