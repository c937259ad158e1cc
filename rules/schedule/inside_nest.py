"""What rules ask about a block that shares its nest with others: the loops that are its own."""

from __future__ import annotations

from pipeline.ir.poly import Poly
from pipeline.ir.program import Loop, Program
from pipeline.schedule.nest import block_at, blocks_in
from pipeline.schedule.sketch import Sketch


def own_loops(program: Program, block: str) -> tuple[Loop, ...] | None:
    """The loops around nothing but the block, outermost first, where it stands with other blocks inside a parallel
    loop and none of its own loops is scheduled yet; None elsewhere."""
    found, place = block_at(program, block)
    if place.prologue or not place.loops or place.loops[0].kind != "parallel":
        return None
    own = tuple(loop for loop in place.loops if blocks_in(loop) == [found])
    if len(own) == len(place.loops) or any(loop.kind != "serial" or len(loop.axes) != 1 for loop in own):
        return None
    return own


def around_own(program: Program, block: str, own: tuple[Loop, ...]) -> tuple[Loop, ...]:
    """The loops around the block's own, the innermost last."""
    _, place = block_at(program, block)
    return place.loops[: len(place.loops) - len(own)]


def register_symbol(sketch: Sketch, extent: Poly) -> str | None:
    """Of an extent that is a product of the inner factors of a tile, the last of those factors."""
    symbols = extent.symbols()
    for variable in sketch.variables:
        if symbols and symbols <= set(variable.symbols) and variable.symbols[-1] in symbols:
            return variable.symbols[-1]
    return None
