"""The initial value of a reduction as a block of its own: no code sets one inside a loop that reduces."""

from __future__ import annotations

from pipeline.schedule.nest import block_at
from pipeline.schedule.rewrite import reduce_variables
from pipeline.schedule.sketch import Sketch
from pipeline.schedule.steps import DecomposeReduction


def decomposed(sketch: Sketch, block: str) -> Sketch:
    """The sketch in which the block has no initial value: it is stored before the outermost loop that reduces."""
    found, place = block_at(sketch.program, block)
    if found.combine is None or found.init is None:
        return sketch
    reduced = reduce_variables(found)
    for loop in place.loops:
        if any(axis.var in reduced for axis in loop.axes):
            return sketch.apply(DecomposeReduction(block, loop.axes[0].var))
    # A sum of one term that no loop counts: its place is the innermost loop, where that is all it does.
    return sketch.apply(DecomposeReduction(block, place.loops[-1].axes[0].var)) if place.loops else sketch
