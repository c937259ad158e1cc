"""The rule that computes whole rows at a time: softmax, normalisation, norms."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from pipeline.ir.expr import Var
from pipeline.ir.poly import Poly
from pipeline.ir.program import Block, blocks
from pipeline.ir.target import Target
from pipeline.schedule.nest import block_at
from pipeline.schedule.sketch import Sketch
from pipeline.schedule.steps import ComputeAt, Fuse, Parallel, Reorder, Rfactor, Split
from pipeline.schedule.variables import Tile
from rules.schedule.innermost import vectorized
from rules.schedule.scheduled import is_row_reduction, is_scheduled, lanes_of


@dataclass(frozen=True, slots=True)
class RowReduction:
    """Reductions along contiguous rows, and what is computed from them, in one loop over the rows.

    Threads share the rows. What is made of a row stays in the cache of its core; reductions and elementwise work are
    vectorized along the row. Where there are fewer rows than threads, a reduction is cut into pieces first, whose
    results are combined at the end.
    """

    def apply(self, sketch: Sketch, block: str, target: Target) -> list[Sketch]:
        program = sketch.program
        every = [found for found in blocks(program) if not block_at(program, found.name)[1].prologue]
        if not every or every[-1].name != block or any(is_scheduled(block_at(program, b.name)[1]) for b in every):
            return []
        reductions = [found for found in every if found.combine is not None]
        if not reductions or not all(found.init is not None and is_row_reduction(found) for found in reductions):
            return []
        ranks = {sum(it.kind == "spatial" for it in found.iters) for found in reductions}
        if len(ranks) != 1 or not all(_plain(found) for found in every):
            return []
        rank = ranks.pop()
        if any(sum(it.kind == "spatial" for it in found.iters) < rank for found in every):
            return []
        rows = prod(it.extent.value for it in every[-1].iters[:rank])
        if rows < target.cores:
            return self._pieces(sketch, reductions, target)
        return self._rows(sketch, every, rank)

    def _rows(self, sketch: Sketch, every: list[Block], rank: int) -> list[Sketch]:
        root = every[-1]
        _, place = block_at(sketch.program, root.name)
        outer = [loop.axes[0].var for loop in place.loops][:rank]
        if len(outer) > 1:
            sketch = sketch.apply(Fuse(tuple(outer)))
        row = outer[0]
        for found in reversed(every[:-1]):
            scope = "local" if found.combine is not None else "shared"
            step = ComputeAt(found.name, row, scope)  # type: ignore[arg-type]
            if step.why_not(sketch.program) is not None:
                return []
            sketch = sketch.apply(step)
        for found in every:
            sketch = vectorized(sketch, found.name, row)
        return [sketch.apply(Parallel(row))]

    def _pieces(self, sketch: Sketch, reductions: list[Block], target: Target) -> list[Sketch]:
        """A reduction of few rows: its outermost loop in pieces, one partial result for each."""
        found = reductions[-1]
        if len(reductions) != 1:
            return []
        block, _ = block_at(sketch.program, found.name)
        reduced = [it for it in block.iters if it.kind == "reduce" and it.extent.value > 1]
        if not reduced or not isinstance(reduced[0].binding, Var):
            return []
        first = reduced[0]
        loop, extent = reduced[0].binding.name, first.extent.value
        lanes = lanes_of(sketch.program, block, target)
        last = first is reduced[-1]
        least = min(lanes if last else 1, extent)
        if extent < 2 * least:
            return []
        symbol = f"t_{loop}_1"
        sketch = sketch.declare(Tile((symbol,), extent, (least,), (max(least, -(-extent // 2)),)))
        sketch = sketch.apply(Split(loop, (Poly.symbol(symbol),), (f"{loop}_0", f"{loop}_1")))
        factor = Rfactor(block.name, f"{loop}_0", 0)
        if factor.why_not(sketch.program) is not None:
            return []
        sketch = sketch.apply(factor)
        partial = f"{block.name}_rf"
        sketch = _outermost(sketch, partial, f"{loop}_0")
        sketch = vectorized(sketch, partial, f"{loop}_0")
        return [sketch.apply(Parallel(f"{loop}_0"))]


def _outermost(sketch: Sketch, block: str, loop: str) -> Sketch:
    """The loop before the others of its nest."""
    _, place = block_at(sketch.program, block)
    names = [found.axes[0].var for found in place.loops]
    return sketch if names[0] == loop else sketch.apply(Reorder((loop, *(n for n in names if n != loop))))


def _plain(block: Block) -> bool:
    return all(isinstance(it.binding, Var) and it.kind != "scan" for it in block.iters) and not block.where
