"""The built-in workloads: every YAML builds, tiny ones evaluate, sizes are those of the suite, mistakes are refused."""

from __future__ import annotations

import dataclasses
import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from pipeline.errors import UserError
from pipeline.frontend.workloads.inputs import inputs
from pipeline.frontend.workloads.workload import Workload
from pipeline.ir import graph as g
from pipeline.ir.evaluate import evaluate
from pipeline.ir.graph import Graph
from pipeline.ir.graph_check import check
from pipeline.ir.graph_text import to_text

CONF = Path(__file__).resolve().parents[2] / "conf" / "workload"
NAMES = sorted(path.stem for path in CONF.glob("*.yaml") if path.stem != "onnx")

CONV = {"h": 7, "w": 6, "ci": 4, "co": 8, "k": 3, "s": 2, "p": 1}
BERT = {"layers": 2, "hidden": 8, "heads": 2, "intermediate": 16, "vocabulary": 11, "positions": 9, "sequence": 5}
HEADS = {"heads": 2, "queries": 3, "keys": 5, "dim": 4}
LLAMA = {"hidden": 8, "heads": 4, "kv_heads": 2, "dim": 4, "inner": 12, "sequence": 5}
TINY: dict[str, dict[str, Any]] = {
    "c1d": {"length": 7, "ci": 3, "co": 5, "k": 3, "s": 2, "p": 1},
    "c2d": CONV,
    "c3d": {**CONV, "d": 5},
    "grp": CONV,
    "dil": CONV,
    "dep": {"h": 7, "w": 6, "c": 5, "k": 3, "s": 2, "p": 1},
    "t2d": {**CONV, "k": 4},
    "cbr": CONV,
    "cap": {"h": 5, "w": 4, "ci": 3, "co": 2, "k": 3, "s": 2, "p": 1, "capsule": 2},
    "gmm": {"n": 7, "m": 5, "k": 3},
    "gram": {"n": 7, "k": 3},
    "nrm": {"m": 7, "n": 5},
    "sfm": {"m": 7, "n": 5},
    "softmax": {"m": 7, "n": 5},
    "tbg": {"seq": 7, "head": 2, "dim": 3},
    "odd": {"case": 3},
    "layer_norm": {"m": 7, "n": 5},
    "attention": {"heads": 2, "queries": 3, "keys": 5, "dim": 4, "causal": True},
    "bert": BERT,
    "bert_large": BERT,
    "gpt2": {"layers": 2, "hidden": 8, "heads": 2, "vocabulary": 11, "positions": 9, "sequence": 5},
    "gqa": HEADS,
    "gqa_decode": HEADS,
    "mha": HEADS,
    "mqa": HEADS,
    "qknorm": HEADS,
    "rmsnorm_linear": {"rows": 3, "hidden": 7, "outputs": 5},
    "lora": {"rows": 3, "hidden": 7, "outputs": 5, "rank": 2},
    "gated_mlp": {"rows": 3, "hidden": 7, "inner": 5},
    "full_mlp": {"rows": 3, "hidden": 7, "inner": 5},
    "ntrans": {"rows": 3, "hidden": 7},
    "moe": {"experts": 2, "rows": 3, "hidden": 7, "inner": 5},
    "llama_block": LLAMA,
    "llama_decode": {**LLAMA, "sequence": 1, "past": 4},
    "gpt2_decode": {"layers": 2, "hidden": 8, "heads": 2, "vocabulary": 11, "positions": 9, "past": 4},
    "resnet50": {"size": 32, "width": 4, "classes": 10, "blocks": [1, 2, 1, 1]},
    "mobilenet_v2": {"size": 32, "width": 0.25, "classes": 10},
}
CASES = {"c1d": 4, "c2d": 4, "c3d": 4, "gmm": 4, "grp": 4, "dil": 4, "dep": 4, "t2d": 4, "cap": 4, "nrm": 4, "sfm": 4,
         "cbr": 4, "tbg": 4, "odd": 7, "gqa": 2, "gqa_decode": 2, "mha": 2, "mqa": 1, "qknorm": 2, "rmsnorm_linear": 2,
         "lora": 1, "gated_mlp": 2, "full_mlp": 1, "ntrans": 2, "moe": 1}  # fmt: skip
PRESETS = ("bert_large", "gpt2_decode", "llama_decode")


def make(name: str, **changes: Any) -> Workload:
    """The workload of a YAML file, as the configuration would build it."""
    data = yaml.safe_load((CONF / f"{name}.yaml").read_text())
    module, _, kind = data.pop("_target_").rpartition(".")
    return getattr(importlib.import_module(module), kind)(**(data | changes))


