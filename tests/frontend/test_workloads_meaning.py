"""What the built-in workloads compute, against direct formulas."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from pipeline.frontend.workloads.attention import Attention
from pipeline.frontend.workloads.bert import Bert
from pipeline.frontend.workloads.cap import Cap
from pipeline.frontend.workloads.cbr import Cbr
from pipeline.frontend.workloads.gpt2 import Gpt2
from pipeline.frontend.workloads.inputs import indexed_size, inputs
from pipeline.frontend.workloads.mobilenet_v2 import MobilenetV2
from pipeline.frontend.workloads.nrm import Nrm
from pipeline.frontend.workloads.resnet50 import Resnet50
from pipeline.frontend.workloads.stream import stream
from pipeline.frontend.workloads.tbg import Tbg
from pipeline.ir import graph as g
from pipeline.ir.evaluate import evaluate
from pipeline.ir.graph import Graph
from pipeline.ir.graph_builder import GraphBuilder

TINY_BERT = Bert(layers=2, hidden=8, heads=2, intermediate=16, vocabulary=11, positions=9, batch=2, sequence=6)
TINY_GPT = Gpt2(layers=2, hidden=8, heads=2, vocabulary=11, positions=9, sequence=6)


def count(graph: Graph) -> int:
    """Elements of all constants."""
    return sum(array.size for array in graph.constants.values())


def test_the_norm_of_a_matrix():
    graph = Nrm(m=4, n=3, batch=2).build(0)
    feeds = inputs(graph, 0)
    expected = np.linalg.norm(feeds["x"].astype(float), axis=(1, 2))
    np.testing.assert_allclose(evaluate(graph, feeds)["y"], expected, rtol=1e-12)


def test_the_scores_of_transposed_heads():
    graph = Tbg(seq=4, head=3, dim=5).build(0)
    feeds = inputs(graph, 0)
    expected = np.einsum("bqhd,bkhd->bhqk", feeds["query"].astype(float), feeds["key"].astype(float))
    np.testing.assert_allclose(evaluate(graph, feeds)["scores"], expected, rtol=1e-9)


def test_a_capsule_is_a_matrix_product_at_each_tap():
    graph = Cap(h=4, w=3, ci=2, co=3, k=2, s=1, p=0, capsule=2).build(0)
    feeds = inputs(graph, 0)
    x, w = feeds["x"].astype(float), feeds["w"].astype(float)
    expected = np.zeros((1, 3, 2, 3, 2, 2))
    for i, j, co, a, b, ci in np.ndindex(3, 2, 3, 2, 2, 2):
        expected[0, i, j, co] += x[0, i + a, j + b, ci] @ w[a, b, ci, co]
    np.testing.assert_allclose(evaluate(graph, feeds)["y"], expected, rtol=1e-9)


def test_batch_norm_and_relu_follow_the_convolution():
    graph = Cbr(h=4, w=4, ci=2, co=3, k=1, s=1, p=0, constant_weights=False).build(0)
    feeds = inputs(graph, 0)
    wide = {name: array.astype(float) for name, array in feeds.items()}
    product = np.einsum("nchw,oc->nohw", wide["x"], wide["w"][:, :, 0, 0]) + wide["bias"]
    expected = np.maximum(product * wide["norm.scale"] + wide["norm.shift"], 0)
    np.testing.assert_allclose(evaluate(graph, feeds)["y"], expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("causal", [False, True])
def test_attention_is_its_formula(causal: bool):
    graph = Attention(batch=2, heads=3, queries=4, keys=6, dim=5, causal=causal).build(0)
    feeds = inputs(graph, 0)
    q, k, v = (feeds[name].astype(float) for name in "qkv")
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(5)
    if causal:
        scores = np.where(np.arange(6) <= np.arange(4)[:, None] + 2, scores, -np.inf)
    share = np.exp(scores - scores.max(-1, keepdims=True))
    expected = share / share.sum(-1, keepdims=True) @ v
    np.testing.assert_allclose(evaluate(graph, feeds)["y"], expected, rtol=1e-6, atol=1e-9)


def test_bert_ignores_masked_tokens():
    graph = TINY_BERT.build(0)
    feeds = inputs(graph, 0)
    feeds["attention_mask"] = np.array([[1, 1, 1, 1, 0, 0]] * 2)
    first = evaluate(graph, feeds)
    feeds["input_ids"] = feeds["input_ids"].copy()
    feeds["input_ids"][:, 4:] = (feeds["input_ids"][:, 4:] + 1) % 11
    second = evaluate(graph, feeds)
    np.testing.assert_allclose(first["pooler_output"], second["pooler_output"], rtol=1e-12)
    visible = [out["last_hidden_state"][:, :4] for out in (first, second)]
    np.testing.assert_allclose(visible[0], visible[1], rtol=1e-12)
    assert not np.allclose(first["last_hidden_state"][:, 4:], second["last_hidden_state"][:, 4:])


def test_bert_has_the_shapes_and_the_normalisation_of_its_last_layer():
    out = evaluate(graph := TINY_BERT.build(0), inputs(graph, 0))
    shapes = {name: value.shape for name, value in out.items()}
    assert shapes == {"last_hidden_state": (2, 6, 8), "pooler_output": (2, 8)}
    assert (np.abs(out["pooler_output"]) < 1).all()
    assert 0.5 < out["last_hidden_state"].std() < 2


def test_gpt2_sees_no_later_token():
    graph = TINY_GPT.build(0)
    ids = np.array([[1, 2, 3, 4, 5, 6]])
    first = evaluate(graph, {"input_ids": ids})["logits"]
    second = evaluate(graph, {"input_ids": np.array([[1, 2, 3, 9, 9, 9]])})["logits"]
    np.testing.assert_allclose(first[:, :3], second[:, :3], rtol=1e-12)
    assert not np.allclose(first[:, 3:], second[:, 3:])


def test_tokens_after_a_cache_give_what_the_whole_sequence_gives():
    ids = np.array([[1, 2, 3, 4, 5, 6]])
    whole = evaluate(TINY_GPT.build(0), {"input_ids": ids})["logits"]
    done = 3
    out = evaluate(replace(TINY_GPT, sequence=done, cache=True).build(0), {"input_ids": ids[:, :done]})
    for tokens in (1, 2):
        past = {name.replace("present", "past"): value.astype(np.float32) for name, value in out.items()}
        del past["logits"]
        graph = replace(TINY_GPT, sequence=tokens, past=done, cache=True).build(0)
        out = evaluate(graph, {"input_ids": ids[:, done : done + tokens], **past})
        np.testing.assert_allclose(out["logits"], whole[:, done : done + tokens], atol=1e-6)
        done += tokens
    assert out["present_key_1"].shape == (1, 6, 2, 4)


def test_full_size_models_have_as_many_parameters_as_published():
    # those of the classifier and the norms included; a batch norm is two folded constants here
    assert abs(count(Resnet50().build(0)) - 25.56e6) < 0.1e6
    assert abs(count(MobilenetV2().build(0)) - 3.50e6) < 0.05e6
    small = Bert(layers=1).build(0)
    per_layer = count(Bert(layers=2, vocabulary=99).build(0)) - count(Bert(layers=1, vocabulary=99).build(0))
    assert abs(per_layer - 7.09e6) < 0.01e6
    assert abs(count(small) + 11 * per_layer - 109.5e6) < 0.5e6


def test_activations_neither_explode_nor_vanish_in_a_deep_network():
    graph = Resnet50(size=64, width=16).build(0)
    feeds = inputs(graph, 0)
    relu = g.Elementwise("max")
    probes = [i for i, node in enumerate(graph.nodes) if node.name.startswith("stage") and node.op == relu]
    probed = Graph(graph.nodes, tuple((str(i), i) for i in probes), graph.constants)
    spreads = [value.std() for value in evaluate(probed, feeds).values()]
    assert min(spreads) > 0.1 and max(spreads) < 10


def test_feeds_are_in_the_range_of_their_use():
    graph = TINY_BERT.build(0)
    feeds = inputs(graph, 0)
    assert feeds["input_ids"].max() < 11 and feeds["token_type_ids"].max() < 2
    assert set(np.unique(feeds["attention_mask"])) <= {0, 1}
    assert (np.diff(feeds["attention_mask"]) <= 0).all() and (feeds["attention_mask"].sum(axis=1) >= 3).all()
    assert all((inputs(graph, 0)[name] == array).all() for name, array in feeds.items())
    assert any((inputs(graph, 1)[name] != array).any() for name, array in feeds.items())


def test_the_range_of_an_index_is_found_through_views_and_casts():
    b = GraphBuilder()
    ids, free, flag = b.input("ids", (2, 3), "int32"), b.input("free", (2,), "int64"), b.input("flag", (2,), "bool")
    table, small = b.constant(np.zeros((9, 2))), b.constant(np.zeros((5, 2)))
    flat = b.cast(b.reshape(ids, (6,)), "int64")
    graph = b.finish([("a", b.gather(table, flat, 0)), ("b", b.gather(small, b.transpose(ids, (1, 0)), 0)),
                      ("c", b.cast(free, "float32")), ("d", b.elementwise("not", flag))])  # fmt: skip
    numbers = {node.op.name: i for i, node in enumerate(graph.nodes) if isinstance(node.op, g.Input)}
    assert indexed_size(graph, numbers["ids"]) == 5
    assert indexed_size(graph, numbers["free"]) is None
    assert {name: array.dtype.name for name, array in inputs(graph, 0).items()} == {
        "ids": "int32", "free": "int64", "flag": "bool"}  # fmt: skip


def test_streams_of_one_seed_are_independent_by_name():
    first, again, other = (stream(7, name).integers(0, 2**63, 4).tolist() for name in ("a", "a", "b"))
    assert first == again != other
    assert stream(8, "a").integers(0, 2**63, 4).tolist() != first
