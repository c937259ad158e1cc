"""How many bytes a region moves from L2 to the multiprocessors and from memory to L2."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipeline.ir.target import Gpu
from pipeline.search.gpu.access import SECTOR, Number
from pipeline.search.gpu.extents import Extents, Numbers
from pipeline.search.gpu.memory import AccessCost
from pipeline.search.gpu.nest import Access, Leaf

USABLE, USABLE_L2 = 0.6, 0.75  # of a cache, before what is read again is pushed out


@dataclass(frozen=True, slots=True)
class Moved:
    """Of one access to global memory.

    to_multiprocessor   bytes that one block of the grid gets from L2, or sends there
    of_block            different bytes that a block touches
    of_all              different bytes that all blocks touch
    varies              per axis of the grid, whether other blocks along it touch other bytes
    """

    access: Access
    to_multiprocessor: Number
    of_block: Number
    of_all: Number
    varies: tuple[bool, ...]

    def of_window(self, lengths: list[Number]) -> Number:
        """Different bytes that so many blocks along each axis of the grid touch together."""
        total = self.of_block
        for length, varies in zip(lengths, self.varies, strict=True):
            if varies:
                total = total * length
        return np.minimum(total, self.of_all)


def moved(leaf: Leaf, cost: AccessCost, extents: Extents, numbers: Numbers, first_level: Number) -> Moved:
    """Of one access of a leaf. first_level: bytes of the first-level cache that one block may count on."""
    access = cost.access
    serial = [span for span in leaf.spans if span.level == "serial"]
    inside = [span.var for span in leaf.spans if span.level not in ("grid", "serial")]
    through: Number = cost.instructions * extents.warps * cost.sectors * SECTOR
    if not access.store:
        # what is read again while the inner loops run is there still, if all of it fits
        for depth in range(len(serial), -1, -1):
            area = footprint(access, [*inside, *(span.var for span in serial[depth:])], extents, numbers)
            times: Number = 1.0
            product: Number = 1.0
            for span in serial[:depth]:
                product = product * extents.by_var[span.var]
                if access.varies(span.var):
                    times = product
            through = np.where(area <= USABLE * first_level, np.minimum(through, area * times), through)
    block = footprint(access, [*inside, *(span.var for span in serial)], extents, numbers)
    whole = footprint(access, [span.var for span in leaf.spans], extents, numbers)
    varies = tuple(access.varies(span.var) for span in leaf.spans if span.level == "grid")
    return Moved(access, through, block, whole, varies)


def footprint(access: Access, running: list[str], extents: Extents, numbers: Numbers) -> Number:
    """Different bytes that an access touches while some loops run, in whole sectors along rows."""
    total: Number = float(access.size)
    for position, (dim, limit) in enumerate(zip(access.dims, access.buffer.shape, strict=True)):
        width: Number = 1.0
        if dim is None:
            for var in running:
                if var in access.scattered:
                    width = width * extents.by_var[var]
        else:
            for var in running:
                coefficient = dim.coefficient(var)
                if coefficient.terms:
                    width = width + np.abs(numbers(coefficient)) * (extents.by_var[var] - 1.0)
        most = numbers(limit)
        width = np.minimum(width, most)
        if position == len(access.dims) - 1:
            width = np.maximum(width, np.minimum(SECTOR / access.size, most))
        total = total * width
    return total


def from_memory(
    parts: list[Moved], grid: list[Number], concurrent: Number, gpu: Gpu, near: frozenset[str]
) -> tuple[Number, Number]:
    """Bytes between memory and L2 of a whole region; and of what its blocks read, the part that is not in L2 yet.

    What blocks along an axis of the grid have in common is read once, if what is touched until the next of them runs
    fits into L2; else once by those of them that run at a time.

    grid         extents of its axes, the last one fastest
    concurrent   blocks of the grid that run at a time
    near         buffers that an earlier region left in L2
    """
    at_once: list[Number] = [1.0] * len(grid)
    left = concurrent
    for position in range(len(grid) - 1, -1, -1):
        at_once[position] = np.minimum(grid[position], left)
        left = np.maximum(1.0, np.ceil(left / np.maximum(grid[position], 1.0)))
    by_buffer: dict[tuple[str, bool], list[Moved]] = {}
    for part in parts:
        by_buffer.setdefault((part.access.buffer.name, part.access.store), []).append(part)
    again: list[Number] = []

    def fits(window: list[Number]) -> Number:
        touched: Number = 0.0
        for same in by_buffer.values():
            touched = touched + _most([part.of_window(window) for part in same])
        return touched <= USABLE_L2 * gpu.l2_bytes

    for position in range(len(grid)):
        window = at_once[: position + 1] + grid[position + 1 :]
        again.append(np.where(fits(window), 1.0, np.ceil(grid[position] / at_once[position])))
    stays = fits(at_once)
    total: Number = 0.0
    fresh: Number = 0.0
    asked: Number = 0.0
    blocks: Number = 1.0
    for extent in grid:
        blocks = blocks * extent
    for (name, store), same in by_buffer.items():
        amounts = []
        for part in same:
            amount = part.of_all
            if not store:
                for times, varies in zip(again, part.varies, strict=True):
                    amount = amount if varies else amount * times
                asked = asked + part.to_multiprocessor * blocks
            amounts.append(amount)
        if store:
            total = total + _most(amounts)
        elif name not in near:
            # blocks that read the same again, in another loop, find it if that much fits
            some = np.where(stays, _most(amounts), sum(amounts, 0.0))
            total, fresh = total + some, fresh + some
    return total, np.minimum(1.0, fresh / np.maximum(asked, 1.0))


def _most(values: list[Number]) -> Number:
    best = values[0]
    for value in values[1:]:
        best = np.maximum(best, value)
    return best
