"""A partition run task by task, against the graph that it is of."""

from __future__ import annotations

import numpy as np

from pipeline.ir.evaluate import evaluate
from pipeline.ir.graph import Constant, Graph, Input
from pipeline.ir.graph_check import check
from pipeline.space.partition import Partition
from pipeline.verification.hostile import random_feeds


def by_parts(graph: Graph, parts: Partition, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The outputs of a graph, task by task, in the order of the partition."""
    values: dict[int, np.ndarray] = {}
    for number, node in enumerate(graph.nodes):
        match node.op:
            case Input(name):
                values[number] = feeds[name]
            case Constant(key):
                values[number] = graph.constants[key]

    def read(number: int) -> np.ndarray:
        if number in values:
            return values[number]
        return read(parts.aliases[number]).reshape(graph.nodes[number].type.shape)

    for instance in parts.instances:
        task = parts.tasks[instance.task]
        names = [node.op.name for node in task.graph.nodes if isinstance(node.op, Input)]
        given = {name: read(source) for name, source in zip(names, instance.inputs, strict=True)}
        assert instance.output not in values, "stored twice"
        (values[instance.output],) = evaluate(task.graph, given, precision="native").values()
    return {name: read(number) for name, number in graph.outputs}


def assert_whole(graph: Graph, parts: Partition) -> None:
    """The parts are graphs that are legal, and together compute what the whole does."""
    for task in parts.tasks:
        check(task.graph)
        assert len(task.graph.outputs) == 1
    feeds = random_feeds(graph, np.random.default_rng(0))
    whole = evaluate(graph, feeds, precision="native")
    for name, value in by_parts(graph, parts, feeds).items():
        np.testing.assert_array_equal(value, whole[name])
