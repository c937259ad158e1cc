"""Small ONNX models for tests, written with the onnx package's own helpers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from pipeline.frontend.onnx.model import graph_of
from pipeline.ir.evaluate import evaluate

Dims = Sequence[int | str | None]
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def model_of(
    nodes: Sequence[NodeProto],
    inputs: Mapping[str, tuple[int, Dims]],
    outputs: Sequence[str],
    weights: Mapping[str, np.ndarray] | None = None,
    opset: int = 18,
    domains: Mapping[str, int] | None = None,
    functions: Sequence[onnx.FunctionProto] = (),
) -> ModelProto:
    graph = helper.make_graph(
        list(nodes),
        "small",
        [helper.make_tensor_value_info(name, kind, list(dims)) for name, (kind, dims) in inputs.items()],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()],
    )
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, v) for d, v in (domains or {}).items())]
    return helper.make_model(graph, opset_imports=imports, ir_version=10, functions=list(functions))


def saved(model: ModelProto, folder: Path, name: str = "model.onnx") -> str:
    path = folder / name
    path.write_bytes(model.SerializeToString())
    return str(path)


def results(model: ModelProto, feeds: Mapping[str, Any], shapes: Mapping[str, Any] | None = None) -> list[np.ndarray]:
    graph = graph_of(model, shapes or {}, "the model")
    return list(evaluate(graph, {name: np.asarray(value) for name, value in feeds.items()}).values())


def one(op: str, feeds: Mapping[str, np.ndarray], opset: int = 18, weights: Mapping[str, np.ndarray] | None = None,
        **attributes: Any) -> np.ndarray:  # fmt: skip
    """The first output of a model of one node, whose inputs are `feeds`, then `weights`."""
    node = helper.make_node(op, [*feeds, *(weights or {})], ["y"], **attributes)
    inputs = {name: (helper.np_dtype_to_tensor_dtype(x.dtype), x.shape) for name, x in feeds.items()}
    return results(model_of([node], inputs, ["y"], weights, opset), feeds)[0]
