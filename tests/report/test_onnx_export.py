"""The exported model computes what the graph means, in the operators that a peer is fastest with."""

import collections

import numpy as np
import onnx
import pytest

from pipeline.errors import UserError
from pipeline.ir.evaluate import evaluate
from pipeline.ir.graph_builder import GraphBuilder
from pipeline.report.onnx_export import to_onnx
from tests.report.exported_graphs import GRAPHS, feeds_of, graph_of, x_of

onnxruntime = pytest.importorskip("onnxruntime")
CLASSES = {"Conv", "ConvTranspose", "MatMul", "Einsum", "MaxPool", "AveragePool", "Softmax", "LayerNormalization"}


def operators(data):
    return collections.Counter(node.op_type for node in onnx.load_from_string(data).graph.node)


@pytest.mark.parametrize("name", GRAPHS)
def test_the_model_computes_what_the_graph_means(name):
    graph = graph_of(name)
    data = to_onnx(graph)
    onnx.checker.check_model(onnx.load_from_string(data), full_check=True)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    feeds = feeds_of(graph)
    got = session.run([output for output, _ in graph.outputs], feeds)
    for array, (output, want) in zip(got, evaluate(graph, feeds).items(), strict=True):
        assert array.shape == want.shape
        np.testing.assert_allclose(array.astype(np.float64), want, rtol=2e-4, atol=2e-4, err_msg=output)


@pytest.mark.parametrize("name", [name for name, (_, wanted) in GRAPHS.items() if wanted])
def test_the_largest_operator_is_used(name):
    made, wanted = operators(to_onnx(graph_of(name))), GRAPHS[name][1]
    assert all(operator in made for operator in wanted), made
    assert set(made) & CLASSES == set(wanted) & CLASSES


@pytest.mark.parametrize(
    "name",
    ["matrix_product", "rows_of_any_rank", "batched_product", "batch_of_one", "convolution_with_padding",
     "convolution_of_a_point", "depthwise_convolution", "transposed_convolution", "max_pooling", "average_pooling",
     "softmax", "layer_norm", "gelu", "gelu_with_tanh", "relu6"],
)  # fmt: skip
def test_nothing_is_put_around_an_operator_that_fits(name):
    made = operators(to_onnx(graph_of(name)))
    made.pop("Identity")
    assert sum(made.values()) == 1, made


def test_what_an_operator_swallowed_is_not_written_too():
    made = operators(to_onnx(graph_of("layer_norm")))
    assert made == {"LayerNormalization": 1, "Identity": 1}


def test_an_intermediate_that_is_an_output_too_is_written():
    b = GraphBuilder()
    x = x_of(b, 3, 4)
    top = b.reduce("max", x, [1], True)
    graph = b.finish([("top", top), ("y", b.softmax(x, 1))])
    assert {"Softmax", "ReduceMax"} <= set(operators(to_onnx(graph)))


def test_equal_constants_are_stored_once():
    b = GraphBuilder()
    x, w = x_of(b, 3, 4), b.constant(np.ones((4, 4), np.float32))
    graph = b.finish([("y", b.matmul(b.matmul(x, w), w))])
    assert len(onnx.load_from_string(to_onnx(graph)).graph.initializer) == 1


def test_a_running_maximum_has_no_onnx_form():
    b = GraphBuilder()
    graph = b.finish([("y", b.scan("max", x_of(b, 3, 4), 1))])
    with pytest.raises(UserError, match="running max"):
        to_onnx(graph)
