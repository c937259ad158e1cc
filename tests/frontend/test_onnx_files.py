"""Tests of what the import says of a file that does not hold a model it can use: one clear ModelError each."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from pipeline.errors import ModelError
from pipeline.frontend.onnx.load import parse
from pipeline.frontend.onnx.model import OnnxModel, graph_of
from tests.frontend.onnx.small_models import FLOAT, model_of, saved


def linear() -> ModelProto:
    weights = {"w": np.arange(4096, dtype=np.float32).reshape(64, 64)}
    return model_of([helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": (FLOAT, (2, 64))}, ["y"], weights)


def message(path: str | Path) -> str:
    with pytest.raises(ModelError) as error:
        OnnxModel(str(path)).build(0)
    assert str(path) in str(error.value) or str(Path(path).parent) in str(error.value)
    assert error.value.todo
    return str(error.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    assert "there is no such file" in message(tmp_path / "absent.onnx")


def test_a_folder_names_the_models_in_it(tmp_path: Path) -> None:
    saved(linear(), tmp_path)
    said = message(tmp_path)
    assert "a folder" in said and "model.onnx" in said


def test_an_empty_file_is_called_empty(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"")
    assert "empty" in message(tmp_path / "m.onnx")


@pytest.mark.parametrize("data", [b"this is a text file\n" * 20, b"\x89PNG\r\n\x1a\n" + bytes(200), b"PK\x03\x04" * 50])
def test_another_kind_of_file_is_not_an_onnx_file(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "m.onnx").write_bytes(data)
    assert "not an ONNX file" in message(tmp_path / "m.onnx")


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5, 0.9, 0.999])
def test_a_truncated_file_is_called_truncated(tmp_path: Path, share: float) -> None:
    data = linear().SerializeToString()
    (tmp_path / "m.onnx").write_bytes(data[: int(len(data) * share)])
    assert "truncated" in message(tmp_path / "m.onnx")


def test_a_file_cut_at_any_byte_is_refused_or_complete(tmp_path: Path) -> None:
    """No cut may give a model that computes something else."""
    model = model_of([helper.make_node("Relu", ["x"], ["y"])], {"x": (FLOAT, (3,))}, ["y"])
    data, path = model.SerializeToString(), tmp_path / "m.onnx"
    for length in range(len(data)):
        path.write_bytes(data[:length])
        assert message(path)


def test_a_flipped_bit_gives_a_graph_or_a_model_error() -> None:
    """Never another exception: whatever a file holds is the file's fault."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1], strides=[2], kernel_shape=[3]),
        helper.make_node("Unsqueeze", ["c", "axes"], ["u"]),
        helper.make_node("ReduceMean", ["u"], ["m"], axes=[2], keepdims=0),
        helper.make_node("Softmax", ["m"], ["y"], axis=-1),
    ]
    weights = {"w": np.ones((2, 2, 3), np.float32), "axes": np.array([0, 2])}
    data = model_of(nodes, {"x": (FLOAT, ("n", 2, 8))}, ["y"], weights, opset=13).SerializeToString()
    outcomes = {"a graph": 0, "refused": 0}
    for bit in range(len(data) * 8):
        broken = bytearray(data)
        broken[bit // 8] ^= 1 << bit % 8
        try:
            graph_of(parse(bytes(broken), "flipped"), {"n": 1}, "flipped")
            outcomes["a graph"] += 1
        except ModelError:
            outcomes["refused"] += 1
    assert min(outcomes.values()) > 100


def external(folder: Path) -> str:
    model = linear()
    path = folder / "m.onnx"
    onnx.save_model(model, str(path), save_as_external_data=True, location="weights.bin", size_threshold=0)
    return str(path)


def test_external_data_are_read(tmp_path: Path) -> None:
    graph = OnnxModel(external(tmp_path)).build(0)
    assert any(np.array_equal(data, np.arange(4096.0).reshape(64, 64)) for data in graph.constants.values())


def test_missing_external_data_name_the_file(tmp_path: Path) -> None:
    path = external(tmp_path)
    (tmp_path / "weights.bin").unlink()
    said = message(path)
    assert "external data are missing" in said and "weights.bin" in said


def test_truncated_external_data_name_the_tensor(tmp_path: Path) -> None:
    path = external(tmp_path)
    (tmp_path / "weights.bin").write_bytes(b"short")
    with pytest.raises(ModelError, match=r"weights\.bin: external data are truncated.*tensor w ends at byte"):
        OnnxModel(path).build(0)


def test_external_data_outside_the_folder_of_the_model_are_refused(tmp_path: Path) -> None:
    (tmp_path / "secret.bin").write_bytes(bytes(16384))
    inside = tmp_path / "model"
    inside.mkdir()
    model = linear()
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../secret.bin")
    assert "external data cannot be read" in message(saved(model, inside))


def test_data_that_do_not_fill_their_shape_are_damaged(tmp_path: Path) -> None:
    model = linear()
    model.graph.initializer[0].raw_data = model.graph.initializer[0].raw_data[:-8]
    assert "do not fill its shape" in message(saved(model, tmp_path))


def test_an_input_that_no_machine_holds_is_called_too_large(tmp_path: Path) -> None:
    model = model_of([helper.make_node("Exp", ["x"], ["y"])], {"x": (FLOAT, (1 << 40, 1 << 40))}, ["y"])
    said = message(saved(model, tmp_path))
    assert "input x: a tensor is too large. float32 of shape [1099511627776, 1099511627776] has 4.84e+24 bytes" in said


def test_a_result_that_no_machine_holds_names_the_node(tmp_path: Path) -> None:
    inputs = {"x": (FLOAT, (1 << 40, 1)), "z": (FLOAT, (1, 1 << 40))}
    said = message(saved(model_of([helper.make_node("Add", ["x", "z"], ["y"])], inputs, ["y"]), tmp_path))
    assert "node y (Add): a tensor is too large" in said and "broadcast" not in said


def test_a_newer_opset_than_the_onnx_package_knows_is_refused(tmp_path: Path) -> None:
    model = linear()
    model.opset_import[0].version = 1000
    assert "opset 1000 is not known" in message(saved(model, tmp_path))


def test_all_unsupported_operators_are_listed_at_once(tmp_path: Path) -> None:
    nodes = [
        *(helper.make_node("Mystery", ["x"], [f"m{i}"], name=f"first_{i}", domain="com.acme") for i in range(6)),
        helper.make_node("RandomUniformLike", ["x"], ["r"], name="noise"),
        helper.make_node("Relu", ["x"], ["fine"]),
        helper.make_node("Sum", [*(f"m{i}" for i in range(6)), "r", "fine"], ["y"]),
    ]
    model = model_of(nodes, {"x": (FLOAT, ("batch", 2))}, ["y"], domains={"com.acme": 1})
    said = message(saved(model, tmp_path))
    assert "2 operators are not supported" in said
    assert "com.acme::Mystery (opset 1): 6 nodes (first_0, first_1, first_2, first_3, …)" in said
    assert "RandomUniformLike (opset 18): 1 node (noise)" in said
    assert "Relu" not in said and "batch" not in said


def test_an_unsupported_operator_that_no_output_needs_is_no_error(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Mystery", ["x"], ["unused"], domain="com.acme"),
        helper.make_node("Relu", ["x"], ["y"]),
    ]
    model = model_of(nodes, {"x": (FLOAT, (2,))}, ["y"], domains={"com.acme": 1})
    assert OnnxModel(saved(model, tmp_path)).build(0).outputs[0][0] == "y"


@pytest.mark.parametrize("kind", [TensorProto.STRING, TensorProto.COMPLEX64, TensorProto.FLOAT8E4M3FN])
def test_an_element_type_that_is_not_supported_is_named(tmp_path: Path, kind: int) -> None:
    model = model_of([helper.make_node("Identity", ["x"], ["y"])], {"x": (kind, (2,))}, ["y"])
    said = message(saved(model, tmp_path))
    assert TensorProto.DataType.Name(kind) in said and "float32" in said


def test_an_input_that_is_a_sequence_is_named(tmp_path: Path) -> None:
    model = model_of([helper.make_node("SequenceLength", ["s"], ["y"])], {}, ["y"])
    model.graph.input.append(helper.make_tensor_sequence_value_info("s", FLOAT, (2,)))
    assert "not supported" in message(saved(model, tmp_path)) or "s is a sequence" in message(saved(model, tmp_path))


def test_a_shape_that_depends_on_the_data_names_node_and_operand(tmp_path: Path) -> None:
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["y"], name="reshaper")]
    model = model_of(nodes, {"x": (FLOAT, (4,)), "shape": (TensorProto.INT64, (2,))}, ["y"])
    said = message(saved(model, tmp_path))
    assert "node reshaper (Reshape)" in said and "depend on the data" in said and "operand 1" in said


