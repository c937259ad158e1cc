"""The rule that cuts long rows in pieces where there are too few rows for a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from pipeline.ir.expr import Var
from pipeline.ir.target import Target
from pipeline.schedule.nest import block_at
from pipeline.schedule.sketch import Sketch
from pipeline.schedule.steps import Reorder, Rfactor, Split
from rules.schedule.gpu_split_k import most_pieces
from rules.schedule.scheduled import is_row_reduction, is_scheduled, loop_of

SHORTEST = 1024  # terms of a piece
PIECES = 256


@dataclass(frozen=True, slots=True)
class GpuRowPieces:
    """Where fewer rows are reduced than the GPU has multiprocessors, and they are long, there is another sketch: blocks
    reduce them in pieces of one length, and a second kernel combines those.

    The number of terms of the outermost reduced loop has to have a suitable divisor.
    """

    def apply(self, sketch: Sketch, block: str, target: Target) -> list[Sketch]:
        if target.gpu is None:
            return []
        found, place = block_at(sketch.program, block)
        if found.combine is None or found.init is None or place.prologue or is_scheduled(place):
            return []
        if not is_row_reduction(found) or len(place.path) != len(place.loops):
            return []
        if not all(isinstance(it.binding, Var) and it.kind != "scan" for it in found.iters):
            return []
        rows = prod(it.extent.value for it in found.iters if it.kind == "spatial")
        reduced = [it for it in found.iters if it.kind == "reduce" and it.extent.value > 1]
        terms = prod(it.extent.value for it in reduced)
        if 2 * rows > target.gpu.multiprocessors or terms < 2 * SHORTEST:
            return []
        first = reduced[0]
        loop, extent = loop_of(first), first.extent.value
        pieces = most_pieces(extent, terms, min(PIECES, -(-2 * target.gpu.multiprocessors // rows)), SHORTEST)
        if pieces is None:
            return []
        parts = (f"{loop}_p", f"{loop}_q")
        made = sketch.apply(Split(loop, (extent // pieces,), parts))
        names = [other.axes[0].var for other in block_at(made.program, block)[1].loops]
        spatial = [loop_of(it) for it in found.iters if it.kind == "spatial"]
        rest = [name for name in names if name not in spatial and name != parts[0]]
        order = (*spatial, parts[0], *rest)
        made = made.apply(Reorder(order)) if list(order) != names else made
        step = Rfactor(block, parts[0], len(spatial))
        return [sketch, made.apply(step)] if step.why_not(made.program) is None else []
