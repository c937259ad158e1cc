"""The rule that tiles a copy which reads along one loop and stores along another, so that it is turned in registers."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.ir.expr import Expr, Var, affine, loads
from pipeline.ir.poly import Poly
from pipeline.ir.program import Axis, Block
from pipeline.ir.target import Target
from pipeline.schedule.nest import block_at, over_loops
from pipeline.schedule.sketch import Sketch
from pipeline.schedule.steps import Fuse, Parallel, Reorder, Split, Vectorize
from pipeline.schedule.variables import Tile
from rules.schedule.inside_nest import own_loops
from rules.schedule.scheduled import is_scheduled, lanes_of

LEAST = 4  # iterations of either loop: what is smaller is gathered
LARGEST = 16  # vectors along a side of a tile


@dataclass(frozen=True, slots=True)
class Transpose:
    """Threads share tiles of a copy from rows to columns; in each, lanes run along what is stored in a row, and the
    loop right around them along what is read in a row.

    The code generator turns such a nest in registers, square by square, where lanes alone would have to gather. The
    sides of the tile are parameters; a side that is no longer than a vector stays whole. A copy that shares its nest
    with other blocks gets the order of its loops and the lanes only.
    """

    def apply(self, sketch: Sketch, block: str, target: Target) -> list[Sketch]:
        found, place = block_at(sketch.program, block)
        if found.combine is not None or place.prologue or any(it.kind != "spatial" for it in found.iters):
            return []
        own = own_loops(sketch.program, block)
        alone = bool(place.loops) and place.loops[0] is place.root and len(place.path) == len(place.loops)
        if own is None and (is_scheduled(place) or not alone):
            return []
        axes = [loop.axes[0] for loop in own or place.loops]
        sides = sides_of(found, axes)
        if sides is None:
            return []
        row, lane = sides
        others = tuple(axis.var for axis in axes if axis not in sides)
        if own is not None:
            made = turned(sketch, (*others, row.var, lane.var))
            return [] if made is None else [made]
        if not all(isinstance(it.binding, Var) for it in found.iters):
            return []
        lanes = lanes_of(sketch.program, found, target)
        sketch, rows = _cut(sketch, row, lanes)
        sketch, columns = _cut(sketch, lane, lanes)
        outer = (*others, *rows[:-1], *columns[:-1])
        made = turned(sketch, (*outer, rows[-1], columns[-1]))
        if made is None:
            return []
        made = made.apply(Fuse(outer)) if len(outer) > 1 else made
        return [made.apply(Parallel(outer[0])) if outer else made]


def turned(sketch: Sketch, order: tuple[str, ...]) -> Sketch | None:
    """The loops in that order, lanes along the last one; None where that is not legal."""
    step, lanes = Reorder(order), Vectorize(order[-1])
    if step.why_not(sketch.program) is not None:
        return None
    sketch = sketch.apply(step)
    return sketch.apply(lanes) if lanes.why_not(sketch.program) is None else None


def _cut(sketch: Sketch, axis: Axis, lanes: int) -> tuple[Sketch, tuple[str, ...]]:
    """A loop of more than a vector in two."""
    loop, extent = axis.var, axis.extent.value
    if extent <= lanes:
        return sketch, (loop,)
    symbol, names = f"t_{loop}_1", (f"{loop}_0", f"{loop}_1")
    most = min(LARGEST * lanes, -(-extent // lanes) * lanes)
    sketch = sketch.declare(Tile((symbol,), extent, (lanes,), (most,)))
    return sketch.apply(Split(loop, (Poly.symbol(symbol),), names)), names


def sides_of(block: Block, axes: list[Axis]) -> tuple[Axis, Axis] | None:
    """The loops along which some load, and along which the store, steps by one element; not the same one."""
    long = [axis for axis in axes if not axis.extent.is_constant or axis.extent.value >= LEAST]
    for lane in long:
        if _step(block, block.indices, lane.var) != 1:
            continue
        for load in loads(block.value):
            if _step(block, load.indices, lane.var) != 2:
                continue
            for row in long:
                if row is not lane and _step(block, load.indices, row.var) == 1:
                    return row, lane
    return None


def _step(block: Block, indices: tuple[Expr, ...], loop: str) -> int:
    """0 where an access does not move along a loop, 1 where it steps by one element, 2 elsewhere."""
    forms = [affine(over_loops(block, index)) for index in indices]
    moving = [d for d, form in enumerate(forms) if form is None or form.coefficient(loop).terms]
    last = forms[-1] if forms else None
    if moving == [len(forms) - 1] and last is not None and last.coefficient(loop) == Poly.of(1):
        return 1
    return 2 if moving else 0
