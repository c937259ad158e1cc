"""Tests of the sketches of the operator suite at small sizes, odd ones too: each computes what the operator does."""

from __future__ import annotations

import random

import pytest
import yaml

from pipeline.errors import UserError
from pipeline.frontend.workloads.workload import Workload
from pipeline.ir.graph import Graph
from pipeline.registry import Component, Registry
from pipeline.space.lower import lower
from tests.rules.schedule.sketches import keeps
from tests.search.spaces import CONF, TARGET, parts, sketches

SPACE = {"h": (3, 5, 7), "w": (4, 5), "d": (2, 3), "length": (5, 9), "ci": (2, 4, 6), "co": (4, 6, 10), "c": (3, 8),
         "k": (1, 3), "s": (1, 2), "p": (0, 1), "groups": (1, 2), "dilation": (1, 2), "capsule": (2, 3),
         "batch": (1, 2)}  # fmt: skip
WINDOWS = ("c1d", "c2d", "c3d", "cap", "cbr", "dep", "dil", "grp", "t2d")
OTHERS = {
    "gmm": {"n": (1, 5, 8), "m": (1, 7, 16), "k": (1, 3, 8)},
    "gram": {"n": (1, 5, 9), "k": (1, 4, 7)},
    "tbg": {"seq": (3, 8), "head": (1, 2), "dim": (2, 5), "batch": (1, 2)},
    "nrm": {"m": (2, 9), "n": (3, 8), "batch": (1, 2, 5)},
    "sfm": {"m": (1, 6), "n": (2, 17)},
    "layer_norm": {"m": (1, 6), "n": (2, 17)},
    "attention": {"heads": (1, 2), "queries": (3, 5), "keys": (4, 7), "dim": (2, 8), "causal": (False, True)},
}


def drawn(name: str, rng: random.Random) -> Graph:
    """The operator at sizes that are drawn until they make sense together."""
    node = yaml.safe_load((CONF / "workload" / f"{name}.yaml").read_text(encoding="utf-8"))
    choices = OTHERS.get(name, SPACE)
    while True:
        given = {key: rng.choice(choices[key]) for key in node if key in choices}
        try:
            workload = Registry().build(Workload, Component.model_validate(node | given), "workload")
            return workload.build(0)
        except UserError:
            continue


@pytest.mark.parametrize("name", [*WINDOWS, *OTHERS])
@pytest.mark.parametrize("seed", range(3))
def test_every_sketch_of_an_operator_computes_it(name: str, seed: int) -> None:
    for task in parts(drawn(name, random.Random(f"{name} {seed}"))).tasks:
        program = lower(task.graph, task.name, task.constants)
        for sketch in sketches(task, TARGET):
            keeps(program, sketch, samples=2, seed=seed)
