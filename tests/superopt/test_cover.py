"""Which alternatives are used: the cheapest total, whatever overlaps, and a partition that is whole."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.ir.graph import Graph
from pipeline.ir.graph_builder import GraphBuilder
from pipeline.space.partition import Instance, Partition, partition
from pipeline.space.task import Task
from pipeline.superopt.cover import Cover, cover, narrowed
from pipeline.superopt.subprograms import subprograms
from tests.ir.random_graphs import graphs
from tests.space.partition_runs import assert_whole
from tests.superopt.model_graphs import TARGET, bert

ATTENTION = "contract_4x12x12x8_mul_add_max_reshape_sub_5more"


def alternatives(graph: Graph) -> tuple[Partition, list[Task], list[Instance]]:
    """The ordinary partition, all tasks with those of subprograms after them, and the fused instances."""
    parts = partition(graph)
    tasks, fused = list(parts.tasks), []
    for one in subprograms(graph, parts, replace(TARGET, bandwidth_gbs=1e-3)):
        fused += [replace(use, task=len(tasks)) for use in one.uses]
        tasks.append(one.task)
    return parts, tasks, fused


def normalised_three_times() -> Graph:
    """One normalisation that three products read."""
    b = GraphBuilder()
    x = b.input("x", (16, 64), "float32")
    normal = b.normalize(x, [-1], 1e-5)
    ends = [b.matmul(normal, b.constant(np.full((64, 32), float(i + 1), np.float32))) for i in range(3)]
    return b.finish([(f"y{i}", one) for i, one in enumerate(ends)])


def with_times(graph: Graph, times: dict[str, float], otherwise: float) -> Cover:
    """The cover where a task takes what is said for the beginning of its name."""
    parts, tasks, fused = alternatives(graph)

    def seconds(number: int) -> float:
        return next((t for name, t in times.items() if tasks[number].name.startswith(name)), otherwise)

    made = cover(graph, parts, fused, seconds)
    assert_whole(graph, narrowed(tasks, made, parts.aliases)[0])
    return made


def test_a_shared_task_is_done_again_in_each_reader_only_where_that_is_cheaper_in_all() -> None:
    graph = normalised_three_times()
    # alone: the normalisation 5, each product 3; with the normalisation inside 4 each: 12 instead of 14
    joined = with_times(graph, {"contract_16x32x64": 3.0, "sum_16x64": 5.0}, 4.0)
    assert len(joined.instances) == 3 and joined.seconds == 12.0
    # 5 each inside: 15 against 14
    apart = with_times(graph, {"contract_16x32x64": 3.0, "sum_16x64": 5.0}, 5.0)
    assert len(apart.instances) == 4 and apart.seconds == 14.0


def test_without_alternatives_the_instances_are_those_of_the_partition() -> None:
    graph = bert()
    parts = partition(graph)
    made = cover(graph, parts, (), lambda _: 1.0)
    assert made.instances == parts.instances
    again, used = narrowed(parts.tasks, made, parts.aliases)
    assert again == parts and used == tuple(range(len(parts.tasks)))


def test_an_alternative_that_was_not_measured_is_not_used() -> None:
    graph = bert()
    parts, tasks, fused = alternatives(graph)
    made = cover(graph, parts, fused, lambda task: 1.0 if task < len(parts.tasks) else float("inf"))
    assert made.instances == parts.instances
    assert fused and len(tasks) > len(parts.tasks)


def test_attention_takes_the_place_of_its_tasks_in_each_layer_and_the_model_is_whole() -> None:
    graph = bert()
    parts, tasks, fused = alternatives(graph)
    attention = {number for number, task in enumerate(tasks) if task.name == ATTENTION}
    made = cover(graph, parts, fused, lambda n: 0.5 if n in attention else 1.0 if n < len(parts.tasks) else 9.0)
    assert made.seconds == len(parts.instances) - 2 * 2.5, "three tasks of each of two layers"
    chosen, used = narrowed(tasks, made, parts.aliases)
    assert all(tasks[old].key == task.key for old, task in zip(used, chosen.tasks, strict=True))
    assert_whole(graph, chosen)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(graphs(steps=8), st.integers(0, 1000))
def test_any_choice_of_alternatives_for_a_random_graph_is_whole_and_none_is_cheaper(graph: Graph, seed: int) -> None:
    parts, tasks, fused = alternatives(graph)
    times = np.random.default_rng(seed).uniform(0.1, 1.0, len(tasks))
    made = cover(graph, parts, fused, lambda task: float(times[task]))
    assert_whole(graph, narrowed(tasks, made, parts.aliases)[0])
    if len(fused) <= 6:
        for some in itertools.chain.from_iterable(itertools.combinations(fused, n) for n in range(len(fused) + 1)):
            # these for nothing: what is left of the others is the price of this combination
            forced = cover(graph, parts, some, lambda task: float(times[task]) if task < len(parts.tasks) else 0.0)
            assert made.seconds <= sum(times[one.task] for one in forced.instances) + 1e-12
