"""Tests of all rules of conf/rules/cuda.yaml together: whatever the task, its sketches are complete, right and within
the limits of the device."""

from __future__ import annotations

import random

import numpy as np
import pytest
import yaml

from pipeline.frontend.workloads.workload import Workload
from pipeline.ir.graph import Graph
from pipeline.ir.graph_builder import GraphBuilder
from pipeline.registry import Component, Registry
from pipeline.schedule.space import ParameterSpace
from pipeline.space.generate import generate
from pipeline.space.lower import lower
from tests.rules.schedule import sketches as small
from tests.rules.schedule.gpu_cases import a100, everything_is_bound, fits, gpu_rules, right
from tests.rules.schedule.test_operators import OTHERS, WINDOWS, drawn
from tests.search.spaces import CONF, parts

SUITE = ("c1d", "c2d", "c3d", "gmm", "grp", "dil", "dep", "t2d", "cap", "nrm", "sfm", "cbr", "tbg")
MORE = ("gated_mlp", "rmsnorm_linear", "lora", "qknorm", "gqa_decode")
TENSOR = ("GpuTensorTiling", "GpuTensorRows")  # tested on their own


def sized(name: str) -> Graph:
    """An operator of the configuration at its first size."""
    node = yaml.safe_load((CONF / "workload" / f"{name}.yaml").read_text(encoding="utf-8"))
    return Registry().build(Workload, Component.model_validate(node), "workload").build(0)


# The smallest capsules take the interpreter minutes; their structure is that of the other windows.
@pytest.mark.parametrize("name", [name for name in (*WINDOWS, *OTHERS) if name != "cap"])
def test_every_sketch_of_a_small_operator_computes_it(name: str) -> None:
    for task in parts(drawn(name, random.Random(f"{name} 0"))).tasks:
        right(lower(task.graph, task.name, task.constants), gpu_rules(*TENSOR), samples=1)


@pytest.mark.parametrize("name", [*SUITE, *MORE])
def test_no_candidate_of_a_large_operator_exceeds_a_limit(name: str) -> None:
    for task in parts(sized(name)).tasks:
        for sketch in generate(lower(task.graph, task.name, task.constants), gpu_rules(*TENSOR), a100()):
            everything_is_bound(sketch.program)
            space = ParameterSpace.of(sketch)
            for row in space.unique(space.draw(20 if space.columns else 1, np.random.default_rng(0))):
                fits(sketch.candidate(space.values(row)), a100())


MAKES = {
    "gather": lambda g: g.gather(g.input("x", (5, 40), "float32"), g.input("i", (7,), "int32"), 0),
    "scan": lambda g: g.scan("sum", g.input("x", (4, 9), "float32"), 1, True, True),
    "argmax": lambda g: g.reduce("argmax", g.input("x", (4, 20), "float32"), [1]),
    "concat": lambda g: g.concat([g.input("x", (3, 5), "float32"), g.input("w", (4, 5), "float32")], 0),
    "selection": lambda g: g.topk(g.input("x", (6, 9), "float32"), 3, 1)[0],
    "border": lambda g: g.pad(g.elementwise("exp", g.input("x", (3, 4), "float32")), (1, 0), (2, 1), (0, 0), 0.5),
    "reshape": lambda g: g.reshape(g.transpose(g.input("x", (6, 10), "float32"), (1, 0)), (4, 15)),
    "number": lambda g: g.reduce("sum", g.input("x", (3, 5), "float32"), [0, 1]),
    "nothing": lambda g: g.reduce("sum", g.input("x", (2, 0), "float32"), [1]),
    "cast": lambda g: g.cast(g.input("x", (3, 33), "int8"), "float16"),
}


@pytest.mark.parametrize("name", MAKES)
def test_rare_operators_are_bound_and_right(name: str) -> None:
    g = GraphBuilder()
    for task in parts(g.finish([("y", MAKES[name](g))])).tasks:
        right(lower(task.graph, task.name, task.constants), gpu_rules(), samples=2)


def test_rules_of_a_gpu_say_nothing_about_a_cpu() -> None:
    for rule in gpu_rules():
        if type(rule).__name__ != "AutoInline":
            assert small.says_nothing(rule, small.lowered(small.product(4, 64, 64)))
