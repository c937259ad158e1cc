"""How one kernel is sampled: warm-up, length and number of the samples, and when to stop early."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Gt

_EARLY = 3  # samples after which a slow candidate is left
_LOOKS, _LOOK_NS = 4, 50e6  # runs that decide whether a slow first one was chance, and how long they may take in all
_ELSEWHERE = 4.0  # times what was expected of a sample: it is not the kernel that took so long

# Nanoseconds of one run: `repeats` samples, each the mean of `inner` runs in a row.
Clock = Callable[[int, int], tuple[float, ...]]


@dataclass(frozen=True, slots=True)
class SamplingPolicy:
    """warmup         runs before the first sample; they decide how many runs one sample holds
    samples        of one candidate
    min_sample_ms  a sample holds as many runs as it takes to last this long
    cut_factor     a candidate whose first sample is this many times slower than the best gets no second one
    slow_factor    one whose first three samples are all this many times slower gets no fourth one
    max_seconds    of sampling one candidate; a slow candidate gets fewer samples, but always one
    flush_cache    empty the caches before each sample, which then holds one run
    """

    warmup: Annotated[int, Ge(0)] = 2
    samples: Annotated[int, Gt(0)] = 7
    min_sample_ms: Annotated[float, Ge(0)] = 2.0
    cut_factor: Annotated[float, Gt(0)] = 3.0
    slow_factor: Annotated[float, Gt(1)] = 1.25
    max_seconds: Annotated[float, Gt(0)] = 2.0
    flush_cache: bool = False


@dataclass(frozen=True, slots=True)
class Samples:
    """Nanoseconds of one run, each the mean of `inner` of them."""

    nanoseconds: tuple[float, ...]
    inner: int
    cut: bool = False


def inner_runs(policy: SamplingPolicy, run_ns: float) -> int:
    """Runs of one sample, for a kernel that takes about so long."""
    if policy.flush_cache:
        return 1
    return max(1, math.ceil(policy.min_sample_ms * 1e6 / max(run_ns, 1.0)))


def sample(clock: Clock, policy: SamplingPolicy, best_ns: float | None) -> Samples:
    """Sample one kernel. The kernel has run before: its code and data are in place."""
    (estimate,) = clock(1, 1)
    inner = inner_runs(policy, estimate)
    if inner == 1 and best_ns is not None and estimate > policy.cut_factor * best_ns:
        # In that run the system may have brought memory, or given the processor to another program.
        if estimate < policy.max_seconds * 1e9:
            estimate = min(estimate, *clock(max(1, min(_LOOKS, int(_LOOK_NS / max(estimate, 1.0)))), 1))
        if estimate > policy.cut_factor * best_ns:
            return Samples((estimate,), 1, cut=True)
        inner = inner_runs(policy, estimate)
    if policy.warmup > 1:
        (estimate,) = clock(1, policy.warmup - 1)
        inner = inner_runs(policy, estimate)
    if inner > max(1, policy.warmup):  # the first runs of a short kernel are mostly start-up: look again
        (estimate,) = clock(1, max(1, inner // 8))
        inner = inner_runs(policy, estimate)
    first = clock(1, inner)
    if first[0] > _ELSEWHERE * estimate:  # the processor was another program's meanwhile, maybe for seconds
        first += clock(1, inner)
    if best_ns is not None and min(first) > policy.cut_factor * best_ns:
        return Samples(first, inner, cut=True)
    affordable = int(policy.max_seconds * 1e9 / max(min(first) * inner, 1.0))
    wanted = max(len(first), min(policy.samples, affordable))
    early = min(wanted, _EARLY)
    taken = first + (clock(early - len(first), inner) if early > len(first) else ())
    if len(taken) == _EARLY and best_ns is not None and min(taken) > policy.slow_factor * best_ns:
        return Samples(taken, inner, cut=wanted > early)
    return Samples(taken + (clock(wanted - early, inner) if wanted > early else ()), inner)


def typical(samples: Sequence[float]) -> float:
    """The time that stands for the samples of one kernel: their lower quartile, a measured one.

    Whatever else runs on the machine (another guest on the same core, say) makes a sample longer and never shorter, for
    a part of a second or more: often enough the median of a few samples is one of those.
    """
    return sorted(samples)[(len(samples) - 1) // 4]


def interleave(clocks: list[Clock], policy: SamplingPolicy, rounds: int) -> list[Samples]:
    """One sample of each kernel in turn, every round from another start."""
    inners = [inner_runs(policy, clock(1, max(1, policy.warmup))[0]) for clock in clocks]
    taken: list[list[float]] = [[] for _ in clocks]
    for turn in range(rounds):
        for step in range(len(clocks)):
            which = (turn + step) % len(clocks)
            if not policy.flush_cache:
                clocks[which](1, 1)  # the neighbour's data go, ours come
            taken[which].extend(clocks[which](1, inners[which]))
    return [Samples(tuple(samples), inner) for samples, inner in zip(taken, inners, strict=True)]
