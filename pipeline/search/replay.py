"""The strategy that measures the best known candidates again, and draws at random where there are none."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pipeline.search.candidates import Candidate, History
from pipeline.search.cost_model import CostModel
from pipeline.search.random import Random


class Replay:
    """`known` lists the candidates of earlier runs, the fastest first; the engine fills it from the store."""

    def __init__(self) -> None:
        self.known: Callable[[History], list[Candidate]] = lambda history: []
        self._random = Random()

    def propose(
        self, history: History, cost: CostModel, count: int, pool: int, rng: np.random.Generator
    ) -> list[Candidate]:
        seen = history.seen()
        found = [candidate for candidate in self.known(history) if candidate.key not in seen][:count]
        return found or self._random.propose(history, cost, count, pool, rng)
