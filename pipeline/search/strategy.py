"""The protocol of search strategies: which candidates of a task are measured next."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from pipeline.search.candidates import Candidate, History
from pipeline.search.cost_model import CostModel


class Strategy(Protocol):
    """Proposes candidates that were not measured before. Chance comes from `rng` alone."""

    def propose(
        self, history: History, cost: CostModel, count: int, pool: int, rng: np.random.Generator
    ) -> list[Candidate]:
        """Up to `count` different new candidates, the most promising first; `pool` are ranked to find them.

        Fewer, or none, where the space has no more.
        """
        ...
