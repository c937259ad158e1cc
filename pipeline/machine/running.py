"""What machines that can run a module have in common: it is verified, timed and compared by running it."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np

from pipeline.config import Config
from pipeline.ir.graph import Graph
from pipeline.machine.machine import Feeds, Runnable
from pipeline.progress import Step
from pipeline.report.compare import in_turns
from pipeline.space.task import flops
from pipeline.verification.module_gate import Report, verify_module

SMALL_MODEL = 2e8  # operations: below it every kind of hostile feeds is tried on the whole module


def verified_by_running(
    config: Config, model: Graph, module: Runnable, feeds: Feeds, step: Step, *, least: bool = False
) -> Report:
    """The whole module against the model in float64: on these feeds, and on others unless the least is asked for."""
    settings = config.verification
    work = flops(model)
    # The bounds cost several evaluations in float64: a large model gets the kinds of trouble that models meet.
    hostile = () if least or not settings.hostile else None if work < SMALL_MODEL else ("large", "NaN")
    return verify_module(
        model, lambda given: module.run(None, given), seed=config.seed, usual=(dict(feeds),),
        rounds=0 if least else settings.random_inputs if work < SMALL_MODEL else 1, hostile=hostile,
        step=step,
    )  # fmt: skip


def called_in_turns(
    artifacts: Sequence[Path], load: Callable[[Path], AbstractContextManager[Runnable]], feeds: Feeds,
    seconds: float = 0.6,
) -> Iterator[tuple[float, ...]]:  # fmt: skip
    """Loads all modules again and again; each time, the median of a call of each, in milliseconds.

    A module whose weights lie in other pages of memory takes another time, by up to two hundredths for a large one.

    seconds  of calls for each time that they are loaded
    """
    while True:
        with contextlib.ExitStack() as stack:
            sessions = {str(path): stack.enter_context(load(path)) for path in artifacts}
            runs = {name: functools.partial(session.run, None) for name, session in sessions.items()}
            samples = in_turns(runs, feeds, seconds / len(runs))
        yield tuple(float(np.median(np.concatenate(samples[str(path)]))) for path in artifacts)


def time_runs(call: Callable[[], object], seconds: float = 1.0, least: int = 10, most: int = 1000) -> list[float]:
    """Milliseconds of each of many calls, after a warm-up."""
    for _ in range(3):
        call()
    samples: list[float] = []
    end = time.perf_counter() + seconds
    while len(samples) < least or (time.perf_counter() < end and len(samples) < most):
        start = time.perf_counter()
        call()
        samples.append((time.perf_counter() - start) * 1e3)
    return samples