def test_operands_that_do_not_fit_name_the_node(tmp_path: Path) -> None:
    nodes = [helper.make_node("Add", ["x", "b"], ["y"], name="adder")]
    model = model_of(nodes, {"x": (FLOAT, (4,)), "b": (FLOAT, (3,))}, ["y"])
    said = message(saved(model, tmp_path))
    assert "node adder (Add)" in said and "(4,), (3,) do not broadcast" in said


def test_a_value_that_nothing_makes_is_named(tmp_path: Path) -> None:
    model = model_of([helper.make_node("Relu", ["ghost"], ["y"], name="n")], {"x": (FLOAT, (4,))}, ["y"])
    assert "value ghost is read before anything makes it" in message(saved(model, tmp_path))


def test_an_axis_out_of_range_names_the_node(tmp_path: Path) -> None:
    model = model_of([helper.make_node("Softmax", ["x"], ["y"], name="s", axis=3)], {"x": (FLOAT, (4,))}, ["y"])
    assert "node s (Softmax): axis 3 is out of range" in message(saved(model, tmp_path))


def test_two_outputs_of_one_name_are_refused(tmp_path: Path) -> None:
    model = model_of([helper.make_node("Relu", ["x"], ["y"])], {"x": (FLOAT, (4,))}, ["y", "y"])
    assert "two outputs are called y" in message(saved(model, tmp_path))


