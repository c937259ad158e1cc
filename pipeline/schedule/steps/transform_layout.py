"""The step that stores an intermediate buffer in another layout."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pipeline.ir.expr import Affine, Expr, Load, affine, floordiv, from_affine, mod
from pipeline.ir.poly import Poly
from pipeline.ir.program import Alloc, Block, Program, Seq, Stmt, map_statements
from pipeline.ir.region import at_least, interval
from pipeline.schedule.nest import find_buffer, map_program_blocks, no_buffer, reads
from pipeline.schedule.rewrite import with_loads


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

        def moved(block: Block, indices: tuple[Expr, ...]) -> tuple[Expr, ...]:
            ranges = {it.var: it.extent for it in block.iters}
            pairs = [_split(index, tile, ranges) for index, tile in zip(indices, self.tiles, strict=True)]
            inner = [low for (_, low), tile in zip(pairs, self.tiles, strict=True) if tile > 1]
            parts = (*(high for high, _ in pairs), *inner)
            return tuple(parts[part] for part in self.order)

        def visit(block: Block) -> Block:
            def loaded(load: Load) -> Load:
                return replace(load, indices=moved(block, load.indices))

            new = with_loads(block, self.buffer, loaded) if self.buffer in reads(block) else block
            return replace(new, indices=moved(block, block.indices)) if block.buffer == self.buffer else new

        def kept(stmt: Stmt) -> Stmt:
            if isinstance(stmt, Alloc) and stmt.buffer.name == self.buffer:
                return replace(stmt, buffer=target)
            return map_statements(stmt, kept)

        program = map_program_blocks(program, visit)
        if found.scope == "global":
            return replace(program, buffers=tuple(target if b.name == self.buffer else b for b in program.buffers))
        body, prologue = kept(program.body), kept(program.prologue)
        assert isinstance(body, Seq) and isinstance(prologue, Seq)
        return replace(program, body=body, prologue=prologue)


def _parts(extent: Poly, tile: int) -> Poly:
    """ceil(extent / tile)."""
    if extent.is_constant:
        return Poly.of(-(-extent.value // tile))
    whole = extent.quotient(Poly.of(tile))
    assert whole is not None
    return whole


def _split(index: Expr, tile: int, ranges: dict[str, Poly]) -> tuple[Expr, Expr]:
    """index // tile and index % tile, without a remainder of what is known to stay below the tile."""
    form = affine(index)
    if form is not None and tile > 1:
        whole = [(name, c.quotient(Poly.of(tile))) for name, c in form.terms]
        low = Affine(tuple(t for t, (_, q) in zip(form.terms, whole, strict=True) if q is None), form.constant)
        span = interval(low, ranges) if all(name in ranges for name, _ in low.terms) else None
        inside = span is not None and at_least(span[0].constant, Poly.of(0))
        if inside and span is not None and at_least(Poly.of(tile), span[0].constant + span[1]):
            high = Affine(tuple((name, q) for name, q in whole if q is not None), Poly.of(0))
            return from_affine(high), from_affine(low)
    return floordiv(index, tile), mod(index, tile)
