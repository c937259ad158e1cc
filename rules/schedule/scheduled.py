"""What rules ask about a block: whether it is scheduled already, and how wide its vectors are."""

from __future__ import annotations

from pipeline.ir.expr import Var, loads, variables
from pipeline.ir.graph import ITEM_BYTES
from pipeline.ir.program import Block, Iter, Program
from pipeline.ir.target import Target
from pipeline.schedule.nest import Place, find_buffer


def is_scheduled(place: Place) -> bool:
    """Has a rule given one of the loops around it a kind, or fused it?"""
    return any(loop.kind != "serial" or len(loop.axes) > 1 for loop in place.loops)


def loop_of(it: Iter) -> str:
    """The loop that an iteration variable of an untouched block is bound to."""
    assert isinstance(it.binding, Var)
    return it.binding.name


def lanes_of(program: Program, block: Block, target: Target) -> int:
    """Elements of a vector of the block's widest dtype."""
    stored = find_buffer(program, block.buffer)
    sizes = [ITEM_BYTES[load.dtype] for load in loads(block.value)]
    if stored is not None:
        sizes.append(ITEM_BYTES[stored.dtype])
    return target.lanes(max(sizes, default=4))


def is_row_reduction(block: Block) -> bool:
    """Does the reduction read whole rows, contiguous along the reduced axes, and each element once?

    A product is none: one of its operands does not depend on some spatial axis, and is used for each of its values.
    """
    reduced = {it.var for it in block.iters if it.kind == "reduce"}
    spatial = {it.var for it in block.iters if it.kind == "spatial" and it.extent.value != 1}
    found = False
    for load in loads(block.value):
        used = frozenset().union(*(variables(index) for index in load.indices)) if load.indices else frozenset()
        if not used & reduced:
            continue
        found = True
        last = variables(load.indices[-1])
        if not last or not last <= reduced or not spatial <= used:
            return False
    return found
