"""The superoptimizer: from a specification to different proven µGraphs, best first, within a budget in seconds.

Assignments of roles are explored in the order of their roofline bounds, in rounds that go further and further away
from the specification; the next round of the first ones begins before the last ones had their first. The specification
is also cut in two (and in three), and the parts explored alike; a program is then one kernel (two, where a sum is split
over the grid) for each part. What cannot be better than the best so far is not explored, in later rounds what cannot be
by a tenth. Whenever the budget ends, or an interrupt comes, what was found counts.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from pipeline.errors import CheckError
from pipeline.ir.target import Target
from pipeline.superopt.enumeration.cost import Estimate, estimate
from pipeline.superopt.enumeration.cut import Cut, cuts, join
from pipeline.superopt.enumeration.explore import (
    REPEATS,
    Candidate,
    Goals,
    least_seconds,
    likely_seconds,
    ranked,
    shapes,
)
from pipeline.superopt.enumeration.explorers import Alone, Explorers, Job, Report, Team
from pipeline.superopt.enumeration.fingerprint import Point
from pipeline.superopt.enumeration.roles import Roles, assignments, factors, positional_maps, summed_labels
from pipeline.superopt.enumeration.statistics import Statistics
from pipeline.superopt.goal.goal import Goal
from pipeline.superopt.mugraph.canonical import key
from pipeline.superopt.mugraph.graph import MuGraph, block_graphs
from pipeline.superopt.mugraph.text import to_text
from pipeline.superopt.proof.proof import Proof
from pipeline.superopt.proof.prove import TESTS, prove_spec
from pipeline.superopt.spec import Spec
from pipeline.verification.field import DrawAgain
from pipeline.verification.field_algebra import NotProvable

KEPT = 8  # programs that are proven
CUTS = 2  # of a specification into parts
# Steps away from the specification (see `Limits`), values, and programs of one assignment, in each round.
ROUNDS = ((-1, 1000, 2), (0, 1000, 2), (1, 1000, 4), (2, 1500, 8), (4, 2000, 8), (99, 4000, 16))
SHARES = (0.4, 0.3, 0.3, 0.3, 0.5, 0.8)  # of the budget, for one assignment in each round
ALIKE = 2  # programs with the same kernels, grids and loops that are kept
BETTER = (1.0, 1.0, 1.0, 1.1, 1.1, 1.1)  # by round: what is no better than by this is not looked for
AHEAD, NEXT = 4, 2  # assignments that are explored before the first ones of the parts, and of the next round
GAIN = 0.99  # of the seconds of the best, from which on a program counts as progress
PROVING = 0.2  # share of the budget that is kept for proofs
Turn = tuple[int, int, int, Roles]  # when, the number of a specification, the round, an assignment
ALONE_SECONDS = 4.0  # a smaller budget is not worth starting processes


@dataclass(frozen=True, slots=True)
class Proven:
    """A µGraph that computes the specification, what it may take, at which extents, and what that rests on."""

    graph: MuGraph
    seconds: float
    extents: dict[str, int]
    proof: Proof


@dataclass(frozen=True, slots=True)
class Found:
    """What a search found.

    graphs       proven and different, the fastest by the roofline model first
    seconds      that the search took
    exhausted    whether all that there is (within the vocabulary and the roles) was enumerated
    interrupted  whether the user stopped it
    reason       why there is none
    """

    graphs: tuple[Proven, ...]
    statistics: Statistics
    seconds: float
    exhausted: bool
    interrupted: bool = False
    reason: str = ""


def superoptimize(spec: Spec, target: Target, *, seconds: float = 60.0, seed: int = 0, workers: int = 1,
                  goals: Goals = Goal.of, most: int = KEPT, tests: int = TESTS,
                  patience: int | None = None) -> Found:  # fmt: skip
    """Up to `most` proven µGraphs of a specification.

    seconds  the budget; proofs of what was found may take a fifth more
    seed     of the random points. The result is determined by it, if the search is exhausted
    workers  processes
    goals    makes the oracle that prunes what cannot contribute
    tests    over finite fields that a program must pass
    patience assignments without progress, after which it ends although time is left; None: it does not
    """
    begin = time.monotonic()
    if (reason := unprovable(spec, seed)) is not None:
        return Found((), Statistics(), time.monotonic() - begin, exhausted=True, reason=reason)
    search = _Search(spec, target, seed, seconds, begin + (1 - PROVING) * seconds)
    explorers: Explorers = (
        Alone(search.specs, target, goals, seed)
        if workers < 2 or seconds < ALONE_SECONDS
        else Team(search.specs, target, goals, seed, workers)
    )
    interrupted = False
    try:
        search.run(explorers, patience)
    except KeyboardInterrupt:
        interrupted = True
    finally:
        explorers.close()
    proven, reason = search.prove(most, begin + 1.2 * seconds, tests)
    return Found(proven, search.statistics, time.monotonic() - begin, search.exhausted and not interrupted,
                 interrupted, reason)  # fmt: skip


def unprovable(spec: Spec, seed: int) -> str | None:
    """Why nothing could be proven about a specification, if that is so."""
    whole = Roles((), ())
    for repeat in range(REPEATS):
        try:
            Point(spec, factors(spec, whole), seed + repeat).run()
            return None
        except NotProvable as error:
            return str(error)
        except DrawAgain:
            continue
    return "a denominator of the specification is zero for every input that was drawn"


@dataclass(slots=True)
class _Search:
    """The state of one search: for each specification (the first is the whole one) its cuts and its candidates."""

    whole: Spec
    target: Target
    seed: int
    seconds: float
    deadline: float
    specs: tuple[Spec, ...] = ()
    parts: dict[int, list[tuple[Cut, int, int]]] = field(default_factory=dict)
    found: dict[int, list[Candidate]] = field(default_factory=dict)
    statistics: Statistics = field(default_factory=Statistics)
    exhausted: bool = False
    _least: dict[int, float] = field(default_factory=dict)
    _depth: dict[int, int] = field(default_factory=dict)  # how often the whole was cut for it

    def __post_init__(self) -> None:
        known: dict[Spec, int] = {}

        def number(spec: Spec, depth: int) -> int:
            if spec not in known:
                known[spec] = len(known)
                self.parts[known[spec]] = []
                self._depth[known[spec]] = CUTS - depth
            own = known[spec]
            if depth and not self.parts[own]:
                self.parts[own] = [
                    (cut, number(cut.first, depth - 1), number(cut.second, depth - 1)) for cut in cuts(spec)
                ]
            return own

        number(self.whole, CUTS)
        self.specs = tuple(known)
        self._least = {i: least_seconds(spec, self.target) for i, spec in enumerate(self.specs)}
        self.found = {i: [] for i in range(len(self.specs))}

    def run(self, explorers: Explorers, patience: int | None) -> None:
        """The rounds, as far as the time and the patience allow."""
        order: list[Turn] = []
        for number, spec in enumerate(self.specs):
            for place, roles in enumerate(self._ordered(number)):
                self.statistics.pruned_dependence += positional_maps(spec, roles) - 1
                first = place + AHEAD * self._depth[number]
                order += [(first + NEXT * turn, number, turn, roles) for turn in range(len(ROUNDS))]
        order.sort(key=lambda one: one[:3])
        done: set[tuple[int, Roles]] = set()
        best, idle = math.inf, 0
        for report in explorers.run(self._jobs(order, done), self.deadline):
            self._take(report)
            if report.exhausted:
                done.add((report.job.number, report.job.roles))
            now = self._best(0)
            best, idle = (now, 0) if now < GAIN * best else (best, idle + 1)
            if patience is not None and idle >= patience and best < math.inf:
                break
        self.exhausted = all((number, roles) in done for _, number, _, roles in order)

    def _ordered(self, number: int) -> list[Roles]:
        """Those that may be fastest first; loops that put tiles side by side last."""
        spec = self.specs[number]
        kept = {*spec.labels(spec.output)} - summed_labels(spec)

        def rank(roles: Roles) -> tuple[object, ...]:
            looped = math.prod(spec.extents[label] for label in roles.loops)
            seconds = float(f"{likely_seconds(spec, self.target, roles):.2g}")
            split = bool({*roles.grid} - kept)
            return bool(kept & {*roles.loops}), seconds, split, len(roles.loops) > 1, -looped, roles.grid, roles.loops

        return sorted(assignments(spec), key=rank)

    def _jobs(self, order: Sequence[Turn], done: set[tuple[int, Roles]]) -> Iterator[Job]:
        """Those that are left and may be better than what is known by then."""
        for _, number, turn, roles in order:
            if (number, roles) in done:
                continue
            least = least_seconds(self.specs[number], self.target, roles)
            if least * BETTER[turn] >= self._limit(number):
                self.statistics.pruned_roofline += 1
                done.add((number, roles))
                continue
            foreign, values, most = ROUNDS[turn]
            yield Job(number, roles, most, foreign, values, values // 10, SHARES[turn] * self.seconds)

    def _best(self, number: int) -> float:
        """Seconds of the best program of a specification, alone or cut."""
        own = self.found[number][0].estimate.seconds if self.found[number] else math.inf
        return min((own, *(self._best(first) + self._best(second) for _, first, second in self.parts[number])))

    def _limit(self, number: int) -> float:
        """What a program of a specification has to be faster than, to make the whole better by itself or as a part."""
        limit = self._best(number)
        if number:
            outer = -math.inf
            for parent, parts in self.parts.items():
                for _, first, second in parts:
                    for mine, other in ((first, second), (second, first)):
                        if mine == number:
                            outer = max(outer, self._limit(parent) - self._least[other])
            limit = min(limit, outer)
        return limit

    def _take(self, report: Report) -> None:
        number = report.job.number
        self.statistics.add(report.statistics)
        self.found[number] = ranked([*self.found[number], *report.candidates])[: 4 * KEPT]

    def _joined(self, number: int, most: int) -> list[Candidate]:
        """The candidates of a specification, those of its cuts among them."""
        made = list(self.found[number])
        spec = self.specs[number]
        for cut, first, second in self.parts[number]:
            for a in self._joined(first, 2):
                for b in self._joined(second, 2):
                    graph = join(spec, cut.name, a.graph, b.graph)
                    seconds = a.estimate.seconds + b.estimate.seconds
                    made.append(Candidate(graph, key(graph), Estimate(seconds, {})))
        return ranked(made)[:most]

    def prove(self, most: int, deadline: float, tests: int) -> tuple[tuple[Proven, ...], str]:
        """The fastest candidates that are proven; if there are none, why."""
        proven: list[Proven] = []
        reason = ""
        rng = np.random.default_rng(self.seed)
        alike: Counter[Hashable] = Counter()
        for candidate in self._joined(0, 16 * most):
            if len(proven) == most or (proven and time.monotonic() > deadline):
                break
            if alike[_outline(candidate.graph)] >= ALIKE:
                continue
            try:
                proof = prove_spec(self.whole, candidate.graph, tests=tests, rng=rng)
            except CheckError as error:
                proof = Proof("not provable", reason=str(error))
            if not proof.equal:
                self.statistics.refused += 1
                reason = reason or f"{to_text(candidate.graph)}: {proof}"
                continue
            self.statistics.proven += 1
            alike[_outline(candidate.graph)] += 1
            found = estimate(candidate.graph, shapes(self.whole), self.target)
            proven.append(Proven(candidate.graph, found.seconds, found.extents, proof))
        if proven:
            reason = ""
        elif not reason:
            complete = "everything was enumerated" if self.exhausted else "the budget ended first"
            reason = f"no program was found within {len(self.specs)} cuts of the specification; {complete}"
        return tuple(proven), reason


def _outline(graph: MuGraph) -> Hashable:
    """What a µGraph is from outside of its blocks: how tensors are cut, and how results are put together."""
    return tuple(
        (block.inputs, tuple(out.omap for out in block.outputs), tuple(axis.name for axis in block.grid + block.loops))
        for block in block_graphs(graph)
    )
