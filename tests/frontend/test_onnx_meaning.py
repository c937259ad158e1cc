"""Tests of what ONNX's suite leaves out: old opsets, padding rules, functions, control flow, folding of shapes."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from pipeline.errors import ModelError
from pipeline.frontend.onnx.model import graph_of
from pipeline.ir.graph import Constant, Input
from tests.frontend.onnx.small_models import FLOAT, INT64, model_of, one, results

RNG = np.random.default_rng(7)
X = RNG.standard_normal((2, 3, 4)).astype(np.float32)


def softmax(x: np.ndarray, axis: int) -> np.ndarray:
    power = np.exp(x - x.max(axis=axis, keepdims=True))
    return power / power.sum(axis=axis, keepdims=True)


@pytest.mark.parametrize("axis", [-3, -1, 0, 1, 2])
def test_softmax_before_opset_13_normalises_all_dimensions_from_the_axis_on(axis: int) -> None:
    at = axis % 3
    flat = X.astype(np.float64).reshape(math.prod(X.shape[:at]), -1)
    np.testing.assert_allclose(one("Softmax", {"x": X}, 11, axis=axis), softmax(flat, 1).reshape(X.shape), rtol=1e-12)
    log = one("LogSoftmax", {"x": X}, 11, axis=axis)
    np.testing.assert_allclose(log, np.log(softmax(flat, 1)).reshape(X.shape), rtol=1e-9)


@pytest.mark.parametrize("axis", [-3, -1, 0, 1, 2])
def test_softmax_from_opset_13_normalises_one_dimension(axis: int) -> None:
    np.testing.assert_allclose(one("Softmax", {"x": X}, 13, axis=axis), softmax(X.astype(np.float64), axis), rtol=1e-12)


def test_the_default_axis_of_softmax_moved_with_opset_13() -> None:
    assert np.allclose(one("Softmax", {"x": X}, 12).sum(axis=(1, 2)), 1)
    assert np.allclose(one("Softmax", {"x": X}, 13).sum(axis=2), 1)


def test_hardmax_before_opset_13_marks_one_element_of_the_flattened_rest() -> None:
    assert np.array_equal(one("Hardmax", {"x": X}, 11).sum(axis=(1, 2)), [1, 1])


def correlate(x: np.ndarray, w: np.ndarray, low: int, high: int, stride: int, dilation: int) -> np.ndarray:
    """The definition of a convolution over one dimension, one batch, one channel."""
    padded = np.pad(x.astype(np.float64), (low, high))
    reach = (len(w) - 1) * dilation + 1
    starts = range(0, len(padded) - reach + 1, stride)
    return np.array([sum(padded[s + k * dilation] * w[k] for k in range(len(w))) for s in starts])


@pytest.mark.parametrize(
    ("extent", "kernel", "stride", "dilation"),
    [*itertools.product([7, 8, 13], [1, 2, 3, 4], [1, 2, 3], [1, 2]), (1, 3, 1, 1), (5, 1, 7, 1)],
)
@pytest.mark.parametrize("auto", ["SAME_UPPER", "SAME_LOWER"])
def test_same_padding_is_computed_from_the_dilated_kernel(
    extent: int, kernel: int, stride: int, dilation: int, auto: str
) -> None:
    x, w = RNG.standard_normal(extent).astype(np.float32), RNG.standard_normal(kernel).astype(np.float32)
    total = max((-(-extent // stride) - 1) * stride + (kernel - 1) * dilation + 1 - extent, 0)
    low = total // 2 if auto == "SAME_UPPER" else total - total // 2
    got = one(
        "Conv", {"x": x[None, None]}, 18, {"w": w[None, None]}, auto_pad=auto, strides=[stride], dilations=[dilation]
    )
    assert got.shape == (1, 1, -(-extent // stride))
    np.testing.assert_allclose(got[0, 0], correlate(x, w, low, total - low, stride, dilation), rtol=1e-9)


@pytest.mark.parametrize("opset", [7, 10])
def test_a_bound_that_clip_lacks_before_opset_11_is_the_end_of_float32(opset: int) -> None:
    x, end = np.array([np.inf, -np.inf, 3.0], np.float32), np.finfo(np.float32).max
    np.testing.assert_array_equal(one("Clip", {"x": x}, opset), [end, -end, 3])
    np.testing.assert_array_equal(one("Clip", {"x": x}, opset, min=0.0), [end, 0, 3])
    halves = one("Clip", {"x": x.astype(np.float16)}, opset, max=2.0)
    np.testing.assert_array_equal(halves, [2, -np.inf, 2])


@pytest.mark.parametrize(
    ("scale", "wanted"), [(0.6, [1, 3]), (0.5, [1, 3]), (0.8, [1, 3, 4]), (1.5, [1, 1, 2, 3, 3, 4])]
)
def test_nearest_before_opset_11_rounds_up_where_the_tensor_shrinks_and_down_where_it_grows(
    scale: float, wanted: list[int]
) -> None:
    """0.6: as in the test that ONNX had of it then (test_resize_downsample_nearest)."""
    x = np.array([[1, 2, 3, 4]], np.float32)
    np.testing.assert_array_equal(one("Resize", {"x": x}, 10, {"s": np.array([1, scale], np.float32)}), [wanted])


def test_valid_padding_ignores_the_pads_attribute() -> None:
    got = one("Conv", {"x": X[:, :1]}, 18, {"w": np.ones((1, 1, 3), np.float32)}, auto_pad="VALID")
    assert got.shape == (2, 1, 2)


def test_padding_that_is_negative_crops() -> None:
    got = one("Pad", {"x": X}, 13, {"pads": np.array([0, -1, 1, 0, 1, -2])})
    assert np.array_equal(got, np.pad(X[:, 1:], ((0, 0), (0, 1), (1, 0)))[:, :, :3])


def test_a_padding_of_integers_keeps_every_bit() -> None:
    x, value = np.arange(3), np.int64(2**53 + 1)
    got = one("Pad", {"x": x}, 13, {"pads": np.array([1, 1]), "value": np.array(value)})
    np.testing.assert_array_equal(got, [value, 0, 1, 2, value])


@pytest.mark.parametrize("mode", ["reflect", "edge"])
def test_padding_modes_agree_with_numpy_after_a_crop(mode: str) -> None:
    got = one("Pad", {"x": X}, 18, {"pads": np.array([0, 1, -1, 0, 2, 2])}, mode=mode)
    wanted = np.pad(X[:, :, 1:], ((0, 0), (1, 2), (0, 2)), mode=mode)
    assert np.array_equal(got, wanted)


@pytest.mark.parametrize(
    ("starts", "ends", "axes", "steps"),
    [
        ([-1], [-100], [2], [-1]),
        ([100], [0], [2], [-2]),
        ([1], [2**63 - 1], [1], [2]),
        ([-(2**63)], [3], [2], [1]),
        ([2, 0], [0, 2], [-1, 0], [-1, 1]),
        ([3], [1], [2], [1]),
    ],
)
def test_slice_clips_as_python_does(starts: list[int], ends: list[int], axes: list[int], steps: list[int]) -> None:
    weights = {name: np.array(data, np.int64) for name, data in (("s", starts), ("e", ends), ("a", axes), ("t", steps))}
    index = [slice(None)] * 3
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        index[axis] = slice(start, end, step)
    assert np.array_equal(one("Slice", {"x": X}, 13, weights), X[tuple(index)])


def test_reshape_copies_extents_and_infers_one() -> None:
    assert one("Reshape", {"x": X}, 14, {"s": np.array([0, -1, 2])}).shape == (2, 6, 2)
    empty = np.zeros((2, 0, 3), np.float32)
    assert one("Reshape", {"x": empty}, 14, {"s": np.array([0, 5])}, allowzero=1).shape == (0, 5)


def test_reshape_to_another_number_of_elements_is_refused() -> None:
    with pytest.raises(ModelError, match=r"\[2, 3, 4\] does not reshape to \[5, -1\]"):
        one("Reshape", {"x": X}, 14, {"s": np.array([5, -1])})


def test_constant_nodes_of_every_numeric_kind_are_constants() -> None:
    tensor = numpy_helper.from_array(np.arange(3, dtype=np.int16))
    kinds: list[dict[str, Any]] = [
        {"value": tensor}, {"value_float": 1.5}, {"value_floats": [1.0, 2.0]}, {"value_int": 3}, {"value_ints": [1, 2]},
    ]  # fmt: skip
    wanted = [np.arange(3, dtype=np.int16), np.float32(1.5), np.float32([1, 2]), np.int64(3), np.int64([1, 2])]
    for attributes, value in zip(kinds, wanted, strict=True):
        graph = graph_of(model_of([helper.make_node("Constant", [], ["y"], **attributes)], {}, ["y"]), {}, "m")
        (data,) = graph.constants.values()
        assert np.array_equal(data, value) and data.dtype == value.dtype


def test_shape_arithmetic_becomes_a_constant_once_dimensions_are_bound() -> None:
    """Shape, Gather, Mul, Concat and Reshape, as exporters write x.view(batch, heads, -1)."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "zero"], ["batch"]),
        helper.make_node("Unsqueeze", ["batch", "zeros"], ["batch1"]),
        helper.make_node("Concat", ["batch1", "rest"], ["target"], axis=0),
        helper.make_node("Reshape", ["x", "target"], ["y"]),
    ]
    weights = {"zero": np.array(0), "zeros": np.array([0]), "rest": np.array([2, -1])}
    model = model_of(nodes, {"x": (FLOAT, ("n", 3, 4))}, ["y"], weights)
    graph = graph_of(model, {"n": 5}, "m")
    assert graph.nodes[graph.outputs[0][1]].type.shape == (5, 2, 6)
    assert not any(isinstance(node.op, Constant) for node in graph.nodes)


