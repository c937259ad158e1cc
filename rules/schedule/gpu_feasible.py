"""Whether a sketch has a candidate at all: limits can leave none."""

from __future__ import annotations

import numpy as np

from pipeline.errors import StepError
from pipeline.schedule.sketch import Sketch
from pipeline.schedule.space import ParameterSpace


def feasible(sketch: Sketch) -> bool:
    """Is there a value for each parameter that keeps all constraints, as far as some hundred draws tell?"""
    try:
        ParameterSpace.of(sketch).draw(1, np.random.default_rng(0))
    except StepError:
        return False
    return True
