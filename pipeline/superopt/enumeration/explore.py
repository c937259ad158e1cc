"""The programs of one assignment of roles, best first: its factors, typical extents, table of values, and µGraphs."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from pipeline.ir.target import Target
from pipeline.superopt.enumeration.assemble import assemble
from pipeline.superopt.enumeration.cost import BARRIER, L3_BYTES_PER_CYCLE, SCRATCH_SHARE, Estimate, estimate
from pipeline.superopt.enumeration.derive import derivations, needed
from pipeline.superopt.enumeration.enumerate import Limits, Table, Unlucky, Vocabulary
from pipeline.superopt.enumeration.fingerprint import Point
from pipeline.superopt.enumeration.labelled import Frame
from pipeline.superopt.enumeration.nearness import Oracle
from pipeline.superopt.enumeration.nominal import Nominal
from pipeline.superopt.enumeration.roles import Roles, factors, summed_labels
from pipeline.superopt.enumeration.statistics import Statistics
from pipeline.superopt.goal.term import Factor
from pipeline.superopt.mugraph.canonical import key
from pipeline.superopt.mugraph.graph import MuGraph, block_graphs
from pipeline.superopt.mugraph.text import to_text
from pipeline.superopt.spec import Product, Spec
from pipeline.verification.field import DrawAgain

REPEATS = 5  # random points, where a division by zero happens to occur at one
TILE = 64  # elements of a tile along a looped axis, typically
ITEM = 4


Goals = Callable[[Spec, Mapping[int, tuple[str, ...]]], Oracle]  # of axes with these parts, by label


@dataclass(frozen=True, slots=True)
class Candidate:
    """A program that was found: its µGraph, what all that differ in names alone share, and what it may take."""

    graph: MuGraph
    text: str
    estimate: Estimate


def shapes(spec: Spec) -> dict[str, tuple[int, ...]]:
    """Of the inputs of a µGraph of a specification, by name."""
    return {tensor.name: tuple(spec.extents[label] for label in tensor.labels) for tensor in spec.inputs}


def frames(spec: Spec, roles: Roles) -> tuple[tuple[Frame, ...], Factor | None]:
    """The kernel, and where the roles split a sum the one that combines; and the factor that is split."""
    summed = summed_labels(spec) - {*spec.labels(spec.output)}
    grid = tuple((label, "g" if label in summed else "t") for label in roles.grid)
    loops = tuple((label, "l" if label in summed else "t") for label in roles.loops)
    tiles = frozenset((label, "t") for label in range(len(spec.extents)))
    first = Frame(grid, loops, tiles)
    split = next((f for f in grid if f[1] == "g"), None)
    if split is None:
        return (first,), None
    kept = frozenset((label, "t") for label in spec.labels(spec.output))
    return (first, Frame(tuple(f for f in grid if f != split), (), kept | {split})), split


def nominal(spec: Spec, roles: Roles, target: Target) -> Nominal:
    """Some four blocks for each core, the largest axes of the result cut first, and loops over tiles of 64."""
    summed = summed_labels(spec) - {*spec.labels(spec.output)}
    wanted = 4 * target.cores
    grid: dict[Factor, int] = {}
    loops: dict[Factor, int] = {}
    tiles: dict[Factor, int] = {}
    for label in sorted(roles.grid, key=lambda label: (label in summed, -spec.extents[label])):
        pieces = max(1, min(wanted, spec.extents[label]))
        grid[(label, "g" if label in summed else "t")] = pieces
        wanted = max(1, wanted // pieces)
    for label, size in enumerate(spec.extents):
        part = "g" if label in summed else "t"
        size = -(-size // grid.get((label, part), 1))
        if label in roles.loops:
            tile = min(size, TILE)
            loops[(label, "l" if label in summed else "t")] = -(-size // tile)
            size = tile
        tiles[(label, "t")] = size
        if (label, "g") in grid:
            tiles[(label, "g")] = grid[(label, "g")]
    return Nominal(grid, loops, tiles)


def least_seconds(spec: Spec, target: Target, roles: Roles | None = None) -> float:
    """No program of the specification takes less: multiply-adds of its products, and every input and the result once.

    With roles: on as many cores as the grid has points.
    """
    cores = target.cores
    if roles is not None:
        cores = min(cores, math.prod(spec.extents[label] for label in roles.grid))
    whole = sum(math.prod(shape) for shape in shapes(spec).values())
    moved = ITEM * (whole + math.prod(spec.extents[label] for label in spec.labels(spec.output)))
    last = max((cache.size for cache in target.caches), default=0)
    memory = moved / (target.bandwidth_gbs * 1e9) if moved > last else 0.0
    split = roles is not None and any(label in summed_labels(spec) for label in roles.grid)
    return max(work_seconds(spec, target) * target.cores / cores, memory) + (1.5 if split else 1.0) * BARRIER


def likely_seconds(spec: Spec, target: Target, roles: Roles) -> float:
    """What a program with these roles may take: `least_seconds`, and the inputs read by every core that shares them."""
    grid = roles.grid
    cores = [1 << i for i in range(target.cores.bit_length())]
    best = math.inf
    for pieces in itertools.product(cores, repeat=len(grid)):
        busy = math.prod(pieces)
        if busy > target.cores or any(n > spec.extents[label] for n, label in zip(pieces, grid, strict=True)):
            continue
        moved = 0.0
        for tensor in spec.inputs:
            again = math.prod(n for n, label in zip(pieces, grid, strict=True) if label not in tensor.labels)
            moved += ITEM * math.prod(spec.extents[label] for label in tensor.labels) * again
        reading = moved / (L3_BYTES_PER_CYCLE * target.clock_ghz * 1e9 * busy)
        working = work_seconds(spec, target) * target.cores / busy
        best = min(best, max(reading, working))
    return max(best, least_seconds(spec, target, roles))


def work_seconds(spec: Spec, target: Target) -> float:
    """Of the multiply-adds of its products, on all cores."""
    work = 0.0
    for node in spec.nodes:
        if isinstance(node.op, Product):
            work += 2.0 * math.prod(spec.extents[label] for label in {*node.labels, *node.op.over})
    return work / (target.peak_gflops(ITEM) * 1e9)


def explore(spec: Spec, roles: Roles, target: Target, goals: Goals, statistics: Statistics, *, seed: int, most: int,
            deadline: float, limits: Limits) -> tuple[list[Candidate], bool]:  # fmt: skip
    """Up to `most` different programs, the cheapest by typical extents, and whether all was enumerated."""
    factored = factors(spec, roles)
    oracle = goals(spec, {label: tuple(part for _, part in own) for label, own in factored.items()})
    boxes, split = frames(spec, roles)
    sizes = nominal(spec, roles, target)
    statistics.assignments += 1
    for repeat in range(REPEATS):
        table = Table(
            spec, Point(spec, factored, seed + repeat), boxes, split, sizes, oracle, Vocabulary.of(spec),
            statistics, SCRATCH_SHARE * target.cache(2) or math.inf,
        )  # fmt: skip
        try:
            table.fill(limits)
            break
        except (Unlucky, DrawAgain):
            continue  # a division by zero, in the specification or in a value
    else:
        return [], False
    statistics.pruned_dead += len(table.values) - len(needed(table.makers, [goal for goal, _ in table.goals]))
    found = list(_programs(table, statistics, most, deadline))
    candidates = [Candidate(graph, text, estimate(graph, shapes(spec), target)) for graph, text in found]
    return candidates, table.exhausted and time.monotonic() < deadline


def _programs(table: Table, statistics: Statistics, most: int, deadline: float) -> Iterator[tuple[MuGraph, str]]:
    how = dict(table.goals)
    goals = list(how)
    seen: set[str] = set()
    for derivation in derivations(table.makers, goals, statistics, deadline=deadline):
        made = assemble(table.spec, table.frames, table.split, table.values, derivation, how[derivation.goal])
        if made is None:
            continue
        text = key(made)
        if text in seen:
            statistics.pruned_equal += 1
            continue
        seen.add(text)
        statistics.topologies += 1
        yield made, text
        if len(seen) >= most:
            return


def ranked(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Different ones, the fastest first; what the model can hardly tell apart in the order of freedom and of size.

    A kernel with a loop is better by 0.2 % (tuning decides its extent, one included), with two by half of that; tiles
    put side by side are worse by 2 %, a kernel more and a sum over the grid by 1 %, and a longer text by a little.
    """
    best: dict[str, Candidate] = {}
    for candidate in candidates:
        best.setdefault(candidate.text, candidate)

    def rank(c: Candidate) -> tuple[float, str]:
        loops = sum((0, 1, 0.5)[len(block.loops)] for block in block_graphs(c.graph))
        text = to_text(c.graph)
        handicap = 0.02 * text.count("concat") + 0.01 * (len(c.graph.nodes) + text.count(": sum")) - 0.002 * loops
        return c.estimate.seconds * (1 + handicap + 1e-5 * len(text)), c.text

    return sorted(best.values(), key=rank)
