"""The step that stores an intermediate buffer in another layout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pipeline.ir.expr import Affine, Const, Expr, affine, floordiv, from_affine, mod
from pipeline.ir.poly import Poly
from pipeline.ir.program import Block, Program
from pipeline.ir.region import at_least, interval
from pipeline.schedule.nest import (
    affine_over_loops,
    all_blocks,
    extents,
    find_buffer,
    loads_of,
    map_allocs,
    map_program_blocks,
    no_buffer,
    reads,
)
from pipeline.schedule.rewrite import over_iters, with_loads, without_idle


@dataclass(frozen=True, slots=True)
class TransformLayout:
    """Store an intermediate buffer with its dimensions split and in another order.

    buffer   its name
    tiles    for each dimension the extent of its inner part; 1 leaves it whole
    order    of the parts: first the (outer) dimensions 0 to rank - 1, then the inner part of each split dimension, in
             order of the dimension

    Every access: T[n, c, h]  ->  T[n, c // 8, h, c % 8]      with tiles (1, 8, 1) and order (0, 1, 2, 3)

    Legal when the buffer is an intermediate (or packed), of whatever scope, and the tiles divide what is not a number.
    """

    buffer: str
    tiles: tuple[int, ...]
    order: tuple[int, ...]

    def why_not(self, program: Program) -> str | None:
        found = find_buffer(program, self.buffer)
        if found is None:
            return no_buffer(program, self.buffer)
        if found.role not in ("intermediate", "packed"):
            return f"{self.buffer} is {found.scope} and {found.role}: its layout is not ours to choose"
        if len(self.tiles) != len(found.shape):
            return f"{len(self.tiles)} tiles are given, but {self.buffer} has {len(found.shape)} dimensions"
        if any(tile < 1 for tile in self.tiles):
            return f"a tile is below 1 in {self.tiles}"
        parts = len(self.tiles) + sum(tile > 1 for tile in self.tiles)
        if sorted(self.order) != list(range(parts)):
            return f"the order {self.order} does not name each of the parts 0 to {parts - 1} once"
        for extent, tile in zip(found.shape, self.tiles, strict=True):
            if tile > 1 and not extent.is_constant and extent.quotient(Poly.of(tile)) is None:
                return f"the extent {extent} is not known to be a multiple of {tile}"
        return None

    def apply(self, program: Program) -> Program:
        found = find_buffer(program, self.buffer)
        assert found is not None
        outer = [_parts(extent, tile) for extent, tile in zip(found.shape, self.tiles, strict=True)]
        sizes = (*outer, *(Poly.of(tile) for tile in self.tiles if tile > 1))
        target = replace(found, shape=tuple(sizes[part] for part in self.order))

        around = {block.name: extents(place.axes) for block, place in all_blocks(program)}

        def moved(block: Block, indices: tuple[Expr, ...]) -> tuple[Block, tuple[Expr, ...]]:
            """The new indices, and the block that has the iterations they are over."""
            mine = {it.var: it.extent for it in block.iters}
            pairs: list[tuple[Expr, Expr]] = []
            for index, tile in zip(indices, self.tiles, strict=True):
                pair = _parted(affine(index), tile, mine)
                if pair is None:  # what one iteration hides, the loops behind it may tell
                    over = _parted(affine_over_loops(block, index), tile, around[block.name])
                    if over is not None:
                        block, (high, low) = over_iters(block, over, around[block.name])
                        pair = (high, low)
                pairs.append(pair or (floordiv(index, tile), mod(index, tile)))
            inner = [low for (_, low), tile in zip(pairs, self.tiles, strict=True) if tile > 1]
            parts = (*(high for high, _ in pairs), *inner)
            return block, tuple(parts[part] for part in self.order)

        def visit(block: Block) -> Block:
            if self.buffer not in {block.buffer, *reads(block)}:
                return block
            new, stored = moved(block, block.indices) if block.buffer == self.buffer else (block, block.indices)
            at: dict[tuple[Expr, ...], tuple[Expr, ...]] = {}
            for load in loads_of(block):
                if load.buffer == self.buffer and load.indices not in at:
                    new, at[load.indices] = moved(new, load.indices)
            new = with_loads(new, self.buffer, lambda load: replace(load, indices=at[load.indices]))
            new = replace(new, indices=stored) if block.buffer == self.buffer else new
            return new if new.iters == block.iters else without_idle(new, around[block.name], program.derived)

        program = map_program_blocks(program, visit)
        if found.scope == "global":
            return replace(program, buffers=tuple(target if b.name == self.buffer else b for b in program.buffers))
        return map_allocs(program, self.buffer, lambda _: target)


def _parts(extent: Poly, tile: int) -> Poly:
    """ceil(extent / tile)."""
    if extent.is_constant:
        return Poly.of(-(-extent.value // tile))
    whole = extent.quotient(Poly.of(tile))
    assert whole is not None
    return whole


def _parted(form: Affine | None, tile: int, ranges: Mapping[str, Poly]) -> tuple[Expr, Expr] | None:
    """index // tile and index % tile, without a remainder of what is known to stay below the tile; None where a
    division is needed."""
    if form is None or tile == 1:
        return None if form is None else (from_affine(form), Const(0))
    whole = [(name, c.quotient(Poly.of(tile))) for name, c in form.terms]
    low = Affine(tuple(t for t, (_, q) in zip(form.terms, whole, strict=True) if q is None), form.constant)
    span = interval(low, ranges) if all(name in ranges for name, _ in low.terms) else None
    inside = span is not None and at_least(span[0].constant, Poly.of(0))
    if not inside or span is None or not at_least(Poly.of(tile), span[0].constant + span[1]):
        return None
    high = Affine(tuple((name, q) for name, q in whole if q is not None), Poly.of(0))
    return from_affine(high), from_affine(low)
