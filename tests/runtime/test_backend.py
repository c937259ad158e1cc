"""The ONNX backend interface: models and single nodes run through a session."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from pipeline.codegen.llvm.link import link
from pipeline.errors import UserError
from pipeline.runtime.artifact import save
from pipeline.runtime.backend import onnx_backend
from pipeline.runtime.loading import load
from pipeline.runtime.session import Session
from tests.codegen.hand_kernels import add_plan

A, B = np.random.default_rng(0).standard_normal((2, 64)).astype(np.float32)


@pytest.fixture
def built(tmp_path: Path) -> list[onnx.ModelProto]:
    return []


@pytest.fixture
def backend(tmp_path: Path, built: list[onnx.ModelProto]) -> type:
    path = save(link(add_plan()), tmp_path / "add")

    def build(model: onnx.ModelProto) -> Session:
        built.append(model)
        return load(path)

    return onnx_backend(build)


def add_model() -> onnx.ModelProto:
    return onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 18]> m (float[64] a, float[64] b) => (float[64] y) {y = Add(a, b)}'
    )


def test_a_model_runs_with_a_sequence_or_a_mapping(backend: type) -> None:
    prepared = backend.prepare(add_model())
    np.testing.assert_array_equal(prepared.run([A, B])[0], A + B)
    np.testing.assert_array_equal(prepared.run({"a": A, "b": B}).y, A + B)
    np.testing.assert_array_equal(backend.run_model(add_model(), [A, B])["y"], A + B)


def test_a_node_runs_as_a_model_of_its_own(backend: type, built: list[onnx.ModelProto]) -> None:
    node = onnx.helper.make_node("Add", ["a", "b"], ["y"])
    np.testing.assert_array_equal(backend.run_node(node, [A, B])[0], A + B)
    onnx.checker.check_model(built[0], full_check=True)
    assert built[0].graph.output[0].type.tensor_type.shape.dim[0].dim_value == 64


def test_wrong_calls_are_refused(backend: type) -> None:
    prepared = backend.prepare(add_model())
    with pytest.raises(UserError, match=r"1 were given\. Give 2: a, b"):
        prepared.run([A])
    with pytest.raises(UserError, match="neither a mapping nor a sequence"):
        prepared.run(3)
    with pytest.raises(UserError, match=r"CUDA.*not supported"):
        backend.prepare(add_model(), "CUDA:1")


def test_only_the_cpu_is_supported(backend: type) -> None:
    assert backend.supports_device("CPU")
    assert not backend.supports_device("CUDA:0")
    assert backend.is_compatible(add_model())
