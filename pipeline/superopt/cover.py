"""Which alternatives a graph is computed with: the instances that together take least time, each result made once.

A fused instance stands in for the ordinary one of the same result. What nobody reads any more then falls away; what
others still read stays. So the gain of one alternative depends on the others, and overlap is decided by the total.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pipeline.ir.graph import Graph
from pipeline.space.partition import Instance, Partition, base
from pipeline.space.task import Task

EXACT = 256  # combinations of alternatives that touch each other: up to here every one is tried
REMEMBERED = 4096  # answers of one component
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
    return Choices.of(graph, parts, fused).cover(seconds)


@dataclass(frozen=True, slots=True)
class Choices:
    """All that can be chosen for one graph: components of alternatives that touch each other, each for itself.

    settled   instances that no alternative could replace
    """

    graph: Graph
    parts: Partition
    settled: tuple[Instance, ...]
    components: tuple[Component, ...]

    @staticmethod
    def of(graph: Graph, parts: Partition, fused: Sequence[Instance]) -> Choices:
        groups = _components(fused)
        touched = [{member for one in group for member in one.members} for group in groups]
        region = [
            tuple(one for one in parts.instances if not own.isdisjoint(one.members)) for own in touched
        ]  # fmt: skip
        inside = {one.output for own in region for one in own}
        settled = tuple(one for one in parts.instances if one.output not in inside)
        components = []
        for group, own in zip(groups, region, strict=True):
            outputs = {one.output for one in own}
            readers = [one for one in parts.instances if one.output not in outputs]
            read = {base(value, parts.aliases) for one in readers for value in one.inputs}
            read |= {base(value, parts.aliases) for _, value in graph.outputs}
            needs = {
                one: tuple(sorted({base(value, parts.aliases) for value in one.inputs} & outputs))
                for one in (*own, *group)
            }  # fmt: skip
            components.append(Component(own, tuple(group), tuple(sorted(read & outputs)), needs))
        return Choices(graph, parts, settled, tuple(components))

    def total(self, seconds: Seconds) -> float:
        """Of the cheapest choice."""
        alone = [seconds(one.task) for one in self.settled]
        return math.fsum([*alone, *(component.cheapest(seconds)[1] for component in self.components)])

    def cover(self, seconds: Seconds) -> Cover:
        """The cheapest choice."""
        chosen = frozenset(one for component in self.components for one in component.cheapest(seconds)[0])
        instances = self._needed(chosen) if chosen else self.parts.instances
        return Cover(instances, math.fsum(seconds(instance.task) for instance in instances))

    def _needed(self, chosen: frozenset[Instance]) -> tuple[Instance, ...]:
        """Those that the outputs need, in the order of their results: operands have smaller numbers."""
        maker = {one.output: one for one in (*self.parts.instances, *sorted(chosen, key=lambda one: one.output))}
        needed: set[int] = set()
        stack = [value for _, value in self.graph.outputs]
        while stack:
            value = base(stack.pop(), self.parts.aliases)
            if value in maker and value not in needed:
                needed.add(value)
                stack.extend(maker[value].inputs)
        return tuple(maker[value] for value in sorted(needed))


@dataclass(frozen=True, slots=True)
class Component:
    """Alternatives that touch each other, and the instances that they could replace.

    wanted  results of these instances that somebody else reads, whatever is chosen elsewhere
    needs   for each of all of them, the results within the component that it reads
    """

    ordinary: tuple[Instance, ...]
    fused: tuple[Instance, ...]
    wanted: tuple[int, ...]
    needs: Mapping[Instance, tuple[int, ...]]
    _known: dict[tuple[float, ...], tuple[frozenset[Instance], float]] = field(default_factory=dict)

    def cheapest(self, seconds: Seconds) -> tuple[frozenset[Instance], float]:
        """The best choice of alternatives, and its seconds with what stays of the ordinary ones."""
        times = {one.task: seconds(one.task) for one in (*self.ordinary, *self.fused)}
        key = tuple(times.values())
        if key not in self._known:
            if len(self._known) >= REMEMBERED:
                self._known.clear()
            self._known[key] = self._search(times)
        return self._known[key]

    def _search(self, times: Mapping[int, float]) -> tuple[frozenset[Instance], float]:
        best: frozenset[Instance] = frozenset()
        least = self._total(best, times)
        worth = [one for one in self.fused if times[one.task] < math.inf]
        counts = Counter(one.output for one in worth)
        if math.prod(1 + count for count in counts.values()) <= EXACT:
            for some in _subsets(worth):
                total = self._total(some, times)
                if total < least:
                    best, least = some, total
            return best, least
        by_task = itertools.groupby(sorted(worth, key=lambda one: one.task), lambda one: one.task)
        moves = [*(frozenset(group) for _, group in by_task), *(frozenset({one}) for one in worth)]
        improved = True
        while improved:
            improved = False
            for move in moves:
                outputs = {one.output for one in move}
                without = frozenset(one for one in best if one.output not in outputs)
                for trial in (without | move, without):
                    total = self._total(trial, times)
                    if total < least:
                        best, least, improved = trial, total, True
        return best, least

    def _total(self, chosen: frozenset[Instance], times: Mapping[int, float]) -> float:
        maker = {one.output: one for one in (*self.ordinary, *chosen)}
        needed: set[int] = set()
        stack = list(self.wanted)
        total = 0.0
        while stack:
            value = stack.pop()
            if value not in needed:
                needed.add(value)
                total += times[maker[value].task]
                stack.extend(self.needs[maker[value]])
        return total


def _subsets(component: Sequence[Instance]) -> Iterable[frozenset[Instance]]:
    """Every choice of at most one alternative for each result."""
    by_output: dict[int, list[Instance | None]] = {}
    for instance in component:
        by_output.setdefault(instance.output, [None]).append(instance)
    for some in itertools.product(*by_output.values()):
        yield frozenset(one for one in some if one is not None)


def _components(fused: Sequence[Instance]) -> list[list[Instance]]:
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
