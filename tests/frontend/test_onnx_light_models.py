"""Tests of the import on the whole models that the onnx package ships: real structure, constant weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

from pipeline.frontend.onnx.model import OnnxModel
from pipeline.ir.evaluate import evaluate
from pipeline.ir.graph import Input

FOLDER = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
MODELS = sorted(path.stem for path in FOLDER.glob("light_*.onnx"))
# VGG-19's and AlexNet's dense layers hold 10^8 weights, which take seconds to write out in float64
LARGE = {"light_vgg19", "light_bvlc_alexnet", "light_zfnet512"}


def test_the_package_ships_the_models() -> None:
    assert len(MODELS) >= 9


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in LARGE else n for n in MODELS])
def test_a_light_model_gives_the_output_that_comes_with_it(name: str) -> None:
    graph = OnnxModel(str(FOLDER / f"{name}.onnx")).build(0)
    inputs = {n.op.name: n.type for n in graph.nodes if isinstance(n.op, Input)}
    assert all(kind.dtype == "float32" for kind in inputs.values())
    feeds = {
        key: np.arange(np.prod(kind.shape)).reshape(kind.shape) / np.prod(kind.shape) for key, kind in inputs.items()
    }
    (result,) = evaluate(graph, {key: data.astype(np.float32) for key, data in feeds.items()}).values()
    wanted = TensorProto.FromString((FOLDER / f"{name}_output_0.pb").read_bytes())
    np.testing.assert_allclose(result, numpy_helper.to_array(wanted), rtol=1e-4)


@pytest.mark.parametrize("name", sorted(LARGE))
def test_a_large_light_model_imports(name: str) -> None:
    graph = OnnxModel(str(FOLDER / f"{name}.onnx")).build(0)
    assert graph.nodes[graph.outputs[0][1]].type.shape == (1, 1000)
