"""How times that overlap add up, and how long a block waits for memory while nothing else is left to do."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pipeline.ir.target import Gpu
from pipeline.search.gpu.access import Number
from pipeline.search.gpu.extents import Extents, Numbers
from pipeline.search.gpu.memory import AccessCost
from pipeline.search.gpu.nest import Leaf, Region
from pipeline.search.gpu.units import UNROLLED_BY_COMPILER, Busy

IN_FLIGHT = 16.0  # loads of one thread that are under way at once
DEVICE_ORDER = 4.0  # of the norm by which the times of a multiprocessor and of memory add up, or of blocks and a path


def together(times: Sequence[Number], order: Number) -> Number:
    """The norm of times that overlap: at least the longest, and at most the sum."""
    longest: Number = 0.0
    for time in times:
        longest = np.maximum(longest, time)
    total: Number = 0.0
    for time in times:
        total = total + (time / np.maximum(longest, 1e-30)) ** order
    return longest * np.maximum(total, 1.0) ** (1.0 / order)


def rounds(block: Number, path: Number, busiest: Number, blocks: Number) -> Number:
    """Cycles of the multiprocessor with the most blocks: full rounds of resident ones, and the last."""
    full = np.floor(busiest / blocks)
    left = busiest - full * blocks
    last = np.where(left > 0, together([left * block, path], DEVICE_ORDER), 0.0)
    return full * together([blocks * block, path], DEVICE_ORDER) + last


def waits(costs: list[AccessCost], extents: Extents) -> Number:
    """How often a warp waits for loads from global memory: those of an iteration are under way together."""
    group = np.maximum(extents.unrolled * 1.0, np.minimum(UNROLLED_BY_COMPILER, extents.serial))
    most: Number = 0.0
    for cost in costs:
        if cost.is_global and not cost.access.store:
            most = np.maximum(most, np.ceil(cost.instructions / np.minimum(IN_FLIGHT, group)))
    return most


def exposed(
    region: Region, parts: list[Busy], latency: Number, path: Number, block: Number, at_once: Number,
    numbers: Numbers, gpu: Gpu,
) -> Number:  # fmt: skip
    """Cycles that a block waits for the copies of its pipelines.

    path, block   cycles of the whole block without those, when it is alone, and of all that run at once
    """
    loops: dict[tuple[str, ...], tuple[Leaf, Number]] = {}
    for leaf, part in zip(region.leaves, parts, strict=True):
        if leaf.copy and leaf.pipeline is not None:
            key = tuple(span.var for span in leaf.spans[: leaf.pipelined])
            loops[key] = (leaf, loops[key][1] + part.units["l2"] if key in loops else part.units["l2"])
    total: Number = 0.0
    for leaf, moving in loops.values():
        assert leaf.pipeline is not None
        iterations: Number = 1.0
        for span in leaf.spans[: leaf.pipelined]:
            if span.level in ("serial", "unrolled"):
                iterations = iterations * numbers(span.extent)
        stages = numbers(leaf.pipeline) if gpu.capability >= 80 else np.minimum(numbers(leaf.pipeline), 2.0)
        needed = latency + moving / iterations * at_once
        ahead = np.maximum(path, block) / iterations * (stages - 1.0)
        total = total + needed + iterations * np.maximum(0.0, needed - ahead)
    return total