def test_initialisers_listed_as_inputs_are_constants(tmp_path: Path) -> None:
    model = linear()
    model.graph.input.append(helper.make_tensor_value_info("w", FLOAT, (64, 64)))
    graph = OnnxModel(saved(model, tmp_path)).build(0)
    assert [getattr(node.op, "name", None) for node in graph.nodes].count("x") == 1
    assert not any(getattr(node.op, "name", None) == "w" for node in graph.nodes)
    assert numpy_helper.to_array(model.graph.initializer[0]).shape == (64, 64)


def test_a_function_that_calls_itself_is_refused(tmp_path: Path) -> None:
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.acme", 1)]
    call = helper.make_node("Again", ["a"], ["b"], domain="com.acme", name="inner")
    function = helper.make_function("com.acme", "Again", ["a"], ["b"], [call], opsets)
    node = helper.make_node("Again", ["x"], ["y"], domain="com.acme")
    model = model_of([node], {"x": (FLOAT, (4,))}, ["y"], domains={"com.acme": 1}, functions=[function])
    assert "node inner (Again): function Again calls itself" in message(saved(model, tmp_path))


def test_a_model_describes_itself_by_file_and_sizes() -> None:
    assert OnnxModel("a/m.onnx", {"batch": 2}).describe() == "a/m.onnx with batch=2"
    assert OnnxModel("a/m.onnx").describe() == "a/m.onnx"


def test_a_model_without_outputs_is_refused(tmp_path: Path) -> None:
    model = linear()
    del model.graph.output[:]
    assert "the model has no outputs" in message(saved(model, tmp_path))


@pytest.mark.parametrize("name", ["y", "x", "w"])
def test_a_value_that_is_made_twice_is_named(tmp_path: Path, name: str) -> None:
    model = linear()
    model.graph.node.append(helper.make_node("Relu", ["x"], [name]))
    assert f"value {name} is made twice" in message(saved(model, tmp_path))


