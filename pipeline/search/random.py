"""The strategy that draws independently, sketch by sketch in turn."""

from __future__ import annotations

import numpy as np

from pipeline.search.candidates import Candidate, History
from pipeline.search.cost_model import CostModel

ATTEMPTS = 8
LEAST = 64  # rows drawn at once, so that the last few of a small space are found too


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
                share = min(-(-count // len(history.spaces)), count - len(found))
                for row in space.draw(max(share, LEAST), rng):
                    candidate = Candidate(space.number, tuple(int(v) for v in row))
                    if candidate.key not in seen and share > 0:
                        seen.add(candidate.key)
                        found.append(candidate)
                        share -= 1
            if len(found) >= count:
                break
        return found
