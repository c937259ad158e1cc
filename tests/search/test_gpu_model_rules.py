"""Tests of the analytic model of GPUs on what the rules for GPUs make: thousands of rows at once."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import yaml

from pipeline.ir.graph import DType, Graph
from pipeline.ir.graph_builder import GraphBuilder
from pipeline.registry import Component, Registry
from pipeline.schedule.rule import Rule
from pipeline.schedule.variables import Rows
from pipeline.search.candidates import SketchSpace
from pipeline.search.gpu_model import FEATURES, IMPOSSIBLE, GpuModel, RegionReport
from pipeline.space.generate import generate
from pipeline.space.lower import lower
from pipeline.space.partition import partition
from tests.known_gpus import CONF, gpu

A100 = gpu("a100")


@cache
def rules() -> tuple[Rule, ...]:
    """The rules of a GPU, as the configuration lists them."""
    listed = yaml.safe_load((CONF / "rules" / "cuda.yaml").read_text(encoding="utf-8"))["schedule"]
    return tuple(
        Registry().build(Rule, Component.model_validate(node), f"rules.schedule[{i}]") for i, node in enumerate(listed)
    )


def spaces(graph: Graph, name: str = "a100") -> tuple[SketchSpace, ...]:
    """The sketches of the first task of a graph."""
    task = partition(graph).tasks[0]
    sketches = generate(lower(task.graph, task.name, task.constants), rules(), gpu(name))
    return tuple(SketchSpace(i, sketch, gpu(name)) for i, sketch in enumerate(sketches))


@cache
def product(n: int, m: int, k: int, dtype: DType) -> Graph:
    b = GraphBuilder()
    return b.finish([("c", b.matmul(b.input("a", (n, k), dtype), b.input("b", (k, m), dtype)))])


def softmax() -> Graph:
    b = GraphBuilder()
    return b.finish([("y", b.softmax(b.input("x", (64, 300), "float32"), 1))])


def gather() -> Graph:
    b = GraphBuilder()
    return b.finish([("y", b.gather(b.input("x", (1000, 64), "float16"), b.input("i", (30,), "int64"), 0))])


def transpose() -> Graph:
    b = GraphBuilder()
    return b.finish([("y", b.transpose(b.input("x", (96, 160), "float16"), (1, 0)))])


GRAPHS = {
    "float16": lambda: product(300, 200, 100, "float16"), "float32": lambda: product(300, 200, 100, "float32"),
    "float64": lambda: product(30, 20, 10, "float64"), "int8": lambda: product(64, 64, 64, "int8"),
    "row": lambda: product(1, 512, 512, "float16"), "softmax": softmax, "gather": gather, "transpose": transpose,
}  # fmt: skip


def report(space: SketchSpace, row: Rows) -> tuple[RegionReport, ...]:
    """What bounds the launches of one candidate."""
    symbols = {name: int(value[0]) for name, value in space.space.environment(row[None, :]).items()}
    return GpuModel(space.sketch.program, space.target).explain(symbols)


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("name", ["a100", "t4"])
def test_times_and_features_are_finite_and_no_candidate_is_impossible(graph: str, name: str) -> None:
    for space in spaces(GRAPHS[graph](), name):
        rows = space.draw(200, np.random.default_rng(0))
        seconds, features = space.analyse(rows)
        assert seconds.shape == (len(rows),) and features.shape == (len(rows), len(FEATURES))
        assert np.isfinite(features).all() and (seconds > 0).all()
        assert (seconds < IMPOSSIBLE).all()  # what the rules allow, a multiprocessor can hold


def test_a_row_is_analysed_the_same_alone_and_among_others() -> None:
    for space in spaces(product(300, 200, 100, "float16")):
        rows = space.draw(40, np.random.default_rng(1))
        seconds, features = space.analyse(rows)
        for i in (0, 17, 39):
            alone = space.analyse(rows[i : i + 1])
            assert np.allclose(alone[0], seconds[i], rtol=1e-12)
            assert np.allclose(alone[1], features[i], rtol=1e-12)


def test_a_concrete_program_is_predicted_like_its_row() -> None:
    for space in spaces(product(300, 200, 100, "float16")):
        rows = space.draw(8, np.random.default_rng(2))
        seconds, _ = space.analyse(rows)
        for row, expected in zip(rows, seconds, strict=True):
            concrete = GpuModel(space.program(row), A100)
            assert concrete.evaluate({}, 1)[0][0] == pytest.approx(expected, rel=0.02)
            assert sum(part.seconds for part in report(space, row)) == pytest.approx(expected)


def test_a_thousand_rows_find_a_product_near_the_peak_of_the_tensor_cores() -> None:
    best = None
    for space in spaces(product(4096, 4096, 4096, "float16")):
        rows = space.draw(4000, np.random.default_rng(0))
        seconds, _ = space.analyse(rows)
        found = report(space, rows[seconds.argmin()])
        if best is None or found[0].seconds < best.seconds:
            best = found[0]
    assert best is not None and 0.7 < best.tensor_share < 0.95 and best.bound == "tensor"


def test_the_models_of_one_target_have_the_same_features_and_those_of_another_others() -> None:
    assert {space.model.features for space in spaces(softmax())} == {FEATURES}
