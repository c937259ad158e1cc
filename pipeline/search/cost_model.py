"""The protocol of cost models: how long a candidate will take, before it is measured."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pipeline.schedule.variables import Rows
from pipeline.search.candidates import History, SketchSpace

Array = NDArray[np.float64]


class CostModel(Protocol):
    """Predicts seconds; lower is better. What it has learned may serve later tasks too."""

    def predict(self, space: SketchSpace, rows: Rows) -> Array:
        """Seconds of each row, shape (n,)."""
        ...

    def learn(self, history: History) -> None:
        """Takes in what is known of one task; may be called again with a longer history."""
        ...
