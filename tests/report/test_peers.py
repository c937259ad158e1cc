"""Every peer computes what the graph means; those that are not installed are left out."""

import importlib.util

import numpy as np
import onnx
import pytest

from pipeline.errors import UserError
from pipeline.ir.evaluate import evaluate
from pipeline.report.onnx_export import to_onnx
from pipeline.report.peers.onnxruntime import OnnxRuntime
from pipeline.report.peers.openvino import OpenVino
from pipeline.report.peers.peer import PeerModel
from pipeline.report.peers.torch import Torch
from pipeline.report.peers.torch_compile import TorchCompile
from tests.report.exported_graphs import GRAPHS, feeds_of, graph_of

PEERS = {peer.name: peer for peer in (OnnxRuntime(), Torch(), TorchCompile(), OpenVino())}
NOT_IN_TORCH = {"by_several_indices"}


def agrees(peer, graph, seed=0, tolerance=2e-4):
    feeds = feeds_of(graph)
    run = PEERS[peer].prepare(PeerModel(graph, feeds), 2)
    for round_seed in (seed, seed + 1):
        feeds = feeds_of(graph, round_seed)
        got = {name: np.array(array) for name, array in run(feeds).items()}
        for name, want in evaluate(graph, feeds).items():
            assert got[name].shape == want.shape
            np.testing.assert_allclose(got[name].astype(np.float64), want, rtol=tolerance, atol=tolerance, err_msg=name)


def need(peer):
    reason = PEERS[peer].available()
    if reason is not None:
        pytest.skip(reason)


@pytest.mark.parametrize("name", [name for name in GRAPHS if name not in NOT_IN_TORCH])
def test_torch_computes_what_the_graph_means(name):
    need("torch")
    agrees("torch", graph_of(name))


@pytest.mark.parametrize("name", NOT_IN_TORCH)
def test_what_torch_has_no_form_for_is_said(name):
    need("torch")
    with pytest.raises(UserError, match="no PyTorch form"):
        agrees("torch", graph_of(name))


FEW = ["matrix_product", "convolution_with_padding", "layer_norm", "an_input_that_is_not_used", "the_largest"]


@pytest.mark.parametrize("peer", ["onnxruntime", "openvino"])
@pytest.mark.parametrize("name", FEW)
def test_a_peer_computes_what_the_graph_means(peer, name):
    need(peer)
    agrees(peer, graph_of(name))


def test_compiled_torch_computes_what_the_graph_means():
    need("torch_compile")
    agrees("torch_compile", graph_of("softmax"))


@pytest.mark.parametrize("peer", ["onnxruntime", "openvino"])
def test_a_users_own_file_is_used_and_its_free_dimensions_are_fixed(peer, tmp_path):
    need(peer)
    graph = graph_of("rows_of_any_rank")
    proto = onnx.load_from_string(to_onnx(graph))
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    onnx.save(proto, tmp_path / "model.onnx")
    feeds = feeds_of(graph)
    run = PEERS[peer].prepare(PeerModel(graph, feeds, tmp_path / "model.onnx"), 1)
    np.testing.assert_allclose(run(feeds)["y0"], evaluate(graph, feeds)["y0"], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("peer", PEERS)
def test_a_package_that_is_not_there_is_a_reason_and_no_error(peer, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "is not installed (pip install" in PEERS[peer].available()


def test_compiled_torch_needs_a_compiler(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert "needs a C++ compiler" in PEERS["torch_compile"].available()
