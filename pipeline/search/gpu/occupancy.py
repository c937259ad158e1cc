"""What a block of the grid takes of a multiprocessor, and so how many are resident at a time."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from pipeline.ir.graph import ITEM_BYTES
from pipeline.ir.poly import product
from pipeline.ir.target import Gpu
from pipeline.search.gpu.access import LANES, Number
from pipeline.search.gpu.extents import Extents, Numbers
from pipeline.search.gpu.nest import Leaf, Placed, Region

# Registers of a thread, fitted to what the compiler says of sampled products: for indices and counters, with shared
# memory, for the address of a buffer in global memory; and of what a buffer holds, as neighbouring iterations overlap.
BASE_REGISTERS, SHARED_REGISTERS, POINTER, OVERLAP = 12.0, 8.0, 2.0, 1.1
HELD, PASSING = 64.0, 8.0  # registers that loaded values take at most; on the way to a place that they keep
GRANULE, WARP_GRANULE = 8.0, 256.0  # registers are handed out in such steps, to a thread and to a warp
SHARED_GRANULE, ALIGNMENT = 128.0, 128.0  # of a block's shared memory, and of each buffer in it


@dataclass(frozen=True, slots=True)
class Resident:
    """Of a region.

    threads, warps   of one block of the grid
    registers        of one thread, as it would like them; more than there may be are spilled
    spilled          registers of one thread that find no place
    shared           bytes of one block
    blocks           that are resident on a multiprocessor; at least 1
    legal            whether a block can run at all
    """

    threads: Number
    warps: Number
    registers: Number
    spilled: Number
    shared: Number
    blocks: Number
    legal: Number


def resident(region: Region, extents: list[Extents], width: Number, numbers: Numbers, gpu: Gpu) -> Resident:
    """Of a region whose leaves have those extents. width: threads along x."""
    high: Number = 1.0
    for each in extents:
        high = np.maximum(high, each.y)
    threads = width * high
    shared: Number = 0.0
    registers: Number = 0.0
    for leaf, each in zip(region.leaves, extents, strict=True):
        shared = np.maximum(shared, _shared(leaf, numbers, gpu))
        registers = np.maximum(registers, _private(leaf, numbers) + _temporaries(leaf, each, numbers, gpu))
    pointers = len({a.buffer.name for leaf in region.leaves for a in leaf.accesses if a.buffer.scope == "global"})
    registers = registers * OVERLAP + BASE_REGISTERS + np.where(shared > 0, SHARED_REGISTERS, 0.0) + POINTER * pointers
    return settled(threads, registers, shared, gpu)


def settled(threads: Number, registers: Number, shared: Number, gpu: Gpu) -> Resident:
    """What follows from the three."""
    warps = np.ceil(threads / LANES)
    # the compiler keeps within what lets one block run
    most = np.minimum(
        gpu.registers_per_thread, np.floor(gpu.registers / np.maximum(warps * LANES, 1.0) / GRANULE) * GRANULE
    )
    spilled = np.maximum(0.0, registers - most)
    taken = np.ceil(np.minimum(registers, most) / GRANULE) * GRANULE
    per_warp = np.ceil(taken * LANES / WARP_GRANULE) * WARP_GRANULE
    of_shared = np.ceil((shared + gpu.shared_reserved) / SHARED_GRANULE) * SHARED_GRANULE
    blocks = np.minimum(float(gpu.blocks), np.floor(gpu.threads / (warps * LANES)))
    blocks = np.minimum(blocks, np.floor(gpu.registers / np.maximum(warps * per_warp, 1.0)))
    blocks = np.minimum(
        blocks, np.where(shared > 0, np.floor(gpu.shared_bytes / np.maximum(of_shared, 1.0)), gpu.blocks)
    )
    legal = (threads <= gpu.threads_per_block) & (shared <= gpu.shared_per_block)
    return Resident(threads, warps, registers, spilled, shared, np.maximum(blocks, 1.0), legal)


def with_registers(found: Resident, registers: float, spilled_bytes: float, gpu: Gpu) -> Resident:
    """The same with the numbers of registers and of spilled bytes that the compiler says."""
    again = settled(found.threads, np.asarray(float(registers)), found.shared, gpu)
    return replace(again, spilled=np.asarray(spilled_bytes / 4.0))


def _shared(leaf: Leaf, numbers: Numbers, gpu: Gpu) -> Number:
    total: Number = 0.0
    for placed in leaf.around:
        if placed.buffer.scope == "shared":
            one = np.ceil(_bytes(placed, numbers) / ALIGNMENT) * ALIGNMENT
            total = total + one * stages(placed, numbers, gpu)
    return total


def stages(placed: Placed, numbers: Numbers, gpu: Gpu) -> Number:
    """Copies of a buffer that are there; without asynchronous copies two are the most."""
    wanted = np.minimum(numbers(placed.stages), np.maximum(numbers(placed.iterations), 1.0))
    return wanted if gpu.capability >= 80 else np.minimum(wanted, 2.0)


def _bytes(placed: Placed, numbers: Numbers) -> Number:
    shape = placed.buffer.shape
    rows = numbers(product(list(shape[:-1])))
    row = numbers(shape[-1]) if shape else 1.0
    return rows * (row + numbers(placed.buffer.pad)) * ITEM_BYTES[placed.buffer.dtype]


def _private(leaf: Leaf, numbers: Numbers) -> Number:
    """Registers of the buffers that a thread, or a warp, has to itself."""
    total: Number = 0.0
    for placed in leaf.around:
        buffer = placed.buffer
        if buffer.scope == "local":
            total = total + numbers(product(list(buffer.shape))) * max(1.0, ITEM_BYTES[buffer.dtype] / 4.0)
        elif buffer.scope == "fragment":
            elements = numbers(product(list(buffer.shape)))
            tile = len(buffer.shape) >= 2 and buffer.shape[-1].is_constant and buffer.shape[-1].value > 1
            # a tile is spread over the lanes; of a column of sums every fourth lane has the same
            share = LANES if tile else LANES / 4.0
            total = total + np.ceil(elements * ITEM_BYTES[buffer.dtype] / 4.0 / share)
    return total


def _temporaries(leaf: Leaf, extents: Extents, numbers: Numbers, gpu: Gpu) -> Number:
    """Registers of what is loaded and waits to be used."""
    if leaf.unit is not None:
        return 4.0
    if leaf.copy and leaf.pipeline is not None and gpu.capability >= 80:
        return 2.0
    total: Number = 0.0
    for access in leaf.accesses:
        if access.store or access.buffer.scope in ("local", "fragment"):
            continue
        held: Number = 1.0
        for span in leaf.spans:
            if span.level in ("unrolled", "vectorized") and access.varies(span.var) and span.var not in leaf.reduces:
                held = held * extents.by_var[span.var]
        total = total + held * max(access.size, 4.0) / 4.0
    kept = leaf.accesses[0].buffer.scope == "local" and not leaf.chain
    return np.minimum(total, PASSING if kept else HELD)
