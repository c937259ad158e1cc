"""What the candidates of a task must compute: inputs, float64 results and tolerances, drawn from a seed."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from pipeline.ir.graph import Broadcast, Contract, Elementwise, Graph, Input, Reshape, Slice, Transpose
from pipeline.ir.graph_types import FLOATS
from pipeline.measurement.protocol import Case, Reference
from pipeline.space.lower import argument_name, output_name
from pipeline.space.task import Task
from pipeline.verification.hostile import hostile_feeds, random_feeds
from pipeline.verification.tolerance import evaluate_with_bound

# Larger tasks are checked on one set of random feeds alone: the reference would cost more than the search, or, with its
# feeds, values and bounds for every kind of trouble at once, more memory than a worker may take.
HOSTILE_FLOPS = 2e8
HOSTILE_BYTES = 2e7


def task_reference(
    task: Task, rng: np.random.Generator, *, rounds: int = 1, hostile: bool = True, factor: float = 1.0
) -> Reference:
    """Random feeds, and hostile ones where they are cheap. Constants are the same in every case.

    A constant that is multiplied and summed over is as small as weights of that many summands are: what follows gets
    numbers as it has them in a model. Behind 2048 standard normal summands a sigmoid is 0 or 1 and little else, and
    its kernel was timed on results that underflow, which processors take hundreds of cycles for.

    rounds  sets of random feeds; a large task gets one
    factor  multiplies every tolerance
    """
    first = random_feeds(task.graph, rng)
    summands = _summands(task.graph)
    constants = {name: _scaled(first[name], summands.get(name, 1)) for name in task.constants}
    first = {**first, **constants}
    small = task.flops < HOSTILE_FLOPS and task.traffic < HOSTILE_BYTES
    feeds = [first, *(random_feeds(task.graph, rng) for _ in range((rounds if small else 1) - 1))]
    if hostile and small:
        feeds += [made for _, made in hostile_feeds(task.graph, rng)]
    cases = tuple(_case(task.graph, {**given, **constants}, frozenset(constants), factor) for given in feeds)
    return Reference(
        task.key,
        {argument_name(name): data for name, data in constants.items()},
        cases,
        frozenset(argument_name(name) for name in task.fed),
    )


def _summands(graph: Graph) -> dict[str, int]:
    """For each floating input the most that one result sums up, of the products that it is a factor of, be it through
    views; 1 where it is none."""
    most: dict[int, int] = {}
    for number in range(len(graph.nodes) - 1, -1, -1):  # readers come before what they read
        node = graph.nodes[number]
        match node.op:
            case Contract(reduced=reduced):
                own = math.prod(reduced)
            case Reshape() | Transpose() | Slice() | Broadcast() | Elementwise("cast"):
                own = most.get(number, 1)
            case _:
                own = 1
        for operand in node.inputs:
            most[operand] = max(own, most.get(operand, 1))
    return {
        node.op.name: most.get(number, 1)
        for number, node in enumerate(graph.nodes) if isinstance(node.op, Input) and node.type.dtype in FLOATS
    }  # fmt: skip


def _scaled(data: np.ndarray, summands: int) -> np.ndarray:
    return data if summands <= 1 else (data / math.sqrt(summands)).astype(data.dtype)


def _case(graph: Graph, feeds: Mapping[str, np.ndarray], constants: frozenset[str], factor: float) -> Case:
    references = evaluate_with_bound(graph, feeds)
    inputs = {
        argument_name(node.op.name): feeds[node.op.name]
        for node in graph.nodes if isinstance(node.op, Input) and node.op.name not in constants
    }  # fmt: skip
    names = {name: output_name(position) for position, (name, _) in enumerate(graph.outputs)}
    return Case(
        inputs,
        {names[name]: reference.value for name, reference in references.items()},
        {names[name]: reference.bound * factor for name, reference in references.items()},
    )