def test_a_stored_tensor_of_negative_size_is_damaged(tmp_path: Path) -> None:
    model = linear()
    model.graph.initializer[0].dims[0] = -64
    assert "a dimension is negative" in message(saved(model, tmp_path))


def test_external_data_at_no_number_are_damaged(tmp_path: Path) -> None:
    path = external(tmp_path)
    model = onnx.load(path, load_external_data=False)
    next(e for e in model.graph.initializer[0].external_data if e.key == "offset").value = "here"
    Path(path).write_bytes(model.SerializeToString())
    assert "where its data lie is damaged" in message(path)


def test_all_nodes_that_are_not_valid_are_listed_at_once(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Exp", ["x", "x", "x"], ["e"]),
        helper.make_node("Softmax", ["e"], ["s"], axis="foo"),
        helper.make_node("LeakyRelu", ["s"], ["l"], alpha=[1.0]),
        helper.make_node("Add", ["l"], ["y"], name="adder"),
    ]
    said = message(saved(model_of(nodes, {"x": (FLOAT, (4,))}, ["y"]), tmp_path))
    assert "node e (Exp): it has 3 operands, and Exp takes 1" in said
    assert "node s (Softmax): attribute axis is a text ('foo'), and Softmax takes an integer" in said
    assert "node l (LeakyRelu): attribute alpha is a list of numbers, and LeakyRelu takes a number" in said
    assert "node adder (Add): it has 1 operand, and Add takes 2" in said


def test_an_attribute_of_the_wrong_type_is_named_where_onnx_has_no_such_operator(tmp_path: Path) -> None:
    node = helper.make_node("QuickGelu", ["x"], ["y"], domain="com.microsoft", alpha="foo")
    said = message(saved(model_of([node], {"x": (FLOAT, (4,))}, ["y"], domains={"com.microsoft": 1}), tmp_path))
    assert "node y (QuickGelu): attribute alpha is 'foo'. QuickGelu takes a number" in said


@pytest.mark.parametrize("op", ["Add", "Max", "Concat"])
def test_operands_of_two_element_types_are_refused(tmp_path: Path, op: str) -> None:
    attributes = {"axis": 0} if op == "Concat" else {}
    inputs = {"x": (FLOAT, (4,)), "z": (TensorProto.DOUBLE, (4,))}
    said = message(saved(model_of([helper.make_node(op, ["x", "z"], ["y"], **attributes)], inputs, ["y"]), tmp_path))
    assert f"node y ({op}): operands 0 and 1 of {op} are float32 and float64" in said


def test_an_output_of_another_type_than_is_declared_is_refused(tmp_path: Path) -> None:
    model = model_of([helper.make_node("Exp", ["x"], ["y"])], {"x": (FLOAT, (4,))}, ["y"])
    for kind in (TensorProto.UNDEFINED, FLOAT):
        model.graph.output[0].type.tensor_type.elem_type = kind
        assert OnnxModel(saved(model, tmp_path)).build(0)
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.INT64
    assert "output y is declared int64 and is float32" in message(saved(model, tmp_path))


def test_optional_and_variadic_operands_stay_free(tmp_path: Path) -> None:
    """A missing operand in the middle, an empty name too many, and an integer for a number."""
    nodes = [
        helper.make_node("Clip", ["x", "", "high"], ["c"]),
        helper.make_node("Exp", ["c", ""], ["e"]),
        helper.make_node("LeakyRelu", ["e"], ["l"], alpha=1),
        helper.make_node("Where", ["b", "l", "x"], ["w"]),
        helper.make_node("Sum", ["w", "x", "e", "l"], ["y"]),
    ]
    inputs = {"x": (FLOAT, (4,)), "b": (TensorProto.BOOL, (4,))}
    model = model_of(nodes, inputs, ["y"], {"high": np.asarray(1, np.float32)})
    assert OnnxModel(saved(model, tmp_path)).build(0)