def outputs(graph: Graph, seed: int = 0) -> dict[str, np.ndarray]:
    return evaluate(graph, inputs(graph, seed))


def test_every_file_has_a_tiny_form():
    assert set(TINY) == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_the_file_gives_every_argument_and_its_default(name: str):
    data = yaml.safe_load((CONF / f"{name}.yaml").read_text())
    fields = {field.name: field.default for field in dataclasses.fields(type(make(name)))}
    del data["_target_"]
    assert set(data) == set(fields)
    assert data.pop("name") == name
    if name not in PRESETS:
        data = {key: tuple(value) if isinstance(value, list) else value for key, value in data.items()}
        assert data == {key: value for key, value in fields.items() if key != "name"}


@pytest.mark.parametrize("name", NAMES)
def test_a_tiny_workload_is_legal_and_has_finite_outputs_of_moderate_size(name: str):
    workload = make(name, **TINY[name])
    graph = workload.build(0)
    check(graph)
    wide, native = outputs(graph), evaluate(graph, inputs(graph, 0), precision="native")
    for key, value in wide.items():
        assert np.isfinite(value).all() and 1e-3 < np.abs(value).max() < 100
        np.testing.assert_allclose(native[key], value, rtol=1e-3, atol=1e-4)
    assert workload.describe().startswith(name)


@pytest.mark.parametrize("name", NAMES)
def test_the_seed_alone_decides_the_graph(name: str):
    texts = [to_text(make(name, **TINY[name]).build(seed)) for seed in (3, 3, 4)]
    assert texts[0] == texts[1]
    assert ("constant<" in texts[0] and texts[0] != texts[2]) or name in (
        "gmm", "gram", "nrm", "sfm", "softmax", "tbg", "cap", "attention", "odd", "gqa", "gqa_decode", "mha", "mqa",
        "qknorm", "ntrans", "moe",
    )  # fmt: skip


@pytest.mark.parametrize(("name", "count"), CASES.items())
def test_every_case_builds_and_the_next_one_is_refused(name: str, count: int):
    for case in range(count):
        check(make(name, case=case).build(0))
    for case in (-1, count):
        with pytest.raises(UserError, match=rf"there is no case {case}") as caught:
            make(name, case=case).build(0)
        assert "0: " in str(caught.value) and f"{count - 1}: " in str(caught.value)


@pytest.mark.parametrize(
    ("name", "case", "shapes"),
    [
        ("c1d", 0, ["1x64x256", "1x128x128"]), ("c2d", 0, ["1x3x224x224", "1x64x112x112"]),
        ("c3d", 0, ["1x3x16x224x224", "1x64x8x112x112"]), ("gmm", 1, ["512x512", "512x32", "512x32"]),
        ("grp", 0, ["1x64x56x56", "1x128x28x28"]), ("dil", 0, ["1x3x224x224", "1x64x109x109"]),
        ("dep", 1, ["1x64x112x112", "1x64x56x56"]), ("t2d", 0, ["1x512x4x4", "1x256x8x8"]),
        ("cap", 0, ["1x16x16x32x4x4", "3x3x32x32x4x4", "1x8x8x32x4x4"]), ("nrm", 3, ["1x4096x1024", "1"]),
        ("softmax", 3, ["2048x2048", "2048x2048"]), ("cbr", 2, ["1x128x28x28", "1x256x14x14"]),
        ("tbg", 2, ["1x64x12x128", "1x64x12x128", "1x12x64x64"]), ("odd", 4, ["4x2048", "2048x768", "4x768"]),
        ("gqa", 0, ["2x256x64", "2x64x4096", "2x4096x64", "2x256x64"]),
        ("gqa", 1, ["16x256x64", "16x64x4096", "16x4096x64", "16x256x64"]),
        ("gqa_decode", 1, ["16x8x64", "16x64x4096", "16x4096x64", "16x8x64"]),
        ("mha", 1, ["256x16x64", "256x64x4096", "256x4096x64", "256x16x64"]),
        ("mqa", 0, ["1x1024x64", "1x64x4096", "1x4096x64", "1x1024x64"]),
        ("qknorm", 0, ["2x256x64", "2x64x4096", "2x4096x64", "2x256x64"]),
        ("rmsnorm_linear", 1, ["16x4096", "16x6144"]), ("lora", 0, ["16x256", "16x4096"]),
        ("gated_mlp", 0, ["1x4096", "1x4096"]), ("full_mlp", 0, ["8x4096", "8x4096"]),
        ("ntrans", 1, ["64x4096", "64x4096", "64x4096", "64x4096"]),
        ("moe", 0, ["8x8x4096", "8x4096x4096", "8x4096x4096", "8x8x4096"]),
        ("odd", 5, ["256x256", "256x256"]), ("odd", 6, ["1x3x224x224", "1x64x112x112"]),
    ],
)  # fmt: skip
def test_the_shapes_of_a_case_are_those_of_the_suite(name: str, case: int, shapes: list[str]):
    graph = make(name, case=case).build(0)
    found = [node.type.shape for node in graph.nodes if isinstance(node.op, g.Input)]
    found += [graph.nodes[value].type.shape for _, value in graph.outputs]
    assert ["x".join(map(str, shape)) for shape in found] == shapes


