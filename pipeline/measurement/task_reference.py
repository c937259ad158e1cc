"""What the candidates of a task must compute: inputs, float64 results and tolerances, drawn from a seed."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from pipeline.ir.graph import Graph, Input
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

    rounds  sets of random feeds; a large task gets one
    factor  multiplies every tolerance
    """
    first = random_feeds(task.graph, rng)
    constants = {name: first[name] for name in task.constants}
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
