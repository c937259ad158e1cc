"""Which module is kept where fused kernels are about as fast as what they replace: the one whose calls are."""

from __future__ import annotations

import logging
import math
import shutil
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path

import numpy as np

from pipeline.machine.machine import Feeds, Machine
from pipeline.machine.running import called_in_turns
from pipeline.report.console import Progress
from pipeline.search.contest import Contest

log = logging.getLogger("pipeline")

# Times that two modules are loaded: which is faster may change from one to the next, with the pages that weights lie
# in and with what else runs on the machine, and there are machines where it does for most pairs.
LOADS, AT_MOST = 3, 7


def until_sure(times: Iterable[tuple[float, ...]]) -> list[tuple[float, ...]]:
    """As many of these pairs as it takes: a few where they all say the same, else all that may be asked for."""
    taken = []
    for pair in times:
        taken.append(pair)
        if len(taken) == AT_MOST or (len(taken) >= LOADS and len({after < earlier for earlier, after in taken}) == 1):
            break
    return taken


def faster(times: Iterable[tuple[float, ...]]) -> bool:
    """Whether the second of each pair is the shorter one, in the geometric mean."""
    return math.fsum(math.log(after / earlier) for earlier, after in times) < 0.0


def fastest_module(
    both: Contest, near: Sequence[tuple[int, float]], kernels: Collection[str], make: Callable[[str], Path],
    machine: Machine, feeds: Feeds, progress: Progress,
) -> tuple[Path, bool]:  # fmt: skip
    """The module of the choice that kernels alone have led to, or of another one that is near, if its calls take less
    time: alone, a task finds in its caches what in a module comes from memory. And whether an interrupt ended that.

    both      holds the choice, at the end that of the module
    near      the other choices that are looked at: see `Contest.near`
    kernels   the keys of the tasks that have one
    make      writes the module of the choice that is held, in a folder of that name
    progress  counts the choices that have been looked at
    """
    best = make("artifact")
    for done, (number, factor) in enumerate(near):
        progress.step(done, len(near), both.states[number].task.name)
        before, used = both.factors, both.chosen_uses()
        both.factors = {**before, number: factor}
        if both.chosen_uses() == used or any(state.task.key not in kernels for state in both.decided()[1]):
            both.factors = before
            continue
        other = make("artifact_other")
        try:
            times = until_sure(called_in_turns((best, other), machine.open, feeds))
        except KeyboardInterrupt:
            progress.erase()
            log.warning("interrupted: other choices of fused kernels are not tried")
            shutil.rmtree(other)
            both.factors = before
            return best, True
        ways = ("fused", "not fused") if used[number] else ("not fused", "fused")
        said = [f"{way}: {ms:.4g} ms" for way, ms in zip(ways, np.median(times, axis=0), strict=True)]
        progress.erase()
        log.info("%s %s (whole modules, called in turns)", both.states[number].task.name, ", ".join(said))
        if faster(times):
            shutil.rmtree(best)
            other.rename(best)
        else:
            shutil.rmtree(other)
            both.factors = before
    return best, False
