"""Which alternatives a graph is computed with: the instances that together take least time, each result made once.

A fused instance stands in for the ordinary one of the same result. What nobody reads any more then falls away; what
others still read stays. So the gain of one alternative depends on the others, and overlap is decided by the total.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from pipeline.ir.graph import Graph
from pipeline.space.partition import Instance, Partition, base
from pipeline.space.task import Task

EXACT = 256  # combinations of alternatives that touch each other: up to here every one is tried
Seconds = Callable[[int], float]  # of a task, by its number


@dataclass(frozen=True, slots=True)
class Cover:
    """Instances in an order in which they can run, and the seconds of them all."""

    instances: tuple[Instance, ...]
    seconds: float


def cover(graph: Graph, parts: Partition, fused: Sequence[Instance], seconds: Seconds) -> Cover:
    """The cheapest choice between the instances of a partition and fused ones, whose tasks have numbers of their own.

    Exact where few alternatives touch each other, else as good as changing one task or one use at a time makes it.
    Never worse than the partition alone. Where no alternative is chosen, the instances are the partition's.
    """
    plan = _Plan(graph, parts, seconds)
    chosen: frozenset[Instance] = frozenset()
    for component in _components(parts, fused):
        chosen = plan.better(chosen, component)
    instances = plan.instances(chosen) if chosen else parts.instances
    return Cover(instances, math.fsum(seconds(instance.task) for instance in instances))


@dataclass(frozen=True, slots=True)
class _Plan:
    graph: Graph
    parts: Partition
    seconds: Seconds

    def better(self, chosen: frozenset[Instance], component: Sequence[Instance]) -> frozenset[Instance]:
        """The best choice among alternatives that touch each other, all others as they are."""
        best, least = chosen, self.total(chosen)
        counts = Counter(one.output for one in component)
        if math.prod(1 + count for count in counts.values()) <= EXACT:
            for some in _subsets(component):
                total = self.total(chosen | some)
                if total < least:
                    best, least = chosen | some, total
            return best
        moves = [
            frozenset(group)
            for _, group in itertools.groupby(sorted(component, key=lambda i: i.task), lambda i: i.task)
        ]
        moves += [frozenset({one}) for one in component]
        improved = True
        while improved:
            improved = False
            for move in moves:
                outputs = {one.output for one in move}
                without = frozenset(one for one in best if one.output not in outputs)
                for trial in (without | move, without):
                    total = self.total(trial)
                    if total < least:
                        best, least, improved = trial, total, True
        return best

    def total(self, chosen: frozenset[Instance]) -> float:
        return math.fsum(self.seconds(instance.task) for instance in self.instances(chosen))

    def instances(self, chosen: Iterable[Instance]) -> tuple[Instance, ...]:
        """Those that the outputs need, in the order of their results: operands have smaller numbers."""
        maker: dict[int, Instance] = {instance.output: instance for instance in self.parts.instances}
        maker |= {instance.output: instance for instance in chosen}
        needed: set[int] = set()
        stack = [value for _, value in self.graph.outputs]
        while stack:
            value = base(stack.pop(), self.parts.aliases)
            if value in maker and value not in needed:
                needed.add(value)
                stack.extend(maker[value].inputs)
        return tuple(maker[value] for value in sorted(needed))


def _subsets(component: Sequence[Instance]) -> Iterable[frozenset[Instance]]:
    """Every choice of at most one alternative for each result."""
    by_output: dict[int, list[Instance | None]] = {}
    for instance in component:
        by_output.setdefault(instance.output, [None]).append(instance)
    for some in itertools.product(*by_output.values()):
        yield frozenset(one for one in some if one is not None)


def _components(parts: Partition, fused: Sequence[Instance]) -> list[list[Instance]]:
    """Alternatives that do some of the same operations, directly or through others: their gains depend on each other.

    A task falls away only where each of its readers does its work too, so all those are together.
    """
    group: dict[int, int] = {}  # operation -> component
    members: dict[int, list[Instance]] = {}
    for number, instance in enumerate(fused):
        touched = {group[member] for member in instance.members if member in group}
        joined = [one for which in touched for one in members.pop(which)] + [instance]
        members[number] = joined
        for one in joined:
            group.update(dict.fromkeys(one.members, number))
    return list(members.values())


def narrowed(tasks: Sequence[Task], chosen: Cover, aliases: dict[int, int]) -> tuple[Partition, tuple[int, ...]]:
    """The partition of a cover with the tasks that it uses, and the number that each of them had."""
    used = tuple(sorted({instance.task for instance in chosen.instances}))
    place = {old: new for new, old in enumerate(used)}
    instances = tuple(replace(instance, task=place[instance.task]) for instance in chosen.instances)
    return Partition(tuple(tasks[old] for old in used), instances, aliases), used
