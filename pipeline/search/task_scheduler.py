"""Which task is tuned next: the one whose next batch is expected to save most time of the whole model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    """Where the tuning of one task stands.

    weight    runs of the task in the model
    roofline  seconds that no program can beat
    bests     the best seconds after each batch; infinity while nothing has succeeded
    behind    seconds that it is slower than what the module uses in its place: a gain begins beyond them
    batch     seconds that a batch takes, where the time is what there is a budget of
    """

    weight: int
    roofline: float
    bests: tuple[float, ...]
    behind: float = 0.0
    batch: float = 1.0


def converged(progress: Progress, patience: int, min_gain: float) -> bool:
    """Have the last `patience` batches together gained no more than `min_gain` of the time?"""
    bests = progress.bests
    if len(bests) <= patience or bests[-1] == float("inf"):
        return len(bests) >= 3 * patience
    return bests[-1] >= (1.0 - min_gain) * bests[-1 - patience]


def choose(tasks: Sequence[Progress], open_: Sequence[int], patience: int, min_gain: float) -> int | None:
    """The number of the next task, or None where all have converged. `open_`: the tasks that may still be tuned.

    Every task gets a batch before any gets a second one, the heaviest first.
    """
    fresh = [i for i in open_ if not tasks[i].bests]
    if fresh:
        return max(fresh, key=lambda i: (tasks[i].weight * tasks[i].roofline, -i))
    active = [i for i in open_ if not converged(tasks[i], patience, min_gain)]
    if not active:
        return None
    return max(active, key=lambda i: (expected_gain(tasks[i]) / tasks[i].batch, -i))


def expected_gain(progress: Progress) -> float:
    """Seconds of the model that one more batch may save: the recent slope, or a share of the gap to the roofline that
    shrinks with every batch that brought nothing.

    What lies beyond that which the task is behind counts, if savings are exponentially distributed about that mean.
    """
    best = progress.bests[-1]
    if best == float("inf"):
        return float("inf")
    slope = 0.0
    if len(progress.bests) > 1 and progress.bests[-2] != float("inf"):
        slope = progress.bests[-2] - best
    idle = sum(1 for earlier in progress.bests[:-1] if earlier <= best * 1.001)
    gap = max(best - progress.roofline, 0.02 * best)
    saved = max(0.7 * slope, 0.3 * gap / (1 + idle) ** 2 / (1 + 0.2 * len(progress.bests)))
    return progress.weight * saved * math.exp(-progress.behind / saved)
