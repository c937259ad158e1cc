"""Tests of the import against ONNX Runtime, as one more vote where ONNX's suite has few cases or none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

from tests.frontend.onnx.small_models import FLOAT, model_of, results

onnxruntime = pytest.importorskip("onnxruntime")

MICROSOFT: list[tuple[str, dict[str, tuple[int, ...]], dict[str, Any]]] = [
    ("FusedMatMul", {"a": (2, 4, 3), "b": (2, 4, 5)}, {"transA": 1, "alpha": 0.5}),
    ("FusedMatMul", {"a": (2, 3, 4), "b": (5, 4)}, {"transB": 1}),
    ("BiasGelu", {"x": (2, 4), "b": (4,)}, {}),
    ("FastGelu", {"x": (2, 4)}, {}),
    ("FastGelu", {"x": (2, 4), "b": (4,)}, {}),
    ("QuickGelu", {"x": (2, 4)}, {"alpha": 1.5}),
    ("Gelu", {"x": (2, 4)}, {}),
    ("SkipLayerNormalization", {"x": (2, 3, 8), "s": (2, 3, 8), "g": (8,), "b": (8,), "c": (8,)}, {"epsilon": 1e-5}),
    ("SkipSimplifiedLayerNormalization", {"x": (2, 3, 8), "s": (2, 3, 8), "g": (8,)}, {}),
]


def agree(op: str, feeds: dict[str, np.ndarray], opset: int = 18, domain: str = "", **attributes: Any) -> None:
    node = helper.make_node(op, list(feeds), ["y"], domain=domain, **attributes)
    inputs = {name: (FLOAT, x.shape) for name, x in feeds.items()}
    model = model_of([node], inputs, ["y"], opset=opset, domains={"com.microsoft": 1})
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    (wanted,) = onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, feeds)
    np.testing.assert_allclose(results(model, feeds)[0], wanted, rtol=1e-4, atol=1e-5, err_msg=f"{op} {attributes}")


@pytest.mark.parametrize(("op", "shapes", "attributes"), MICROSOFT)
def test_an_operator_of_its_own_domain_agrees(op: str, shapes: dict[str, Any], attributes: dict[str, Any]) -> None:
    rng = np.random.default_rng(3)
    feeds = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    agree(op, feeds, domain="com.microsoft", **attributes)


@pytest.mark.parametrize("seed", range(12))
def test_windows_of_random_geometry_agree(seed: int) -> None:
    """Convolution and pooling over 1 to 3 dimensions with random padding, strides, dilation, groups and rounding."""
    rng = np.random.default_rng(seed)
    rank, groups = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    extents, kernel = rng.integers(6, 10, rank).tolist(), rng.integers(2, 4, rank).tolist()
    common = {
        "strides": rng.integers(1, 4, rank).tolist(),
        "dilations": rng.integers(1, 3, rank).tolist(),
        "pads": [int(rng.integers(0, size)) for size in kernel * 2],
    }
    x = rng.standard_normal((2, 2 * groups, *extents)).astype(np.float32)
    weight = rng.standard_normal((3 * groups, 2, *kernel)).astype(np.float32)
    agree("Conv", {"x": x, "w": weight}, group=groups, **common)
    back = rng.standard_normal((2 * groups, 3, *kernel)).astype(np.float32)
    extra = [int(rng.integers(0, stride)) for stride in common["strides"]]
    agree("ConvTranspose", {"x": x, "w": back}, group=groups, output_padding=extra, **common)
    rounding = {"kernel_shape": kernel, "ceil_mode": int(rng.integers(0, 2))}
    agree("MaxPool", {"x": x}, **rounding, **common)
    agree("AveragePool", {"x": x}, 19, count_include_pad=int(rng.integers(0, 2)), **rounding, **common)
