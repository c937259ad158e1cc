"""Tests of the µGraph suite and the Llama block: each computes the formula of its definition, written out in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pipeline.frontend.workloads.inputs import inputs
from pipeline.frontend.workloads.llama_block import LlamaBlock
from pipeline.ir import graph as g
from pipeline.ir.evaluate import evaluate
from pipeline.ir.graph import Graph
from tests.frontend.test_workloads import make

Arrays = dict[str, np.ndarray]
RNG = np.random.default_rng(5)
BLOCK = LlamaBlock(hidden=10, heads=6, kv_heads=3, dim=4, inner=14, batch=2, sequence=5)


def rms(x: np.ndarray, axis: int = -1, eps: float = 0.0) -> np.ndarray:
    return x / np.sqrt((x**2).mean(axis, keepdims=True) + eps)


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float = 1.0) -> np.ndarray:
    """Keys transposed, as the suite has them."""
    power = np.exp(q @ k * scale)
    return power / power.sum(-1, keepdims=True) @ v


HEADS = {"heads": 3, "queries": 5, "keys": 7, "dim": 4}
ROWS = {"rows": 5, "hidden": 12, "constant_weights": False}
FORMULAS: dict[str, tuple[dict[str, Any], Callable[..., np.ndarray]]] = {
    "gqa": (HEADS, attention),
    "gqa_decode": (HEADS, attention),
    "mha": (HEADS, attention),
    "mqa": ({**HEADS, "heads": 1}, attention),
    "qknorm": (HEADS, lambda q, k, v: attention(rms(q), rms(k, 1), v)),
    "rmsnorm_linear": ({**ROWS, "outputs": 9}, lambda x, weight: rms(x) @ weight),
    "lora": (
        {**ROWS, "outputs": 9, "rank": 2},
        lambda x, weight, weight_a, weight_b: x @ weight + x @ weight_a @ weight_b,
    ),
    "gated_mlp": ({**ROWS, "inner": 9}, lambda x, weight1, weight2: silu(x @ weight1) * (x @ weight2)),
    "full_mlp": (
        {**ROWS, "inner": 9},
        lambda x, weight1, weight2, weight3: (silu(x @ weight1) * (x @ weight2)) @ weight3,
    ),
    "ntrans": ({"rows": 5, "hidden": 12}, lambda h, x, alpha: rms(x + alpha * (rms(h) - x))),
    "moe": ({**ROWS, "experts": 3, "inner": 9}, lambda x, weight_a, weight_b: np.exp(x @ weight_a) @ weight_b),
}


def wide(feeds: Arrays) -> Arrays:
    return {name: array.astype(np.float64) for name, array in feeds.items()}


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize("seed", [0, 1])
def test_a_workload_computes_its_formula(name: str, seed: int) -> None:
    sizes, formula = FORMULAS[name]
    graph = make(name, **sizes).build(seed)
    feeds = inputs(graph, seed)
    np.testing.assert_allclose(evaluate(graph, feeds)["y"], formula(**wide(feeds)), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["gqa", "gqa_decode", "mha", "mqa"])
def test_a_scale_is_applied_to_the_scores(name: str) -> None:
    graph = make(name, **HEADS, scale=0.25).build(0)
    feeds = inputs(graph, 0)
    np.testing.assert_allclose(evaluate(graph, feeds)["y"], attention(**wide(feeds), scale=0.25), rtol=1e-9)
    assert not np.allclose(evaluate(make(name, **HEADS).build(0), feeds)["y"], attention(**wide(feeds), scale=0.25))


def test_the_softmax_stays_finite_where_the_exponential_would_not() -> None:
    graph = make("gqa", **HEADS).build(0)
    feeds = {name: 40 * array for name, array in inputs(graph, 0).items()}
    assert np.abs(feeds["q"] @ feeds["k"]).max() > 1000
    assert np.isfinite(evaluate(graph, feeds, precision="native")["y"]).all()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("qknorm", lambda q, k, v: attention(rms(q, eps=0.3), rms(k, 1, eps=0.3), v)),
        ("ntrans", lambda h, x, alpha: rms(x + alpha * (rms(h, eps=0.3) - x), eps=0.3)),
        ("rmsnorm_linear", lambda x, weight: rms(x, eps=0.3) @ weight),
    ],
)
def test_an_epsilon_is_added_to_the_mean_square(name: str, expected: Callable[..., np.ndarray]) -> None:
    graph = make(name, **FORMULAS[name][0], eps=0.3).build(0)
    feeds = inputs(graph, 0)
    np.testing.assert_allclose(evaluate(graph, feeds)["y"], expected(**wide(feeds)), rtol=1e-6)


@pytest.mark.parametrize("name", ["rmsnorm_linear", "lora", "gated_mlp", "full_mlp", "moe"])
def test_constant_weights_give_what_the_same_inputs_give(name: str) -> None:
    sizes, formula = FORMULAS[name]
    graph = make(name, **{**sizes, "constant_weights": True}).build(0)
    weights = {node.name: graph.constants[node.op.key] for node in graph.nodes if isinstance(node.op, g.Constant)}
    feeds = inputs(graph, 0)
    assert set(feeds) == {"x"}
    given = wide({**feeds, **{key: array for key, array in weights.items() if key.startswith("weight")}})
    np.testing.assert_allclose(evaluate(graph, feeds)["y"], formula(**given), rtol=1e-9)


def test_feeds_of_weights_keep_the_size_of_a_product() -> None:
    graph = make("moe", experts=2, rows=64, hidden=512, inner=256).build(0)
    feeds = inputs(graph, 0)
    assert feeds["x"].std() == pytest.approx(1, abs=0.1)
    assert (feeds["x"] @ feeds["weight_a"]).std() == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_another_dtype_goes_through(dtype: str) -> None:
    for name, (sizes, _) in FORMULAS.items():
        graph = make(name, **sizes, dtype=dtype).build(0)
        assert {graph.nodes[value].type.dtype for _, value in graph.outputs} == {dtype}, name


def block(feeds: Arrays, weights: Arrays, spec: LlamaBlock) -> np.ndarray:
    """The definition of a Llama's layer, one head, position and pair at a time."""
    x, group = feeds["x"], spec.heads // spec.kv_heads

    def turned(v: np.ndarray, position: int) -> np.ndarray:
        out = np.empty_like(v)
        half = spec.dim // 2
        for i in range(half):
            angle = position * spec.theta ** (-2 * i / spec.dim)
            out[i] = v[i] * np.cos(angle) - v[i + half] * np.sin(angle)
            out[i + half] = v[i + half] * np.cos(angle) + v[i] * np.sin(angle)
        return out

    n = rms(x, eps=spec.eps) * weights["norm1.gain"]
    q, k, v = (
        (n @ weights[f"attention.{part}"]).reshape(*x.shape[:2], -1, spec.dim) for part in ("query", "key", "value")
    )
    before = feeds.get("past_key", np.zeros((spec.batch, 0, spec.kv_heads, spec.dim)))
    context = np.zeros((*x.shape[:2], spec.heads, spec.dim))
    for batch, place, head in np.ndindex(*context.shape[:3]):
        shared, now = head // group, before.shape[1] + place
        keys = [
            *before[batch, :, shared],
            *(turned(k[batch, i, shared], before.shape[1] + i) for i in range(place + 1)),
        ]
        values = [*feeds["past_value"][batch, :, shared]] if before.shape[1] else []
        values += [v[batch, i, shared] for i in range(place + 1)]
        scores = np.array(keys) @ turned(q[batch, place, head], now) / np.sqrt(spec.dim)
        power = np.exp(scores)
        context[batch, place, head] = power / power.sum() @ np.array(values)
    x = x + context.reshape(*x.shape[:2], -1) @ weights["attention.output"]
    n = rms(x, eps=spec.eps) * weights["norm2.gain"]
    gate, up, down = (weights[f"mlp.weight{i}"] for i in (1, 2, 3))
    return x + (silu(n @ gate) * (n @ up)) @ down


