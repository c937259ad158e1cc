"""Rewrites of the whole graph that make one kernel's work of several products, each kept where the roofline gains."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pipeline.ir.graph import Graph
from pipeline.ir.graph_rule import same_graph
from pipeline.ir.target import Target
from pipeline.space.partition import Partition, partition
from pipeline.superopt.subprograms import roofline_of

Change = Callable[[Graph], Graph]


@dataclass(frozen=True, slots=True)
class Rewrite:
    """A rule that changes a graph, and what the roofline says of that.

    kernels, seconds                      of the graph without it
    rewritten_kernels, rewritten_seconds  and with it; it is kept where these are fewer seconds
    """

    name: str
    kernels: int
    rewritten_kernels: int
    seconds: float
    rewritten_seconds: float

    @property
    def used(self) -> bool:
        return self.rewritten_seconds < self.seconds


def rewritten_where_faster(
    graph: Graph, rules: Sequence[tuple[str, Change]], ordinary: Change, target: Target
) -> tuple[Graph, tuple[Rewrite, ...]]:
    """The graph after those of the rules, each under its name, that save seconds, and all that would change it.

    ordinary  the rules that every graph has gone through: what one of these made of it goes through them again
    """
    tried: list[Rewrite] = []
    for name, rule in rules:
        changed = rule(graph)
        if same_graph(changed, graph):
            continue
        changed = ordinary(changed)
        before, after = partition(graph), partition(changed)
        tried.append(Rewrite(
            name, len(before.instances), len(after.instances), at_the_roofline(graph, before, target),
            at_the_roofline(changed, after, target),
        ))  # fmt: skip
        if tried[-1].used:
            graph = changed
    return graph, tuple(tried)


def at_the_roofline(graph: Graph, parts: Partition, target: Target) -> float:
    """Seconds of the kernels one after the other, with what each waits for when it begins."""
    roofline = roofline_of(graph, target)
    seconds = [roofline.seconds(task) for task in parts.tasks]
    return math.fsum(seconds[instance.task] for instance in parts.instances)
