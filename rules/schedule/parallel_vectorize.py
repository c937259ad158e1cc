"""The rule that shares out and vectorizes what no other rule has touched: every task has a decent program."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.ir.expr import Var, affine
from pipeline.ir.poly import Poly
from pipeline.ir.program import Block, Iter
from pipeline.ir.target import Target
from pipeline.schedule.nest import Place, block_at, loads_of, loop_at, over_loops
from pipeline.schedule.sketch import Sketch
from pipeline.schedule.steps import DecomposeReduction, Fuse, Parallel, Reorder, Split, Vectorize
from pipeline.schedule.variables import Tile
from rules.schedule.scheduled import is_scheduled, lanes_of, loop_of

LONGEST = 4096  # elements of one vectorized piece


@dataclass(frozen=True, slots=True)
class ParallelVectorize:
    """Threads share the outer spatial loops; the spatial loop along which memory is contiguous is vectorized.

    A reduction gets its initial value as a block of its own. One long loop is split in two, by a parameter.
    """

    def apply(self, sketch: Sketch, block: str, target: Target) -> list[Sketch]:
        found, place = block_at(sketch.program, block)
        if is_scheduled(place) or place.prologue or not place.loops:
            return []
        alone = place.loops[0] is place.root and len(place.path) == len(place.loops)
        if not alone or not all(isinstance(it.binding, Var) for it in found.iters):
            return [self._decomposed(sketch, found, place)]
        spatial = [it for it in found.iters if it.kind == "spatial"]
        others = [it for it in found.iters if it.kind != "spatial"]
        vector = _contiguous(found, spatial)
        lanes = lanes_of(sketch.program, found, target)
        outer = [loop_of(it) for it in spatial if it is not vector]
        inner = [loop_of(vector)] if vector is not None else []
        order = (*outer, *(loop_of(it) for it in others), *inner)
        if len(order) > 1:
            sketch = sketch.attempt(Reorder(order))
        if vector is not None:
            sketch, outer = _split_long(sketch, vector, outer, lanes, target)
            sketch = sketch.attempt(Vectorize(inner[0] if not outer or inner[0] not in outer else f"{inner[0]}_1"))
        if found.combine is not None and found.init is not None:
            first = next(loop_of(it) for it in others) if others else None
            if first is not None:
                sketch = sketch.apply(DecomposeReduction(block, first))
        if not outer:
            return [sketch]
        outer = [f"{loop}_0" if vector is not None and loop == inner[0] else loop for loop in outer]
        if len(outer) > 1:
            sketch = sketch.attempt(Fuse(tuple(outer)))
        return [sketch.attempt(Parallel(outer[0]))]

    def _decomposed(self, sketch: Sketch, block: Block, place: Place) -> Sketch:
        """A nest with more than one block in it is left as it is, but for initial values."""
        if block.combine is None or block.init is None:
            return sketch
        reduced = {v for it in block.iters if it.kind == "reduce" for v in _variables(it)}
        for loop in place.loops:
            if any(axis.var in reduced for axis in loop.axes):
                return sketch.apply(DecomposeReduction(block.name, loop.axes[0].var))
        return sketch


def _split_long(sketch: Sketch, vector: Iter, outer: list[str], lanes: int, target: Target) -> tuple[Sketch, list[str]]:
    """A vectorized loop that is all there is to share out, or that is very long, in pieces."""
    loop, extent = loop_of(vector), vector.extent.value
    shared = 1
    for name in outer:
        shared *= loop_at(sketch.program, name)[0].axes[0].extent.value
    if extent <= LONGEST and (shared >= 2 * target.cores or extent < 8 * lanes):
        return sketch, outer
    symbol = f"t_{loop}_1"
    width = min(lanes, extent)
    most = max(width, min(LONGEST, extent))
    sketch = sketch.declare(Tile((symbol,), extent, (width,), (most,)))
    return sketch.apply(Split(loop, (Poly.symbol(symbol),), (f"{loop}_0", f"{loop}_1"))), [*outer, loop]


def _contiguous(block: Block, spatial: list[Iter]) -> Iter | None:
    """The spatial iteration along which the store, and as many loads as can be, step by one element."""
    best: tuple[float, Iter] | None = None
    for it in spatial:
        loop = loop_of(it)
        if it.extent.value < 2:
            continue
        score = 2.0 * _step(block, block.indices, loop)
        for load in loads_of(block):
            score += _step(block, load.indices, loop)
        score += 0.01 if best is None or it.extent.value > 1 else 0.0
        if score > 0 and (best is None or score >= best[0]):
            best = (score, it)
    return best[1] if best else None


def _step(block: Block, indices: tuple[object, ...], loop: str) -> float:
    """1 where lanes along the loop are neighbours in memory, 0.2 where they are one element, -1 where far apart."""
    forms = [affine(over_loops(block, index)) for index in indices]  # type: ignore[arg-type]
    if any(form is None for form in forms):
        return -0.5
    moving = [d for d, form in enumerate(forms) if form is not None and form.coefficient(loop).terms]
    if not moving:
        return 0.2
    last = forms[-1]
    unit = moving == [len(forms) - 1] and last is not None and last.coefficient(loop) == Poly.of(1)
    return 1.0 if unit else -1.0


def _variables(it: Iter) -> list[str]:
    form = affine(it.binding)
    return [] if form is None else [name for name, _ in form.terms]
