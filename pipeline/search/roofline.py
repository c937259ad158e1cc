"""The cost model that is the analytic model alone."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pipeline.schedule.variables import Rows
from pipeline.search.candidates import History, SketchSpace


class Roofline:
    """Seconds from issue slots, latencies, bytes per cache level and balance (`nest_model`)."""

    def __init__(self, seed: int = 0) -> None:
        del seed

    def predict(self, space: SketchSpace, rows: Rows) -> NDArray[np.float64]:
        return space.analyse(rows)[0]

    def learn(self, history: History) -> None:
        """Nothing: the model has no free numbers."""
