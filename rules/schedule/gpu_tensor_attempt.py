"""A sketch for tensor cores where one can be made: its steps are legal, and some values keep the device's limits."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pipeline.errors import StepError
from pipeline.schedule.sketch import Sketch
from pipeline.schedule.space import ParameterSpace


def made_by(make: Callable[[], Sketch]) -> Sketch | None:
    """What `make` gives, or None where one of its steps is not legal after all, or no candidate keeps the limits: then
    the block is left to other rules, which ask for less."""
    try:
        sketch = make()
        ParameterSpace.of(sketch).draw(1, np.random.default_rng(0))
    except StepError:
        return None
    return sketch
