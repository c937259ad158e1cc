"""The strategy that measures the best known candidates again, and draws at random where there are none."""

from __future__ import annotations

import numpy as np

from pipeline.search.candidates import Candidate, History
from pipeline.search.cost_model import CostModel
from pipeline.search.random import Random


class Replay:
    """What the store knows of this task from other machines, compilers or runs comes first (`History.hints`)."""

    def __init__(self) -> None:
        self._random = Random()

    def propose(
        self, history: History, cost: CostModel, count: int, pool: int, rng: np.random.Generator
    ) -> list[Candidate]:
        seen = history.seen()
        found: list[Candidate] = []
        for candidate in history.hints:
            if candidate.key not in seen and len(found) < count:
                seen.add(candidate.key)
                found.append(candidate)
        return found or self._random.propose(history, cost, count, pool, rng)
