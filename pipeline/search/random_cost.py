"""The cost model that knows nothing: what ranking is worth is measured against it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pipeline.schedule.variables import Rows
from pipeline.search.candidates import History, SketchSpace


class RandomCost:
    """A random number for each candidate, drawn from a stream of its own."""

    def __init__(self, seed: int = 0) -> None:
        self._rng = np.random.default_rng([seed, 0x5EED])

    def predict(self, space: SketchSpace, rows: Rows) -> NDArray[np.float64]:
        del space
        return self._rng.random(len(rows))

    def learn(self, history: History) -> None:
        """Nothing."""
