"""Every program of the µGraph suite, and whole models at small sizes: each peer computes what the graph means, with
the operators that its users would choose."""

from __future__ import annotations

import collections
from typing import Any

import numpy as np
import onnx
import pytest

from pipeline.frontend.workloads.inputs import inputs
from pipeline.ir.evaluate import evaluate
from pipeline.ir.graph import Graph
from pipeline.ir.graph_builder import GraphBuilder
from pipeline.report.onnx_export import to_onnx
from pipeline.report.peers.onnxruntime import OnnxRuntime
from pipeline.report.peers.openvino import OpenVino
from pipeline.report.peers.peer import PeerModel
from pipeline.report.peers.torch import Torch, fastest
from pipeline.report.peers.torch_compile import TorchCompile
from pipeline.report.peers.torch_fx import to_torch
from tests.frontend.test_workloads import TINY, make

SUITE = [
    "gqa",
    "gqa_decode",
    "mha",
    "mqa",
    "qknorm",
    "rmsnorm_linear",
    "lora",
    "gated_mlp",
    "ntrans",
    "moe",
    "full_mlp",
]
MODELS = ["llama_block", "llama_decode", "bert", "gpt2", "gpt2_decode", "attention"]
PEERS = {peer.name: peer for peer in (OnnxRuntime(), OpenVino(), Torch())}


def model(name: str, **changes: Any) -> PeerModel:
    graph = make(name, **{**TINY[name], **changes}).build(0)
    return PeerModel(graph, inputs(graph, 0))


def operators(graph: Graph) -> collections.Counter[str]:
    return collections.Counter(node.op_type for node in onnx.load_from_string(to_onnx(graph)).graph.node)


def agrees(peer: Any, given: PeerModel) -> None:
    reason = peer.available()
    if reason is not None:
        pytest.skip(reason)
    run = peer.prepare(given, 2)
    for seed in (0, 1):
        feeds = inputs(given.graph, seed)
        got = {name: np.array(array) for name, array in run(feeds).items()}
        for name, want in evaluate(given.graph, feeds).items():
            np.testing.assert_allclose(got[name].astype(np.float64), want, rtol=2e-4, atol=2e-5, err_msg=name)


@pytest.mark.parametrize("peer", PEERS)
@pytest.mark.parametrize("name", [*SUITE, *MODELS])
def test_a_peer_computes_the_program(peer: str, name: str) -> None:
    agrees(PEERS[peer], model(name))


@pytest.mark.parametrize("name", [pytest.param("qknorm", marks=pytest.mark.slow), "full_mlp"])
def test_compiled_torch_computes_the_program(name: str) -> None:
    agrees(TorchCompile(), model(name))


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("gqa", {"MatMul": 2, "Softmax": 1}),
        ("mha", {"MatMul": 2, "Softmax": 1}),
        ("gated_mlp", {"MatMul": 2, "Sigmoid": 1, "Mul": 2}),
        ("rmsnorm_linear", {"Pow": 1, "ReduceMean": 1, "Add": 1, "Sqrt": 1, "Div": 1, "Mul": 1, "MatMul": 1}),
        ("lora", {"MatMul": 3, "Add": 1}),
        ("moe", {"MatMul": 2, "Exp": 1}),
    ],
)
def test_the_model_holds_what_a_good_file_would(name: str, wanted: dict[str, int]) -> None:
    assert operators(model(name).graph) == {**wanted, "Identity": 1}


def test_scores_are_not_transposed_where_the_queries_can_be() -> None:
    # one transposition of the queries, keys, values and of the context
    assert operators(model("llama_block").graph)["Transpose"] == 4


@pytest.mark.parametrize("name", ["rmsnorm_linear", "ntrans", "llama_block"])
def test_onnx_runtime_has_one_kernel_for_a_normalisation(name: str, tmp_path: Any) -> None:
    runtime = pytest.importorskip("onnxruntime")
    options = runtime.SessionOptions()
    options.optimized_model_filepath, options.log_severity_level = str(tmp_path / "optimized.onnx"), 3
    runtime.InferenceSession(to_onnx(model(name).graph), options, providers=["CPUExecutionProvider"])
    made = [node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node]
    assert made.count("SimplifiedLayerNormalization") == (1 if name == "rmsnorm_linear" else 2)
    assert "ReduceMean" not in made


def functions(given: PeerModel, **options: bool) -> list[str]:
    torch = pytest.importorskip("torch")
    code = to_torch(onnx.load_from_string(to_onnx(given.graph)), torch, **options).graph
    return [getattr(node.target, "__name__", "") for node in code.nodes if node.op == "call_function"]