def test_a_function_of_the_model_is_inlined_with_its_attributes() -> None:
    body = [
        helper.make_node("Constant", [], ["unused"], value_float=0.0),
        helper.make_node("LeakyRelu", ["a"], ["b"]),
        helper.make_node("Concat", ["b", "b"], ["c"]),
    ]
    for node, name, kind in ((body[1], "alpha", "slope"), (body[2], "axis", "axis")):
        attribute = node.attribute.add()
        attribute.name, attribute.ref_attr_name = name, kind
        attribute.type = helper.make_attribute(name, 1.0 if name == "alpha" else 1).type
    function = helper.make_function(
        "com.acme", "Twice", ["a"], ["c"], body, [helper.make_opsetid("", 18)], ["slope", "axis"]
    )
    node = helper.make_node("Twice", ["x"], ["y"], domain="com.acme", slope=0.5, axis=2)
    model = model_of([node], {"x": (FLOAT, X.shape)}, ["y"], domains={"com.acme": 1}, functions=[function])
    half = np.where(X < 0, 0.5 * X, X)
    np.testing.assert_allclose(results(model, {"x": X})[0], np.concatenate([half, half], 2))


def test_functions_may_call_functions_and_leave_optional_inputs_out() -> None:
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.acme", 1)]
    inner = helper.make_function(
        "com.acme",
        "Clipped",
        ["a", "low", "high"],
        ["b"],
        [helper.make_node("Clip", ["a", "low", "high"], ["b"])],
        opsets,
    )
    call = helper.make_node("Clipped", ["a", "", "high"], ["b"], domain="com.acme")
    outer = helper.make_function("com.acme", "Outer", ["a", "high"], ["b"], [call], opsets)
    node = helper.make_node("Outer", ["x", "h"], ["y"], domain="com.acme")
    model = model_of(
        [node], {"x": (FLOAT, X.shape)}, ["y"], {"h": np.array(0.5, np.float32)}, domains={"com.acme": 1},
        functions=[inner, outer],
    )  # fmt: skip
    assert np.array_equal(results(model, {"x": X})[0], np.minimum(X, 0.5))


