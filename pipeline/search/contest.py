"""The contest between the tasks of a partition and alternatives to several of them, which measured time decides."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from pipeline.ir.graph import Graph
from pipeline.ir.target import Target
from pipeline.schedule.sketch import Sketch
from pipeline.search.candidates import Observation
from pipeline.search.tuner import TaskState, make_state
from pipeline.space.partition import Instance, Partition
from pipeline.space.task import weight_bytes
from pipeline.superopt.cover import Choices, Cover, cover, narrowed
from pipeline.superopt.proof.full_proof import full_proof
from pipeline.superopt.proof.proof import Proof
from pipeline.superopt.stage import Alternative
from pipeline.superopt.subprograms import tuned_in_turn

log = logging.getLogger("pipeline")

# What the time of an alternative counts where the other choice is looked at: so much may the noise of two measurements
# be, and what differs in a module, where tasks find in memory what they find in caches where they are timed alone.
LESS, MORE = 0.95, 1.03
# The same of what is used and has weights that no cache of a core holds. A kernel of several products may read them
# once for each core, which timed alone come from the last cache and in a module from memory: two products of 128 rows
# by 768 x 3072 took 3.32 ms instead of 3.51 ms alone, and the module with twelve of them 114 ms instead of 111 ms.
MORE_WEIGHTS = 1.15
NEAR = 6  # other choices that are looked at


@dataclass(frozen=True, slots=True)
class Entrant:
    """An alternative that is tuned.

    state   the number of its state
    first   the number of the first of its sketches there; those before it are the ordinary ones of the same task
    """

    alternative: Alternative
    state: int
    first: int

    @property
    def inside(self) -> bool:
        """It is another way to compute one task of the partition."""
        return self.first > 0


@dataclass(slots=True)
class Contest:
    """Tasks to be tuned: those of the partition first, then the alternatives.

    fused   the uses of the alternatives; their task is the number of a state
    choices all of that, as it is decided over
    full    for each µGraph that was tested at its full extents the verdict, by the number of its state and its own
    factors what the time of a state counts in the choice, by its number, where that is not the time itself
    """

    graph: Graph
    parts: Partition
    states: list[TaskState]
    fused: list[Instance]
    choices: Choices
    entrants: list[Entrant] = field(default_factory=list)
    full: dict[tuple[int, int], Proof] = field(default_factory=dict)
    factors: Mapping[int, float] = field(default_factory=dict)

    def cover(self, seconds: Sequence[float]) -> Cover:
        """The instances that take least time, given that of each state."""
        return self.choices.cover(lambda task: self.factors.get(task, 1.0) * seconds[task])

    def seconds(self, seconds: Sequence[float]) -> float:
        """Of the module."""
        return self.choices.total(lambda task: seconds[task])

    def chosen_uses(self) -> dict[int, int]:
        """How often each state is in the module, by its number."""
        made = self.cover([state.best for state in self.states])
        return Counter(one.task for one in made.instances)

    def near(self) -> list[tuple[int, float]]:
        """States of alternatives about which another choice is about as good, the nearest first, each with the factor
        that leads to it. What is better there can be told only by calling modules."""
        used = self.chosen_uses()
        found: list[tuple[float, int, float]] = []
        for entrant in self.entrants:
            number, seconds = entrant.state, self.states[entrant.state].best
            if self.states[number].optional and math.isfinite(seconds):
                more = MORE_WEIGHTS if _has_weights(self.states[number]) else MORE
                factor = more if used.get(number) else LESS
                other = replace(self, factors={**self.factors, number: factor})
                if other.chosen_uses().get(number, 0) != used.get(number, 0):
                    found.append((abs(math.log(seconds / self.ordinary_seconds(entrant))), number, factor))
        return [(number, factor) for _, number, factor in sorted(found)][:NEAR]

    def winners(self) -> list[tuple[Entrant, int]]:
        """The alternatives that are in the module, each with the number of the µGraph that its kernel comes from."""
        used = self.chosen_uses()
        found = []
        for entrant in self.entrants:
            best = self.states[entrant.state].history.best()
            sketch = -1 if best is None else best.candidate.sketch - entrant.first
            if sketch >= 0 and used.get(entrant.state, 0):
                found.append((entrant, entrant.alternative.sketches[sketch].graph))
        return found

    def confirm(self, rng: np.random.Generator) -> None:
        """Tests each winner at its full extents; one that is different leaves, and the next best is looked at."""
        while waiting := [(e, graph) for e, graph in self.winners() if (e.state, graph) not in self.full]:
            for entrant, graph in waiting:
                one = entrant.alternative
                assert one.finding is not None
                proof = full_proof(one.subprogram.spec, one.finding.graphs[graph], rng)
                self.full[entrant.state, graph] = proof
                if proof.verdict == "different":
                    log.error("a µGraph of %s is refused at its full extents: %s", one.subprogram.task.name, proof)
                    self.refuse(entrant, graph)

    def refuse(self, entrant: Entrant, graph: int) -> None:
        """All that was measured of a µGraph counts as failed."""
        history = self.states[entrant.state].history
        for place, seen in enumerate(history.observations):
            sketch = seen.candidate.sketch - entrant.first
            if sketch >= 0 and entrant.alternative.sketches[sketch].graph == graph:
                history.observations[place] = Observation(seen.candidate, None)

    def measured(self, entrant: Entrant, sketches: Sequence[int]) -> tuple[int, float]:
        """Of some of its sketches: how many candidates were measured, and the seconds of the best."""
        own = {entrant.first + number for number in sketches}
        seen = [o for o in self.states[entrant.state].history.observations if o.candidate.sketch in own]
        return len(seen), min((o.seconds for o in seen if o.seconds is not None), default=math.inf)

    def fused_seconds(self, entrant: Entrant) -> float:
        """Of its best candidate."""
        return self.measured(entrant, range(len(entrant.alternative.sketches)))[1]

    def ordinary_seconds(self, entrant: Entrant) -> float:
        """Of what falls away where only it is used, everywhere: of one use."""
        if entrant.inside:
            return self.measured(entrant, range(-entrant.first, 0))[1]
        fused = self.states[entrant.state].best
        bests = [state.best for state in self.states]
        without = math.fsum(bests[instance.task] for instance in self.parts.instances)
        forced = [one for one in self.fused if one.task == entrant.state]
        left = cover(self.graph, self.parts, forced, lambda task: 0.0 if task == entrant.state else bests[task])
        uses = sum(1 for one in left.instances if one.task == entrant.state)
        return (without - left.seconds) / uses if uses and math.isfinite(fused) else math.inf

    def decided(self) -> tuple[Partition, list[TaskState]]:
        """The partition that is used, and the state of each of its tasks with the weight that it has there."""
        tasks = [state.task for state in self.states]
        parts, used = narrowed(tasks, self.cover([state.best for state in self.states]), self.parts.aliases)
        states = [self.states[number] for number in used]
        for number, state in enumerate(states):
            state.weight = parts.weight(number)
        return parts, states


def _has_weights(state: TaskState) -> bool:
    target = state.history.spaces[0].target
    return target.kind == "cpu" and weight_bytes(state.task) > target.core_cache


def contest(
    graph: Graph, parts: Partition, sketches: Sequence[Sequence[Sketch]], alternatives: Sequence[Alternative],
    target: Target,
) -> Contest:  # fmt: skip
    """The tasks of a partition with their sketches, and the alternatives.

    An alternative that is one task of the partition gives that task further sketches.
    """
    ready = [one for one in alternatives if one.sketches]
    known = {task.key: number for number, task in enumerate(parts.tasks)}
    more: dict[int, Alternative] = {
        known[one.subprogram.task.key]: one for one in ready if one.subprogram.task.key in known
    }
    by_task = {one.subprogram.task.key: one for one in ready if one.subprogram.task.key not in known}
    fresh = [by_task[each.task.key] for each in tuned_in_turn([one.subprogram for one in by_task.values()])]
    fused = [
        replace(use, task=len(parts.tasks) + number) for number, one in enumerate(fresh) for use in one.subprogram.uses
    ]
    made = Contest(graph, parts, [], fused, Choices.of(graph, parts, fused))
    for number, (task, own) in enumerate(zip(parts.tasks, sketches, strict=True)):
        added = more[number].sketches if number in more else ()
        begins = [*[""] * len(own), *(one.key for one in added)]
        every = [*own, *(one.sketch for one in added)]
        made.states.append(make_state(task, parts.weight(number), every, target, begins=begins))
        if added:
            made.entrants.append(Entrant(more[number], number, len(own)))
    for one in fresh:
        lowered = one.sketches
        state = make_state(
            one.subprogram.task, len(one.subprogram.uses), [each.sketch for each in lowered], target,
            begins=[each.key for each in lowered], optional=True,
        )  # fmt: skip
        made.entrants.append(Entrant(one, len(made.states), 0))
        made.states.append(state)
    return made
