"""A partitioned graph with its kernels becomes a plan that links, and computes what the graph does."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from pipeline.codegen.assemble import assemble
from pipeline.codegen.llvm.build import build_kernel
from pipeline.codegen.llvm.link import link
from pipeline.codegen.module import ModulePlan, check_plan
from pipeline.ir.graph import Graph, Input
from pipeline.ir.graph_builder import GraphBuilder
from pipeline.schedule.space import ParameterSpace
from pipeline.space.generate import generate
from pipeline.space.lower import lower
from pipeline.space.partition import partition
from pipeline.verification.hostile import random_feeds
from pipeline.verification.tolerance import evaluate_with_bound
from pipeline.verification.verdict import compare
from tests.codegen.kernel_runs import cpu_rules, native
from tests.codegen.test_module import run
from tests.ir import random_graphs


def planned(graph: Graph, seed: int = 0) -> ModulePlan:
    """The plan of a graph, each task at a random row of its first sketch."""
    parts = partition(graph)
    rng = np.random.default_rng(seed)
    kernels = []
    for task in parts.tasks:
        sketch = generate(lower(task.graph, task.name, task.constants), cpu_rules(), native())[0]
        space = ParameterSpace.of(sketch)
        kernels.append(build_kernel(sketch.candidate(space.values(space.draw(1, rng)[0])), native()))
    return assemble(graph, parts, kernels, native(), {"workload": "test"})


def assert_computes(graph: Graph) -> None:
    plan = planned(graph)
    check_plan(plan)
    feeds = random_feeds(graph, np.random.default_rng(1))
    given_ = [feeds[node.op.name] for node in graph.nodes if isinstance(node.op, Input)]
    outputs = run(link(plan), given_, native().cores)
    for got, (name, want) in zip(outputs, evaluate_with_bound(graph, feeds).items(), strict=True):
        verdict = compare(got, want)
        assert verdict.ok, f"{name}: {verdict.reason}"


@settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(random_graphs.graphs(steps=5))
def test_random_graphs_link_to_modules_that_compute_them(graph: Graph) -> None:
    assert_computes(graph)


def test_constants_are_kept_once_and_packed_where_a_product_reads_them() -> None:
    b = GraphBuilder()
    x, w = b.input("x", (9, 16), "float32"), b.constant(np.linspace(-1, 1, 256).astype(np.float32).reshape(16, 16))
    graph = b.finish([("y", b.matmul(b.matmul(x, w), w))])
    plan = planned(graph)
    assert len(plan.constants) == 1 and len(plan.kernels) == 1 and len(plan.calls) == 2
    assert plan.kernels[0].prologue is not None and plan.kernels[0].prologue_only
    assert_computes(graph)


def test_reshapes_between_kernels_are_other_names_of_the_same_bytes() -> None:
    b = GraphBuilder()
    x, w = b.input("x", (2, 3, 8), "float32"), b.input("w", (8, 8), "float32")
    flat = b.reshape(b.matmul(x, w), (6, 8))
    graph = b.finish([("y", b.matmul(flat, w)), ("z", flat)])
    plan = planned(graph)
    assert len([buffer for buffer in plan.buffers if buffer.role == "intermediate"]) == 2
    assert plan.root("z") != plan.root("y")
    assert_computes(graph)


@pytest.mark.parametrize("name", ["value.1", "value.2", "constant.1"])
def test_names_of_the_model_that_look_like_ours_stay_apart(name: str) -> None:
    b = GraphBuilder()
    x = b.input(name, (5,), "float32")
    shifted = b.elementwise("add", x, b.constant(np.arange(5, dtype=np.float32)))
    assert_computes(b.finish([("value.3", shifted), ("value.0", b.reduce("sum", shifted, [0]))]))


def test_outputs_that_no_kernel_computes_are_copies() -> None:
    b = GraphBuilder()
    x = b.input("x", (2, 3), "float32")
    graph = b.finish([("same", x), ("flat", b.reshape(x, (6,))), ("one", b.constant(np.ones(3, np.float32)))])
    assert planned(graph).calls == ()
    assert_computes(graph)


def test_tasks_that_come_to_the_same_kernel_share_it() -> None:
    b = GraphBuilder()
    x = b.input("x", (5,), "float32")
    bounds = (b.constant(np.zeros(shape, np.float32)) for shape in ((), (1,)))
    graph = b.finish([(f"y{i}", b.elementwise("max", x, bound)) for i, bound in enumerate(bounds)])
    plan = planned(graph)
    assert len(partition(graph).tasks) == 2 and len(plan.kernels) == 1 and len(plan.calls) == 2
    assert_computes(graph)
