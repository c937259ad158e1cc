"""What rules ask about a product: which operands come from memory, and does reading one take longer than computing."""

from __future__ import annotations

from collections.abc import Collection
from math import log, prod

from pipeline.ir.expr import loads, variables
from pipeline.ir.graph import ITEM_BYTES
from pipeline.ir.program import Block, Program
from pipeline.ir.target import Target
from pipeline.schedule.nest import find_buffer

STREAMED = 1.5  # operations per byte, in those that the machine can do while it reads one


def streams(block: Block, lanes: Collection[str], target: Target) -> bool:
    """Is the operand along the lanes, loops of the block, used for so few rows that memory sets the pace?"""
    moving = {it.var for it in block.iters if variables(it.binding) & set(lanes)}
    for load in loads(block.value):
        used = frozenset().union(*(variables(index) for index in load.indices)) if load.indices else frozenset()
        if not used & moving:
            continue
        inside = {name for it in block.iters if it.var in used for name in variables(it.binding)}
        rows: dict[frozenset[str], int] = {}  # a dimension may have two iterations: in a tile and in the whole tensor
        for it in block.iters:
            mine = variables(it.binding)
            if it.kind == "spatial" and it.extent.is_constant and it.var not in moving and not mine & inside:
                rows[mine] = max(rows.get(mine, 1), it.extent.value)
        reuse = prod(rows.values())
        return 2 * reuse / ITEM_BYTES[load.dtype] < STREAMED * balance(target)
    return False


def balance(target: Target) -> float:
    """Operations that the machine can do while it reads a byte, as a power of four: both are measured with some noise,
    and a structure that is offered in one run and not in the next would be tuned anew."""
    return float(4 ** round(log(max(target.peak_gflops() / target.bandwidth_gbs, 1.0), 4)))


def large(program: Program, buffer: str, target: Target) -> bool:
    """Is it known at compile time, and so large that in a model it comes from memory in each call?"""
    known = find_buffer(program, buffer)
    if known is None or known.role != "constant" or not all(extent.is_constant for extent in known.shape):
        return False
    return prod(extent.value for extent in known.shape) * ITEM_BYTES[known.dtype] > target.core_cache
