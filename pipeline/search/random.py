"""The strategy that draws independently, sketch by sketch in turn."""

from __future__ import annotations

import numpy as np

from pipeline.search.candidates import Candidate, History
from pipeline.search.cost_model import CostModel

ATTEMPTS = 8


class Random:
    """Every sketch gets its share; the cost model is not asked."""

    def propose(
        self, history: History, cost: CostModel, count: int, pool: int, rng: np.random.Generator
    ) -> list[Candidate]:
        del cost, pool
        seen = history.seen()
        found: list[Candidate] = []
        for _ in range(ATTEMPTS):
            for space in history.spaces:
                share = -(-(count - len(found)) // max(1, len(history.spaces)))
                for row in space.space.draw(max(share, 1), rng):
                    candidate = Candidate(space.number, tuple(int(v) for v in row))
                    if candidate.key not in seen and len(found) < count:
                        seen.add(candidate.key)
                        found.append(candidate)
            if len(found) >= count:
                break
        return found
