"""Tests of how the open dimensions of a model get their sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from onnx import helper

from pipeline.errors import ModelError
from pipeline.frontend.onnx.model import OnnxModel
from pipeline.ir.graph import Input, Shape
from tests.frontend.onnx.small_models import FLOAT, Dims, model_of, saved


def shapes_of(folder: Path, inputs: dict[str, Dims], shapes: dict[str, Any]) -> dict[str, Shape]:
    nodes = [helper.make_node("Identity", [name], [f"{name}_out"]) for name in inputs]
    model = model_of(nodes, {name: (FLOAT, dims) for name, dims in inputs.items()}, [f"{name}_out" for name in inputs])
    graph = OnnxModel(saved(model, folder), shapes).build(0)
    return {node.op.name: node.type.shape for node in graph.nodes if isinstance(node.op, Input)}


TOKENS: dict[str, Dims] = {"ids": ("batch", "sequence"), "mask": ("batch", "sequence")}


def test_names_are_bound_wherever_they_stand(tmp_path: Path) -> None:
    assert shapes_of(tmp_path, TOKENS, {"batch": 2, "sequence": 7}) == {"ids": (2, 7), "mask": (2, 7)}


def test_the_shape_of_one_input_binds_its_names_for_the_others(tmp_path: Path) -> None:
    assert shapes_of(tmp_path, TOKENS, {"ids": [2, 7]}) == {"ids": (2, 7), "mask": (2, 7)}


def test_all_open_dimensions_are_named_in_one_error_with_a_binding_to_copy(tmp_path: Path) -> None:
    with pytest.raises(ModelError) as error:
        shapes_of(tmp_path, {**TOKENS, "image": (1, 3, "height", None)}, {})
    said = str(error.value)
    assert "batch (of ids, mask)" in said and "sequence (of ids, mask)" in said
    assert "unnamed dimensions of image [1, 3, height, ?]" in said
    assert "workload.shapes='{batch: 1, sequence: 128, image: [1, 3, 224, 128]}'" in said


def test_only_what_is_still_open_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(ModelError) as error:
        shapes_of(tmp_path, TOKENS, {"batch": 2})
    assert "sequence" in str(error.value) and "batch (of" not in str(error.value)


def test_a_key_that_the_model_does_not_have_lists_those_that_it_has(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no use for sequenc\..*batch, sequence.*ids, mask"):
        shapes_of(tmp_path, TOKENS, {"batch": 1, "sequence": 2, "sequenc": 2})


def test_a_formula_of_names_follows_from_them(tmp_path: Path) -> None:
    inputs: dict[str, Dims] = {"now": ("batch", "new"), "mask": ("batch", "past + new"), "half": ("2*new - 1",)}
    bound = shapes_of(tmp_path, inputs, {"batch": 1, "new": 3, "past": 5})
    assert bound == {"now": (1, 3), "mask": (1, 8), "half": (5,)}


def test_the_names_inside_a_formula_are_asked_for(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"past \(of mask\); new \(of mask\)"):
        shapes_of(tmp_path, {"mask": ("past + new",)}, {})


def test_a_formula_may_be_bound_as_a_whole_through_its_input(tmp_path: Path) -> None:
    assert shapes_of(tmp_path, {"mask": ("past + new",)}, {"mask": [9]}) == {"mask": (9,)}


def test_a_negative_dim_value_is_an_open_dimension(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"unnamed dimensions of x \[\?, 4\]"):
        shapes_of(tmp_path, {"x": (-1, 4)}, {})
    assert shapes_of(tmp_path, {"x": (-1, 4)}, {"x": [3, 4]}) == {"x": (3, 4)}


@pytest.mark.parametrize("shapes", [{"x": [3, 5]}, {"x": [3, 4, 1]}, {"x": [3]}, {"x": [3, 4], "n": 2}])
def test_a_shape_that_contradicts_the_model_is_refused(tmp_path: Path, shapes: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match=r"the model declares \[n, 4\]"):
        shapes_of(tmp_path, {"x": ("n", 4)}, shapes)


@pytest.mark.parametrize("value", [-1, 1.5, "four", True, [1, None]])
def test_a_size_that_is_not_a_whole_number_is_refused(tmp_path: Path, value: object) -> None:
    with pytest.raises(ModelError, match=r"workload\.shapes\.n is"):
        shapes_of(tmp_path, {"x": ("n", 4)}, {"n": value})


def test_an_input_of_unknown_rank_takes_a_whole_shape(tmp_path: Path) -> None:
    model = model_of([helper.make_node("Relu", ["x"], ["y"])], {"x": (FLOAT, (1,))}, ["y"])
    model.graph.input[0].type.tensor_type.ClearField("shape")
    path = saved(model, tmp_path)
    with pytest.raises(ModelError, match="unnamed dimensions of x of unknown rank"):
        OnnxModel(path).build(0)
    graph = OnnxModel(path, {"x": [2, 3]}).build(0)
    assert graph.nodes[graph.outputs[0][1]].type.shape == (2, 3)


def test_an_extent_of_zero_is_allowed(tmp_path: Path) -> None:
    assert shapes_of(tmp_path, {"x": ("n", 4)}, {"n": 0}) == {"x": (0, 4)}
