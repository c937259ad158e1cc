"""Programs over a table of values, best first: one way to make each value that is needed.

A partial program is a set of values that are made and a set that are wanted. The wanted value with the largest number
is made next, in each of its ways, so that a program arises in one order only. Two partial programs that made and want
the same values differ in nothing that follows: the dearer one is dropped. Taken up first is the one whose cheapest
known completion is cheapest; dropped is one that cannot be completed at less than a multiple of the best.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pipeline.superopt.enumeration.labelled import Handed, Maker
from pipeline.superopt.enumeration.statistics import Statistics

HANDOVER = 3e4  # issue slots of a second kernel
ALIKE = 0.00002  # costs that differ by less: the one of which more is made is taken up first
PATIENCE = 3000  # partial programs since the last whole one


@dataclass(frozen=True, slots=True)
class Derivation:
    """A whole program: the value that is the result, the way to make each value, and the sum of the costs."""

    goal: int
    ways: Mapping[int, Maker]
    cost: float

    def order(self) -> tuple[int, ...] | None:
        """The values, each after its operands; None where the ways go round in a circle."""
        done: dict[int, bool] = {}
        found: list[int] = []

        def visit(value: int) -> bool:
            if value in done:
                return done[value]
            done[value] = False
            for operand in self.ways[value].inputs:
                if not visit(operand):
                    return False
            done[value] = True
            found.append(value)
            return True

        return tuple(found) if visit(self.goal) else None


def least_costs(makers: Sequence[Sequence[Maker]]) -> list[float]:
    """A lower bound of the cost of each value with all below it: its own, plus the dearest of its operands."""
    bound = [math.inf] * len(makers)
    changed = True
    while changed:
        changed = False
        for value, ways in enumerate(makers):
            best = min((way.cost + max((bound[i] for i in way.inputs), default=0.0) for way in ways), default=math.inf)
            if best < bound[value]:
                bound[value], changed = best, True
    return bound


def completions(makers: Sequence[Sequence[Maker]]) -> tuple[list[int], list[float]]:
    """A cheap program for each value: what it consists of, as bits, and what the value itself costs in it; 0: none."""
    own = [math.inf] * len(makers)
    found = [0] * len(makers)
    costs = [math.inf] * len(makers)
    changed = True
    while changed:
        changed = False
        for value, ways in enumerate(makers):
            for way in ways:
                whole = 1 << value
                for i in way.inputs:
                    whole |= found[i]
                if not all(found[i] and not found[i] >> value & 1 for i in way.inputs):
                    continue
                cost = way.cost + _total(own, whole & ~(1 << value))
                if cost < costs[value] - 1e-9:
                    found[value], costs[value], own[value], changed = whole, cost, way.cost, True
    return found, own


def _total(own: Sequence[float], members: int) -> float:
    total = 0.0
    while members:
        low = members & -members
        total += own[low.bit_length() - 1]
        members ^= low
    return total


def needed(makers: Sequence[Sequence[Maker]], goals: Sequence[int]) -> set[int]:
    """The values that occur in some program for a goal."""
    found: set[int] = set()
    stack = list(goals)
    while stack:
        value = stack.pop()
        if value not in found:
            found.add(value)
            stack.extend(i for way in makers[value] for i in way.inputs)
    return found


def derivations(makers: Sequence[Sequence[Maker]], goals: Sequence[int], statistics: Statistics, *,
                factor: float = 3.0, deadline: float = math.inf) -> Iterator[Derivation]:  # fmt: skip
    """The programs for any of the goals, about the cheapest first, as far as `factor` times the cost of the best."""
    below = least_costs(makers)
    own = [min((way.cost for way in ways), default=math.inf) for ways in makers]
    ahead, likely = completions(makers)
    best = math.inf
    queue: list[tuple[tuple[int, int, float, int], float, float, int, int, tuple[int, ...], dict[int, Maker]]] = []
    count = 0
    for goal in goals:
        if ahead[goal]:
            heapq.heappush(queue, ((0, 0, 0.0, count), below[goal], 0.0, goal, 0, (goal,), {}))
            count += 1
    seen: set[tuple[int, int, tuple[int, ...]]] = set()
    last = statistics.prefixes
    while queue:
        _, bound, cost, goal, made, wanted, ways = heapq.heappop(queue)
        if time.monotonic() > deadline or statistics.prefixes - last > PATIENCE:
            return
        if bound > factor * best:
            statistics.pruned_roofline += 1
            continue
        if (goal, made, wanted) in seen:
            statistics.pruned_equal += 1
            continue
        seen.add((goal, made, wanted))
        statistics.prefixes += 1
        if not wanted:
            best, last = min(best, cost), statistics.prefixes
            yield Derivation(goal, ways, cost)
            continue
        value, rest = wanted[-1], wanted[:-1]
        now = made | 1 << value
        handed_before = any(isinstance(way.op, Handed) for way in ways.values())
        for way in makers[value]:
            if not all(ahead[i] for i in way.inputs) or any(_leads_to(i, value, ways) for i in way.inputs):
                continue
            new = cost + way.cost + (HANDOVER if isinstance(way.op, Handed) and not handed_before else 0.0)
            then = tuple(sorted({*rest, *(i for i in way.inputs if not now >> i & 1)}))
            least = max(sum(own[i] for i in then), max((below[i] for i in then), default=0.0))
            known = 0
            for i in then:
                known |= ahead[i]
            count += 1
            whole = new + _total(likely, known & ~now)
            rank = (round(math.log1p(whole) / ALIKE), -len(ways), whole, count)
            heapq.heappush(queue, (rank, new + least, new, goal, now, then, {**ways, value: way}))


def _leads_to(start: int, value: int, ways: Mapping[int, Maker]) -> bool:
    """Whether making `start` takes `value`, as far as is decided."""
    stack, seen = [start], set()
    while stack:
        i = stack.pop()
        if i == value:
            return True
        if i not in seen and i in ways:
            seen.add(i)
            stack.extend(ways[i].inputs)
    return False
