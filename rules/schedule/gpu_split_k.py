"""The rule that cuts the sum of a product in pieces where the result alone has too few tiles for a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from pipeline.ir.expr import Var
from pipeline.ir.target import Target
from pipeline.schedule.nest import block_at
from pipeline.schedule.sketch import Sketch
from pipeline.schedule.steps import Reorder, Rfactor, Split
from rules.schedule.gpu_tensor_product import product_of

TILE = (64, 64)  # rows and columns of a tile that keeps a multiprocessor busy
SHORTEST = 128  # terms of a piece
PIECES = 64


@dataclass(frozen=True, slots=True)
class GpuSplitK:
    """Where a product has fewer tiles than the GPU has multiprocessors, and a long sum, there is another sketch: blocks
    compute the sum in pieces, as many as there is room for, and a second kernel adds them up.

    The pieces are of one length, so the number of terms has to have a suitable divisor. What other rules make of a
    product they make of the pieces, each of which is one of a batch.
    """

    def apply(self, sketch: Sketch, block: str, target: Target) -> list[Sketch]:
        if target.gpu is None:
            return []
        found = product_of(sketch.program, block)
        if found is None:
            return []
        inner, place = block_at(sketch.program, block)
        extents = {axis.var: axis.extent.value for axis in place.axes}
        tiles = prod(extents[loop] for loop in found.batch)
        tiles *= prod(-(-length // side) for length, side in zip(found.lengths, TILE, strict=False))
        plain = {it.binding.name for it in inner.iters if isinstance(it.binding, Var)}
        sums = [loop for loop in found.sums if extents[loop] > 1 and loop in plain]
        if 2 * tiles > target.gpu.multiprocessors or not sums:
            return []
        longest = max(sums, key=lambda loop: extents[loop])
        wanted = min(PIECES, -(-target.gpu.multiprocessors // tiles))
        pieces = most_pieces(extents[longest], found.lengths[2], wanted, SHORTEST)
        if pieces is None:
            return []
        names = (f"{longest}_p", f"{longest}_q")
        made = sketch.apply(Split(longest, (extents[longest] // pieces,), names))
        order = [names[0], *(loop for loop in extents if loop != longest)]
        order.insert(order.index(next(loop for loop in found.sums if loop != longest)) if len(found.sums) > 1 else
                     len(order), names[1])  # fmt: skip
        step = Rfactor(block, names[0], 0)
        made = made.apply(Reorder(tuple(order)))
        if step.why_not(made.program) is not None:
            return []
        return [sketch, made.apply(step)]


def most_pieces(extent: int, terms: int, wanted: int, shortest: int) -> int | None:
    """The most pieces of a loop, not more than wanted, that are of one length and have at least so many of the terms of
    the whole sum."""
    for count in range(min(wanted, extent), 1, -1):
        if extent % count == 0 and terms // count >= shortest:
            return count
    return None