def test_given_sizes_take_the_place_of_the_case():
    graph = make("gmm", case=3, n=197, k=64).build(0)
    assert [node.type.shape for node in graph.nodes] == [(197, 64), (64, 1024), (197, 1024)]


@pytest.mark.parametrize("name", ["c2d", "gmm", "cap", "tbg", "layer_norm", "cbr", "rmsnorm_linear", "lora",
                                  "gated_mlp", "full_mlp", "moe"])  # fmt: skip
def test_weights_are_constants_or_inputs_as_asked(name: str):
    counts = []
    for constant in (True, False):
        graph = make(name, **TINY[name], constant_weights=constant).build(0)
        counts.append(sum(isinstance(node.op, g.Input) for node in graph.nodes))
        outputs(graph)
    assert counts[0] == 1 < counts[1]


def test_a_half_precision_convolution_is_summed_in_float32():
    graph = make("odd", case=6).build(0)
    dtypes = {type(node.op).__name__: node.type.dtype for node in graph.nodes}
    assert (dtypes["Input"], dtypes["Constant"], dtypes["Contract"]) == ("float16", "float16", "float32")
    assert graph.nodes[graph.outputs[0][1]].type.dtype == "float16"


@pytest.mark.parametrize(
    ("name", "changes", "why"),
    [
        ("gmm", {"n": 0}, "workload.n of gmm: the size is not positive"),
        ("c2d", {"p": -1}, "workload.p of c2d"),
        ("c2d", {"h": 3, "p": 0}, "larger than the padded input"),
        ("grp", {"ci": 6}, "do not divide into 4 groups"),
        ("grp", {"groups": 0}, "workload.groups"),
        ("t2d", {"h": 1, "w": 1, "p": 9}, "removes the whole result"),
        ("cap", {"h": 1, "k": 9}, "larger than the padded input"),
        ("attention", {"queries": 9, "keys": 3, "causal": True}, "a query sees no key"),
        ("gqa", {"keys": 0}, "workload.keys of gqa: the size is not positive"),
        ("mha", {"case": 2}, "0: 32,16,4096,64 · 1: 256,16,4096,64"),
        ("gqa", {"scale": float("nan")}, "workload.scale of gqa"),
        ("mqa", {"scale": 0.0}, "the scores cannot be scaled so"),
        ("qknorm", {"eps": -1e-6}, "workload.eps of qknorm: it is added to a mean square"),
        ("rmsnorm_linear", {"rows": -3}, "workload.rows of rmsnorm_linear: the size is not positive"),
        ("rmsnorm_linear", {"eps": float("nan")}, "workload.eps of rmsnorm_linear"),
        ("lora", {"rank": 0}, "workload.rank of lora"),
        ("gated_mlp", {"inner": 0}, "workload.inner of gated_mlp"),
        ("full_mlp", {"hidden": 0}, "workload.hidden of full_mlp"),
        ("ntrans", {"eps": -1.0}, "workload.eps of ntrans"),
        ("moe", {"experts": 0}, "workload.experts of moe"),
        ("llama_block", {"heads": 6, "kv_heads": 4}, "share the heads of keys evenly"),
        ("llama_block", {"dim": 5}, "dim 5 is odd"),
        ("llama_block", {"past": -1}, "not positive"),
        ("llama_block", {"theta": 0.0}, "a positive base"),
        ("llama_block", {"eps": -1.0}, "workload.eps of llama_block"),
        ("bert", {"heads": 5}, "does not divide into heads"),
        ("bert", {"sequence": 513}, "longer than the table of positions"),
        ("gpt2", {"sequence": 1000, "past": 100}, "longer than the table of positions"),
        ("gpt2", {"past": -1}, "not positive"),
        ("resnet50", {"size": 8}, "the image is too small"),
        ("resnet50", {"blocks": [3, 0]}, "workload.blocks"),
        ("mobilenet_v2", {"width": 0.0}, "workload.width"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(name: str, changes: dict[str, Any], why: str):
    with pytest.raises(UserError) as caught:
        make(name, **changes).build(0)
    assert why in str(caught.value)
