"""The comparison with other runtimes: their results are checked against ours, then all are timed in turns."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, Protocol, cast, runtime_checkable

import numpy as np

from pipeline.progress import Step, untold
from pipeline.report.peers.peer import Peer, PeerModel, Run

Status = Literal["ok", "disagrees", "missing", "failed"]
Call = Callable[[Mapping[str, np.ndarray]], object]
Rounds = list[list[float]]
_SETTLE_SECONDS = 0.02  # until the threads of the one before have stopped to spin
_BLOCK_SECONDS = 0.05
_MOST_RUNS = 200
_FEWEST_ROUNDS = 3
_OURS = "ours"


@runtime_checkable
class Clocked(Protocol):
    """A run on a device, which has a clock of its own."""

    def __call__(self, feeds: Mapping[str, np.ndarray], /) -> Mapping[str, np.ndarray]: ...

    def time(self, feeds: Mapping[str, np.ndarray], runs: int) -> Sequence[float]:
        """Milliseconds of each of some runs, inputs already on the device."""
        ...


@dataclass(frozen=True, slots=True)
class PeerResult:
    """status      ok · disagrees: timed, but its outputs are not ours · missing: not installed · failed: it raised
    reason      why it is not ok
    median_ms   of one run; None where it was not timed
    ratio       its time over ours, above 1 we are faster: the median over rounds, see `paired_ratio`
    difference  largest |peer's - ours| over the tolerance: up to 1 they agree
    samples_ms  of every timed run
    """

    status: Status
    reason: str = ""
    median_ms: float | None = None
    ratio: float | None = None
    difference: float | None = None
    samples_ms: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Comparison:
    """Our own median in the same rounds, and each peer by name, in the order in which they were asked for."""

    ours_ms: float
    ours_samples_ms: tuple[float, ...]
    peers: Mapping[str, PeerResult]


def compare(
    ours: Run,
    peers: Sequence[Peer],
    model: PeerModel,
    threads: int,
    *,
    tolerance: Mapping[str, np.ndarray] | None = None,
    seconds: float = 10.0,
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
    step: Step = untold,
) -> Comparison:
    """Run everything on `model.feeds` with the same number of threads. Where ours is `Clocked`, only peers that are
    can be compared: the times are those of the device.

    tolerance  largest difference between a peer and us, by output; by default a thousandth of its largest value
    seconds    of timing for each contestant, about
    step       is told how many turns are over, of how many, and what comes: one for each peer that is made ready, one
               for each contestant that is timed

    Each round runs every contestant for a moment and then all of them in reverse order, so that a change of the
    machine's speed meets all alike. Before its timed runs each gets a pause, in which the others' threads go to sleep,
    and untimed runs, in which its data come back into the caches.
    """
    expected = {name: np.array(array) for name, array in ours(model.feeds).items()}
    results: dict[str, PeerResult] = {}
    runs: dict[str, Run] = {_OURS: ours}
    on_device = isinstance(ours, Clocked)
    for number, peer in enumerate(peers):
        step(number, 2 * len(peers) + 1, f"{peer.name} is made ready")
        if (absent := peer.available()) is not None:
            results[peer.name] = PeerResult("missing", absent)
            continue
        # Foreign code on a model that it may not support: whatever it raises is its result, and not the end of our run.
        try:
            run = peer.prepare(model, threads)
            got = {name: np.array(array) for name, array in run(model.feeds).items()}
        except Exception as error:
            results[peer.name] = PeerResult("failed", f"{type(error).__name__}: {_first_line(error)}")
            continue
        if isinstance(run, Clocked) != on_device:
            why = "it runs on the CPU, and ours on a GPU" if on_device else "it runs on a GPU, and ours on the CPU"
            results[peer.name] = PeerResult("missing", why)
            continue
        worst, where = difference(got, expected, tolerance)
        status: Status = "ok" if worst <= 1 else "disagrees"
        results[peer.name] = PeerResult(status, "" if worst <= 1 else where, difference=worst)
        runs[peer.name] = run
    if on_device:
        samples = by_the_device(cast(Mapping[str, Clocked], runs), model.feeds, seconds)
    else:
        samples = in_turns(runs, model.feeds, seconds, clock, sleep, partial(_timed, step, len(peers)))
    for name, found in results.items():
        if name in samples:
            taken = _of_all(samples[name])
            ratio = paired_ratio(samples[name], samples[_OURS])
            results[name] = PeerResult(
                found.status, found.reason, statistics.median(taken), ratio, found.difference, tuple(taken)
            )
    taken = _of_all(samples[_OURS])
    return Comparison(statistics.median(taken), tuple(taken), results)


def paired_ratio(theirs: Rounds, ours: Rounds) -> float:
    """Their time over ours: the median of what each round says, whose halves meet the machine at about one speed.

    Where a machine has two speeds for seconds at a time, the quotient of two medians over all rounds is chance."""
    both = zip(theirs, ours, strict=True)
    return statistics.median(statistics.median(their) / statistics.median(our) for their, our in both)


def by_the_device(
    contestants: Mapping[str, Clocked], feeds: Mapping[str, np.ndarray], seconds: float
) -> dict[str, Rounds]:
    """Milliseconds of every run of each round, by contestant, as in `in_turns`; seconds: for each of them, about."""
    counts = {
        name: max(1, min(_MOST_RUNS, int(_BLOCK_SECONDS * 1e3 / max(min(one.time(feeds, 3)), 1e-6))))
        for name, one in contestants.items()
    }
    taken: dict[str, Rounds] = {name: [] for name in contestants}
    spent, rounds = 0.0, 0
    while rounds < _FEWEST_ROUNDS or spent < seconds * 1e3 * len(contestants):
        for found in taken.values():
            found.append([])
        for name in (*contestants, *reversed(tuple(contestants))):
            first, *others = contestants[name].time(feeds, counts[name] + 1)
            taken[name][-1] += others  # the first one finds the others' data in the caches
            spent += first + sum(others)
        rounds += 1
    return taken


def in_turns(
    runs: Mapping[str, Call],
    feeds: Mapping[str, np.ndarray],
    seconds: float,
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
    spend: Callable[[float], None] = lambda share: None,
) -> dict[str, Rounds]:
    """Milliseconds of every run of each round, by contestant; seconds: for each of them, about. How, says `compare`.
    spend: is told before each round which share of the time is over."""
    taken: dict[str, Rounds] = {name: [] for name in runs}
    counts = {name: _runs_in_a_block(run, feeds, clock) for name, run in runs.items()}
    spent, rounds = 0.0, 0
    while rounds < _FEWEST_ROUNDS or spent < seconds * len(runs):
        spend(min(1.0, spent / (seconds * len(runs))) if seconds > 0 else 1.0)
        start = clock()
        for found in taken.values():
            found.append([])
        for name in (*runs, *reversed(tuple(runs))):
            sleep(_SETTLE_SECONDS)
            run = runs[name]
            for _ in range(1 + counts[name] // 10):
                run(feeds)
            for _ in range(counts[name]):
                before = clock()
                run(feeds)
                taken[name][-1].append((clock() - before) * 1e3)
        spent += clock() - start
        rounds += 1
    return taken


def _timed(step: Step, peers: int, share: float) -> None:
    step(peers + int(share * (peers + 1)), 2 * peers + 1, "all are timed in turns")


def _of_all(rounds: Rounds) -> list[float]:
    return [sample for one in rounds for sample in one]


def _runs_in_a_block(run: Call, feeds: Mapping[str, np.ndarray], clock: Callable[[], float]) -> int:
    run(feeds)
    before = clock()
    run(feeds)
    return max(1, min(_MOST_RUNS, int(_BLOCK_SECONDS / max(clock() - before, 1e-9))))


def difference(
    got: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray], tolerance: Mapping[str, np.ndarray] | None
) -> tuple[float, str]:
    """The largest difference in units of the tolerance, and a sentence about it."""
    worst, where = 0.0, ""
    for name, want in expected.items():
        have = got.get(name)
        if have is None or have.shape != want.shape:
            return math.inf, f"{name}: shape {None if have is None else have.shape} instead of {want.shape}"
        if not want.size:
            continue
        a, b = have.astype(np.float64), want.astype(np.float64)
        with np.errstate(all="ignore"):
            difference = np.abs(a - b)
            difference = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, difference)
            finite = np.isfinite(b)
            allowed = (
                np.asarray(1e-3 * np.max(np.abs(b), where=finite, initial=0.0) + 1e-30)
                if tolerance is None
                else np.asarray(tolerance[name])
            )
            units = np.where(difference == 0, 0.0, difference / allowed)
        units = np.where(np.isnan(units), np.inf, units)
        place = np.unravel_index(int(np.argmax(units)), units.shape)
        if units[place] > worst or not where:
            worst = max(worst, float(units[place]))
            index = ", ".join(str(int(i)) for i in place)
            where = f"{name}[{index}] is {have[place]!s} there and {want[place]!s} here"
    return worst, where


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else "no message"