@pytest.mark.parametrize(
    ("name", "count"),
    [("gqa", 1), ("gqa_decode", 1), ("mha", 1), ("mqa", 1), ("qknorm", 1), ("attention", 1), ("llama_block", 1),
     ("llama_decode", 1), ("bert", 2), ("gpt2", 2), ("gpt2_decode", 2)],
)  # fmt: skip
def test_attention_is_pytorchs_own_function(name: str, count: int) -> None:
    given = model(name)
    made = functions(given)
    assert (made.count("scaled_dot_product_attention"), made.count("softmax")) == (count, 0)
    made = functions(given, attention=False)
    assert (made.count("scaled_dot_product_attention"), made.count("softmax")) == (0, count)


def test_attention_by_products_computes_the_same() -> None:
    torch = pytest.importorskip("torch")
    for name in ("gqa", "attention", "llama_block", "bert", "gpt2"):
        given = model(name)
        proto = onnx.load_from_string(to_onnx(given.graph))
        tensors = [torch.from_numpy(array) for array in given.feeds.values()]
        one, other = (to_torch(proto, torch, attention=fused)(*tensors)[0] for fused in (True, False))
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_a_gate_and_a_normalisation_are_pytorchs_own_functions() -> None:
    made = functions(model("llama_block"))
    assert (made.count("silu"), made.count("sigmoid")) == (1, 0)
    assert (made.count("rms_norm"), made.count("mean")) == (2, 0)


def shared_softmax(b: GraphBuilder, q: int, k: int, v: int) -> list[int]:
    shares = b.softmax(b.matmul(q, k))
    return [b.matmul(shares, v), shares]


def over_the_queries(b: GraphBuilder, q: int, k: int, v: int) -> list[int]:
    return [b.matmul(b.softmax(b.matmul(q, k), 1), v)]


def mask_before_the_scale(b: GraphBuilder, q: int, k: int, v: int) -> list[int]:
    masked = b.elementwise("add", b.matmul(q, k), b.input("mask", (4, 6), "float32"))
    return [b.matmul(b.softmax(b.elementwise("mul", masked, b.scalar(0.5, masked))), v)]


def row_without_a_key(b: GraphBuilder, q: int, k: int, v: int) -> list[int]:
    visible = np.ones((4, 6), bool)
    visible[2] = False
    scores = b.matmul(q, k)
    hidden = b.elementwise("where", b.constant(visible), scores, b.scalar(-1e4, scores))
    return [b.matmul(b.softmax(hidden), v)]


def low_but_not_absent(b: GraphBuilder, q: int, k: int, v: int) -> list[int]:
    scores = b.matmul(q, k)
    hidden = b.elementwise("where", b.constant(np.tri(4, 6, dtype=bool)), scores, b.scalar(-1.0, scores))
    return [b.matmul(b.softmax(hidden), v)]


def one_head_of_keys(b: GraphBuilder, q: int, k: int, v: int) -> list[int]:
    k = b.slice(k, [0], [1], axes=[0])
    return [b.matmul(b.softmax(b.matmul(q, k)), v)]


def two_scales(b: GraphBuilder, q: int, k: int, v: int) -> list[int]:
    scores = b.matmul(q, k)
    scores = b.elementwise("mul", b.elementwise("mul", scores, b.scalar(0.5, scores)), b.scalar(0.25, scores))
    return [b.matmul(b.softmax(b.elementwise("add", scores, b.input("mask", (3, 4, 6), "float32"))), v)]


ODD = {"one_head_of_keys": 0, "shared_softmax": 0, "over_the_queries": 0, "mask_before_the_scale": 0,
       "row_without_a_key": 0, "low_but_not_absent": 0, "two_scales": 1}  # fmt: skip


@pytest.mark.parametrize(("name", "count"), ODD.items())
def test_what_only_looks_like_attention_is_computed_as_it_is(name: str, count: int) -> None:
    b = GraphBuilder()
    q, k, v = (b.input(n, s, "float32") for n, s in (("q", (3, 4, 5)), ("k", (3, 5, 6)), ("v", (3, 6, 5))))
    graph = b.finish([(f"y{i}", value) for i, value in enumerate(globals()[name](b, q, k, v))])
    given = PeerModel(graph, inputs(graph, 0))
    assert functions(given).count("scaled_dot_product_attention") == count
    agrees(PEERS["torch"], given)


def test_an_additive_mask_reaches_the_function() -> None:
    given = model("bert", sequence=7)
    feeds = dict(given.feeds)
    feeds["attention_mask"] = np.array([[1, 1, 1, 0, 0, 0, 0]])
    agrees(PEERS["torch"], PeerModel(given.graph, feeds))


def test_of_two_forms_the_faster_one_is_kept() -> None:
    now = [0.0]

    def taking(seconds: float) -> Any:
        def run(feeds: Any) -> Any:
            now[0] += seconds
            return {}

        return run

    slow, fast = taking(2.0), taking(1.0)
    assert fastest([slow, fast], {}, lambda: now[0]) is fast
    assert fastest([fast, slow], {}, lambda: now[0]) is fast
    assert fastest([slow], {}, lambda: now[0]) is slow
