"""The strategy that breeds: good candidates mutated, crossed and moved to neighbours, ranked by the cost model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Ge, Gt, Le
from numpy.typing import NDArray

from pipeline.schedule.space import ParameterSpace
from pipeline.schedule.variables import Rows
from pipeline.search.candidates import Candidate, History, SketchSpace
from pipeline.search.cost_model import CostModel

Ranked = tuple[float, int, tuple[int, ...]]  # predicted seconds, number of the sketch, and row
Share = Annotated[float, Ge(0), Le(1)]
RIVAL = 2.0  # as long as it takes, at most, what the best of another sketch comes close to


@dataclass(frozen=True, slots=True)
class Evolutionary:
    """generations  rounds of breeding before a batch is chosen
    elite        share of the population that is kept from one generation to the next
    crossover    share of the children that have two parents
    explore      share of each batch that is drawn at random from what was ranked next (epsilon-greedy)
    measured     how many measured candidates of each sketch join the population, and how many that were good elsewhere
    choice       so many of each sketch for each of a batch are looked at to find some that are not alike
    """

    generations: Annotated[int, Ge(0)] = 4
    elite: Share = 0.25
    crossover: Share = 0.3
    explore: Share = 0.1
    measured: Annotated[int, Ge(0)] = 16
    choice: Annotated[int, Gt(0)] = 8

    def propose(
        self, history: History, cost: CostModel, count: int, pool: int, rng: np.random.Generator
    ) -> list[Candidate]:
        seen = history.seen()
        ranked: list[Ranked] = []
        share = max(64, pool // max(1, len(history.spaces)))
        for space in history.spaces:
            rows, seconds = self._evolve(space, history, cost, share, rng)
            order = np.argsort(seconds, kind="stable")
            taken = 0
            for index in order:
                row = tuple(int(v) for v in rows[index])
                if (space.number, row) in seen:
                    continue
                ranked.append((float(seconds[index]), space.number, row))
                taken += 1
                if taken >= count * self.choice:
                    break
        ranked.sort()
        greedy = count - round(count * self.explore) if count > 1 else count
        chosen = self._spread(ranked, greedy, {space.number: space.space for space in history.spaces})
        rest = [item for item in ranked if item not in chosen]
        while rest and len(chosen) < count:
            chosen.append(rest.pop(int(rng.integers(len(rest)))))
        return [Candidate(number, row) for _, number, row in chosen]

    def _spread(self, ranked: list[Ranked], count: int, spaces: Mapping[int, ParameterSpace]) -> list[Ranked]:
        """The best, but no sketch takes more than two thirds of a batch while others come close, and of those that
        differ in one variable only the first is taken while there are others: what the model has wrong of one of them
        it has wrong of all."""
        best: dict[int, float] = {}
        for seconds, number, _ in ranked:
            best.setdefault(number, seconds)
        most = max(1, -(-2 * count // 3))
        chosen: list[Ranked] = []
        used: dict[int, int] = {}
        for apart in (2, 1):
            for item in ranked:
                if len(chosen) >= count:
                    break
                seconds, number, row = item
                close = any(found < RIVAL * seconds for other, found in best.items() if other != number)
                if close and used.get(number, 0) >= most:
                    continue
                near = (other for _, same, other in chosen if same == number)
                if all(spaces[number].differing(row, other) >= apart for other in near):
                    chosen.append(item)
                    used[number] = used.get(number, 0) + 1
        return chosen

    def _evolve(
        self, space: SketchSpace, history: History, cost: CostModel, size: int, rng: np.random.Generator
    ) -> tuple[Rows, NDArray[np.float64]]:
        parameters = space.space
        known = [o.candidate.row for o in history.ranked() if o.candidate.sketch == space.number][: self.measured]
        known += [candidate.row for candidate in history.hints if candidate.sketch == space.number][: self.measured]
        rows = space.draw(size, rng)
        if known:
            rows = np.concatenate([np.array(known, np.int64).reshape(len(known), -1), rows])
        rows = parameters.unique(rows)
        seconds = cost.predict(space, rows)
        for _ in range(self.generations):
            if not rows.size:
                break
            order = np.argsort(seconds, kind="stable")[: max(8, int(size * self.elite))]
            parents = rows[order]
            # rank selection: the better half of the elite has twice the children
            weights = np.linspace(2.0, 1.0, len(parents))
            picks = rng.choice(len(parents), size=size // 2, p=weights / weights.sum())
            children = parents[picks]
            mixed = int(len(children) * self.crossover)
            if mixed:
                others = parents[rng.integers(len(parents), size=mixed)]
                children[:mixed] = parameters.crossover(children[:mixed], others, rng)
            children = parameters.mutate(children, rng)
            near = [parameters.neighbours(row) for row in parents[:2]]
            rows = parameters.unique(np.concatenate([parents, children, *near]))
            seconds = cost.predict(space, rows)
        return rows, seconds
