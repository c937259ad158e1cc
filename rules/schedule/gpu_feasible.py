"""Whether a sketch can be made and has a candidate at all: a program may have no room for a structure."""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np

from pipeline.errors import StepError
from pipeline.schedule.sketch import Sketch
from pipeline.schedule.space import ParameterSpace

log = logging.getLogger("pipeline")


def feasible(sketch: Sketch) -> bool:
    """Is there a value for each parameter that keeps all constraints, as far as some hundred draws tell?"""
    try:
        ParameterSpace.of(sketch).draw(1, np.random.default_rng(0))
    except StepError:
        return False
    return True


def legal(make: Callable[[], Sketch | None], what: str) -> list[Sketch]:
    """The sketch that `make` builds, as a list; none where it gives None, or one of its steps is not legal."""
    try:
        made = make()
    except StepError as error:
        log.debug("%s: %s", what, error)
        return []
    return [] if made is None else [made]


def possible(make: Callable[[], Sketch | None], what: str) -> list[Sketch]:
    """The sketch that `make` builds, as a list; none where it gives None, one of its steps is not legal, or it has no
    candidate."""
    return [made for made in legal(make, what) if feasible(made)]
