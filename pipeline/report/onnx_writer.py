"""A writer of ONNX models: nodes one after another, constants by their contents, names that are never used twice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from pipeline.ir.graph import DType, Graph
from pipeline.ir.graph_types import numpy_dtype

OPSET = 20
IR_VERSION = 10


class OnnxWriter:
    """Collects the nodes of one model."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: list[TensorProto] = []
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._names: dict[int, str] = {}
        self._count = 0

    def emit(self, op: str, inputs: Sequence[str], outputs: int = 1, **attributes: Any) -> str:
        """One node; gives the name of its first output. The others are named alike, with a number."""
        self._count += 1
        name = f"%{self._count}"
        names = [name, *(f"{name}.{number}" for number in range(1, outputs))]
        self._nodes.append(helper.make_node(op, list(inputs), names, **attributes))
        return name

    def constant(self, array: np.ndarray) -> str:
        """An initializer; equal ones are stored once."""
        plain = np.asarray(array, order="C")
        key = (plain.dtype.name, plain.shape, plain.tobytes())
        if key not in self._constants:
            name = f"%c{len(self._constants)}"
            self._constants[key] = name
            self._initializers.append(numpy_helper.from_array(plain, name))
        return self._constants[key]

    def integers(self, numbers: Sequence[int]) -> str:
        """Shapes, axes, starts and the like."""
        return self.constant(np.asarray(numbers, np.int64))

    def reshape(self, name: str, shape: Sequence[int]) -> str:
        return self.emit("Reshape", [name, self.integers(shape)], allowzero=1)

    def cast(self, name: str, dtype: DType) -> str:
        return self.emit("Cast", [name], to=helper.np_dtype_to_tensor_dtype(numpy_dtype(dtype)))

    def set(self, value: int, name: str) -> None:
        self._names[value] = name

    def name(self, value: int) -> str:
        return self._names[value]

    def model(self, inputs: Sequence[tuple[str, int]], outputs: Sequence[tuple[str, int]]) -> onnx.ModelProto:
        """The model with these inputs and outputs; a value may be several outputs, or an input too."""
        for name, value in outputs:
            self._nodes.append(helper.make_node("Identity", [self.name(value)], [name]))
        made = helper.make_graph(
            self._nodes,
            "graph",
            [self._info(name, value) for name, value in inputs],
            [self._info(name, value) for name, value in outputs],
            self._initializers,
        )
        return helper.make_model(made, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)

    def _info(self, name: str, value: int) -> onnx.ValueInfoProto:
        kind = self.graph.nodes[value].type
        dtype = helper.np_dtype_to_tensor_dtype(numpy_dtype(kind.dtype))
        return helper.make_tensor_value_info(name, dtype, kind.shape)