def named_weights(graph: Graph) -> Arrays:
    found = [(node.name.rpartition("/")[2], node.op) for node in graph.nodes if isinstance(node.op, g.Constant)]
    return {name: graph.constants[op.key].astype(np.float64) for name, op in found}


@pytest.mark.parametrize("changes", [{}, {"past": 3}, {"sequence": 1, "past": 6}, {"kv_heads": 6}, {"kv_heads": 1}])
def test_a_llama_block_computes_its_definition(changes: dict[str, int]) -> None:
    spec = LlamaBlock(**{**{name: getattr(BLOCK, name) for name in BLOCK.__dataclass_fields__}, **changes})
    graph = spec.build(0)
    feeds = inputs(graph, 0)
    expected = block(wide(feeds), named_weights(graph), spec)
    np.testing.assert_allclose(evaluate(graph, feeds)["y"], expected, rtol=1e-5, atol=1e-6)


def test_a_block_sees_no_later_token() -> None:
    graph = BLOCK.build(0)
    feeds = inputs(graph, 0)
    changed = feeds["x"].copy()
    changed[:, 3:] += 1
    first, second = evaluate(graph, feeds)["y"], evaluate(graph, {"x": changed})["y"]
    np.testing.assert_allclose(first[:, :3], second[:, :3], rtol=1e-12)
    assert not np.allclose(first[:, 3:], second[:, 3:])


def test_a_block_with_a_cache_gives_what_the_whole_sequence_gives() -> None:
    fields = {name: getattr(BLOCK, name) for name in BLOCK.__dataclass_fields__}
    x = inputs(BLOCK.build(0), 0)["x"]
    whole = evaluate(BLOCK.build(0), {"x": x})["y"]
    out = evaluate(LlamaBlock(**{**fields, "sequence": 2, "cache": True}).build(0), {"x": x[:, :2]})
    for done in (2, 3, 4):
        past = {f"past_{part}": out[f"present_{part}"].astype(np.float32) for part in ("key", "value")}
        graph = LlamaBlock(**{**fields, "sequence": 1, "past": done, "cache": True}).build(0)
        out = evaluate(graph, {"x": x[:, done : done + 1], **past})
        np.testing.assert_allclose(out["y"], whole[:, done : done + 1], rtol=1e-4, atol=1e-5)
    assert out["present_key"].shape == (2, 5, 3, 4)


def test_a_full_block_has_as_many_parameters_as_published() -> None:
    # Llama-3.2-1B: 16 such layers, 128256 embeddings of 2048 that serve as the head too, and a last gain
    graph = LlamaBlock(sequence=1).build(0)
    count = sum(array.size for name, array in named_weights(graph).items() if "." in name)
    assert 16 * count + 128256 * 2048 + 2048 == 1_235_814_400
