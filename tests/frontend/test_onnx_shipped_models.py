"""Tests of the import on the small models with data that the onnx package ships, most of them of opset 6."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from pipeline.errors import ModelError
from pipeline.frontend.onnx.model import OnnxModel
from pipeline.ir.evaluate import evaluate
from pipeline.ir.graph import Input

DATA = Path(onnx.__file__).parent / "backend" / "test" / "data"
FOLDERS = sorted(
    path.parent
    for group in ("pytorch-converted", "pytorch-operator", "simple")
    for path in DATA.glob(f"{group}/*/model.onnx")
)
# shapes that are given as data, and gradients
REFUSED = {
    "test_expand_shape_model1", "test_expand_shape_model2", "test_expand_shape_model3", "test_expand_shape_model4",
    "test_gradient_of_add", "test_gradient_of_add_and_mul", "test_sequence_model8",
}  # fmt: skip


def tensor(path: Path) -> np.ndarray:
    return numpy_helper.to_array(TensorProto.FromString(path.read_bytes()))


def tensors(folder: Path, kind: str) -> list[np.ndarray]:
    return [tensor(folder / f"{kind}_{i}.pb") for i in range(len(list(folder.glob(f"{kind}_*.pb"))))]


def computed(folder: Path, inputs: list[np.ndarray]) -> list[np.ndarray]:
    names = [info.name for info in onnx.load(str(folder / "model.onnx")).graph.input]
    feeds = dict(zip(names, inputs, strict=False))
    try:
        graph = OnnxModel(str(folder / "model.onnx")).build(0)
    except ModelError as error:
        if "have no size" not in str(error):
            raise
        graph = OnnxModel(str(folder / "model.onnx"), {name: list(x.shape) for name, x in feeds.items()}).build(0)
    wanted = [node.op.name for node in graph.nodes if isinstance(node.op, Input)]
    return list(evaluate(graph, {name: feeds[name] for name in wanted}).values())


def test_every_shipped_model_is_refused_by_name_or_right() -> None:
    assert len(FOLDERS) >= 140
    refused = set()
    for folder in FOLDERS:
        for data in sorted(folder.glob("test_data_set_*")):
            if folder.name.startswith("test_strnorm"):
                continue  # its data are strings, which are refused as a type
            try:
                results = computed(folder, tensors(data, "input"))
            except ModelError:
                refused.add(folder.name)
                continue
            for result, wanted in zip(results, tensors(data, "output"), strict=True):
                np.testing.assert_allclose(result, wanted, rtol=1e-3, atol=1e-6, err_msg=folder.name)
    assert refused == REFUSED
