"""Tasks of small graphs with the sketches that conf/rules/cpu.yaml makes of them, on one target."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import yaml

from pipeline.ir.graph import Graph
from pipeline.ir.graph_builder import GraphBuilder
from pipeline.ir.target import Cache, Target
from pipeline.registry import Component, Registry
from pipeline.schedule.rule import Rule
from pipeline.schedule.sketch import Sketch
from pipeline.search.candidates import History, SketchSpace
from pipeline.space.generate import generate
from pipeline.space.lower import lower
from pipeline.space.partition import Partition, partition
from pipeline.space.task import Task

CONF = Path(__file__).resolve().parents[2] / "conf"

TARGET = Target(
    kind="cpu", name="a machine of these tests", triple="x86_64-unknown-linux-gnu", cpu="haswell",
    features=("+avx2", "+fma"), cores=4, vector_bits=256, vector_registers=16, fma_per_cycle=2.0, fma_latency=4,
    clock_ghz=3.0, bandwidth_gbs=20.0,
    caches=(Cache(1, 32 << 10, 8, 1), Cache(2, 256 << 10, 8, 1), Cache(3, 8 << 20, 16, 4)),
)  # fmt: skip


@cache
def rules() -> tuple[Rule, ...]:
    """The rules of a CPU, as the configuration lists them."""
    listed = yaml.safe_load((CONF / "rules" / "cpu.yaml").read_text(encoding="utf-8"))["schedule"]
    return tuple(
        Registry().build(Rule, Component.model_validate(node), f"rules.schedule[{i}]") for i, node in enumerate(listed)
    )


@cache
def gmm(n: int = 37, m: int = 29, k: int = 19) -> Graph:
    """One matrix product."""
    b = GraphBuilder()
    return b.finish([("c", b.matmul(b.input("a", (n, k), "float32"), b.input("b", (k, m), "float32")))])


@cache
def weights(rows: int = 4, n: int = 256, k: int = 512) -> Graph:
    """A few rows times a matrix that is known, and larger than the cache of a core."""
    b = GraphBuilder()
    matrix = b.constant(np.ones((k, n), np.float32))
    return b.finish([("c", b.matmul(b.input("a", (rows, k), "float32"), matrix))])


@cache
def softmax(rows: int = 5, columns: int = 17) -> Graph:
    """One softmax, which has fewer sketches and hardly any parameters."""
    b = GraphBuilder()
    return b.finish([("y", b.softmax(b.input("x", (rows, columns), "float32"), 1))])


@cache
def two_tasks() -> Graph:
    """A matrix product whose rows are normalised: two tasks."""
    b = GraphBuilder()
    product = b.matmul(b.input("a", (24, 40), "float32"), b.input("b", (40, 33), "float32"))
    return b.finish([("y", b.softmax(product, 1))])


@cache
def without_parameters() -> Graph:
    """Three additions: a task without any parameter."""
    b = GraphBuilder()
    x = b.input("x", (3,), "float32")
    return b.finish([("y", b.elementwise("add", x, x))])


def sketches(task: Task, target: Target = TARGET, chosen: Sequence[Rule] | None = None) -> tuple[Sketch, ...]:
    """The sketches of a task."""
    return generate(lower(task.graph, task.name, task.constants), rules() if chosen is None else chosen, target)


@cache
def parts(graph: Graph) -> Partition:
    """The tasks of a graph."""
    return partition(graph)


@cache
def spaces(graph: Graph) -> tuple[SketchSpace, ...]:
    """The sketches of the first task of a graph, as a search sees them."""
    return tuple(SketchSpace(i, sketch, TARGET) for i, sketch in enumerate(sketches(parts(graph).tasks[0])))


def history(graph: Graph) -> History:
    """The first task of a graph, before it is tuned."""
    return History(spaces(graph))