def conditional(condition: str, unsupported: bool = False) -> Any:
    """x + 1 if the condition holds, else x * 2 (or an operator that nobody has)."""
    other = (
        helper.make_node("Mystery", ["x"], ["o"], domain="com.acme")
        if unsupported
        else helper.make_node("Add", ["x", "x"], ["o"])
    )
    then = helper.make_graph(
        [helper.make_node("Add", ["x", "unit"], ["t"])], "then", [], [helper.make_tensor_value_info("t", FLOAT, [3])],
        [numpy_helper.from_array(np.ones(1, np.float32), "unit")],
    )  # fmt: skip
    otherwise = helper.make_graph([other], "else", [], [helper.make_tensor_value_info("o", FLOAT, [3])])
    node = helper.make_node("If", [condition], ["y"], then_branch=then, else_branch=otherwise)
    inputs = {"x": (FLOAT, (3,)), "c": (TensorProto.BOOL, ())}
    weights = {"yes": np.array(True), "no": np.array(False)}
    return model_of([node], inputs, ["y"], weights, domains={"com.acme": 1})


def test_a_known_condition_takes_its_branch_alone() -> None:
    x = np.array([1, 2, 3], np.float32)
    assert np.array_equal(results(conditional("yes"), {"x": x, "c": True})[0], x + 1)
    assert np.array_equal(results(conditional("no"), {"x": x, "c": True})[0], 2 * x)
    assert np.array_equal(results(conditional("yes", unsupported=True), {"x": x, "c": True})[0], x + 1)
    with pytest.raises(ModelError, match=r"com\.acme::Mystery"):
        results(conditional("no", unsupported=True), {"x": x, "c": True})


def test_a_computed_condition_selects_between_both_branches() -> None:
    x = np.array([1, 2, 3], np.float32)
    for condition, wanted in ((True, x + 1), (False, 2 * x)):
        assert np.array_equal(results(conditional("c"), {"x": x, "c": np.array(condition)})[0], wanted)


def test_a_loop_of_known_length_is_unrolled() -> None:
    body = helper.make_graph(
        [
            helper.make_node("Add", ["s", "x"], ["s2"]),
            helper.make_node("Identity", ["go"], ["go2"]),
            helper.make_node("Cast", ["i"], ["f"], to=FLOAT),
            helper.make_node("Mul", ["s2", "f"], ["scan"]),
        ],
        "body",
        [helper.make_tensor_value_info(n, k, []) for n, k in (("i", INT64), ("go", TensorProto.BOOL), ("s", FLOAT))],
        [helper.make_empty_tensor_value_info(n) for n in ("go2", "s2", "scan")],
    )
    node = helper.make_node("Loop", ["n", "", "s0"], ["last", "all"], body=body)
    weights = {"n": np.array(3), "s0": np.zeros(3, np.float32)}
    x = np.array([1, 2, 3], np.float32)
    last, every = results(model_of([node], {"x": (FLOAT, (3,))}, ["last", "all"], weights), {"x": x})
    assert np.array_equal(last, 3 * x)
    assert np.array_equal(every, np.stack([0 * x, 2 * x, 6 * x]))


def test_dropout_in_inference_passes_everything() -> None:
    assert np.array_equal(one("Dropout", {"x": X}, 13), X)


@pytest.mark.parametrize(
    "equation", ["bij,bjk->bik", "ij,jk", "...i,...i->...", "ii->i", "ij->", "i,j->ij", "ij,jk,kl->il"]
)
def test_einsum_agrees_with_numpy(equation: str) -> None:
    terms = equation.partition("->")[0].split(",")
    extents = {"b": 2, "i": 3, "j": 3, "k": 4, "l": 2}
    operands = {
        f"x{n}": RNG.standard_normal([2] * term.count("...") + [extents[c] for c in term.replace("...", "")]).astype(
            np.float32
        )
        for n, term in enumerate(terms)
    }
    got = one("Einsum", operands, 12, equation=equation)
    np.testing.assert_allclose(got, np.einsum(equation, *(x.astype(np.float64) for x in operands.values())), rtol=1e-9)


def test_every_input_stays_an_input_even_if_nothing_reads_it() -> None:
    model = model_of([helper.make_node("Relu", ["x"], ["y"])], {"x": (FLOAT, (3,)), "spare": (FLOAT, (1,))}, ["y"])
    names = [node.op.name for node in graph_of(model, {}, "m").nodes if isinstance(node.op, Input)]
    assert names == ["x", "spare"]


def test_an_output_may_be_an_input_or_a_weight() -> None:
    model = model_of([], {"x": (FLOAT, (3,))}, ["x", "w"], {"w": np.ones(2, np.float32)})
    x = np.array([1, 2, 3], np.float32)
    first, second = results(model, {"x": x})
    assert np.array_equal(first, x) and np.array_equal(second, [1, 1])


def test_a_split_into_a_sequence_is_followed_through_its_parts() -> None:
    """As older exporters write x.chunk(2) and torch.stack."""
    nodes = [
        helper.make_node("SplitToSequence", ["x", "size"], ["parts"], axis=2),
        helper.make_node("SequenceAt", ["parts", "last"], ["b"]),
        helper.make_node("SequenceErase", ["parts", "last"], ["rest"]),
        helper.make_node("SequenceInsert", ["rest", "b", "first"], ["turned"]),
        helper.make_node("ConcatFromSequence", ["turned"], ["y"], axis=0, new_axis=1),
    ]
    weights = {"size": np.array(2), "last": np.array(-1), "first": np.array(0)}
    (got,) = results(model_of(nodes, {"x": (FLOAT, X.shape)}, ["y"], weights), {"x": X})
    assert np.array_equal(got, np.stack([X[:, :, 2:], X[:, :, :2]]))


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize(("heads", "shared"), [(4, 4), (4, 2), (4, 1)])
def test_attention_written_out_agrees_with_its_definition(heads: int, shared: int, causal: int) -> None:
    shapes = {"q": (2, heads, 5, 8), "k": (2, shared, 7, 8), "v": (2, shared, 7, 6)}
    x = {name: RNG.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    # a softcap of zero changes nothing, but takes the way by ONNX's own definition
    plain, defined = one("Attention", x, 23, is_causal=causal), one("Attention", x, 23, is_causal=causal, softcap=0.0)
    np.testing.assert_allclose(plain, defined, rtol=1e-5, atol=1e-6)
