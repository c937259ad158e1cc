"""Blocks of rows: statements that run over the same rows, a block of rows through all of them before the next one.

What the statements hand on to each other then holds a block of rows instead of all, and stays in the first cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from pipeline.ir.expr import Affine, Expr, Var, affine, from_affine, substitute, variables
from pipeline.ir.poly import Poly
from pipeline.ir.program import Alloc, Block, Buffer, Iter, Loop, Stmt, map_statements, sequence, walk
from pipeline.ir.program import Axis as LoopAxis
from pipeline.schedule.nest import loads_of
from pipeline.schedule.rewrite import map_loads


@dataclass(slots=True)
class RowBlocks:
    """The rows of a tile in blocks.

    axis    the loop variable of the grid axis that cuts the rows
    tile    rows of a tile
    block   rows of a block, of which a tile holds a whole number
    count   blocks of a tile
    """

    axis: str
    tile: Poly
    block: Poly
    count: Poly
    runs: int = 0
    where: dict[str, set[int]] = field(default_factory=dict)  # buffer -> the runs that use it; 0: what is in none

    def fused(self, statements: Sequence[Stmt]) -> list[Stmt]:
        """Those over the rows in one loop over the blocks of rows, after those that are not, where the order lets them;
        else as they are."""
        rows: list[Stmt] = []
        others: list[Stmt] = []
        free = True
        for stmt in statements:
            if self.row_loop(stmt) is not None:
                rows.append(stmt)
                continue
            free &= not _touch(stmt, rows)
            others.append(stmt)
        if len(rows) < 2 or not free:
            self.note(statements, 0)
            return list(statements)
        self.runs += 1
        self.note(others, 0)
        self.note(rows, self.runs)
        var = f"{self.axis}_b{self.runs}"
        body = sequence([self.in_block(stmt, var) for stmt in rows])
        return [*others, Loop((LoopAxis(var, self.count),), body)]

    def note(self, statements: Sequence[Stmt], run: int) -> None:
        for stmt in statements:
            for name in _buffers(stmt):
                self.where.setdefault(name, set()).add(run)

    def row_loop(self, stmt: Stmt) -> str | None:
        """The loop over the rows, where the statement is a nest around one block that has it."""
        found, loops = _blocks(stmt), _loops(stmt)
        if len(found) != 1 or not loops:
            return None
        cut = [
            (it, form) for it in found[0].iters if (form := affine(it.binding)) and form.coefficient(self.axis).terms
        ]
        if len(cut) != 1 or cut[0][0].kind != "spatial":
            return None  # it looks at other rows, too
        for loop in loops:
            axis = loop.axes[0]
            if cut[0][1].coefficient(axis.var) == Poly.of(1) and axis.extent == self.tile:
                return axis.var
        return None

    def in_block(self, stmt: Stmt, var: str) -> Stmt:
        """The nest over the rows of one block. An iteration of its own says which row of the block it is."""
        loop = self.row_loop(stmt)
        assert loop is not None
        (block,) = _blocks(stmt)
        moved = _row(var, self.block, loop)
        iters = [replace(it, binding=substitute(it.binding, {loop: moved})) for it in block.iters]
        iters.append(Iter(f"b_{loop}", self.block, "spatial", Var(loop)))
        made: Stmt = replace(block, iters=tuple(iters))
        for outer in reversed(_loops(stmt)):
            axis = outer.axes[0]
            made = replace(outer, axes=(replace(axis, extent=self.block) if axis.var == loop else axis,), body=made)
        return made

    def shrunk(self, buffer: Buffer) -> Buffer:
        """A tile that only one run uses, of the rows of one block."""
        return replace(buffer, shape=tuple(self.block if n == self.tile else n for n in buffer.shape))

    def short(self, buffer: Buffer) -> bool:
        used = self.where.get(buffer.name, {0})
        return len(used) == 1 and 0 not in used and sum(n == self.tile for n in buffer.shape) == 1

    def at_rows(self, stmt: Stmt, tiles: Sequence[Buffer]) -> Stmt:
        """The statement with the tiles of one block of rows made anew in each of them, and used at its rows."""
        position = {
            tile.name: next(d for d, n in enumerate(tile.shape) if n == self.tile) for tile in tiles if self.short(tile)
        }
        made = self.rewritten(stmt, position)
        if not isinstance(made, Loop) or not made.axes[0].var.startswith(f"{self.axis}_b"):
            return made
        run, body = int(made.axes[0].var.removeprefix(f"{self.axis}_b")), made.body
        for tile in reversed(tiles):
            if self.short(tile) and run in self.where[tile.name]:
                body = Alloc(self.shrunk(tile), body)
        return replace(made, body=body)

    def rewritten(self, stmt: Stmt, position: dict[str, int]) -> Stmt:
        if isinstance(stmt, Block):
            return self.at_block_rows(stmt, position)
        return map_statements(stmt, lambda inner: self.rewritten(inner, position))

    def at_block_rows(self, block: Block, position: dict[str, int]) -> Block:
        own = [it for it in block.iters if it.var.startswith("b_")]
        if not own:
            return block
        row = Var(own[0].var)

        def placed(name: str, indices: tuple[Expr, ...]) -> tuple[Expr, ...]:
            if name not in position:
                return indices
            return tuple(row if d == position[name] else index for d, index in enumerate(indices))

        value = block.value
        for name in position:
            value = map_loads(value, name, lambda load: replace(load, indices=placed(load.buffer, load.indices)))
        indices = placed(block.buffer, block.indices)
        used = frozenset().union(*(variables(e) for e in (*indices, value)), frozenset())
        kept = tuple(it for it in block.iters if it.var in used or not it.var.startswith(("b_", "l")))
        return replace(block, iters=kept, indices=indices, value=value)


def _row(outer: str, extent: Poly, inner: str) -> Expr:
    """outer * extent + inner"""
    return from_affine(Affine(((outer, extent), (inner, Poly.of(1))), Poly.of(0)))


def _loops(stmt: Stmt) -> list[Loop]:
    found = []
    while isinstance(stmt, Loop):
        found.append(stmt)
        stmt = stmt.body
    return found


def _touch(stmt: Stmt, earlier: Sequence[Stmt]) -> bool:
    """Does one read what others write, or write what they use?"""
    made = {block.buffer for one in earlier for block in _blocks(one)}
    used = {name for one in earlier for name in _buffers(one)}
    return bool({*_buffers(stmt)} & made or {block.buffer for block in _blocks(stmt)} & used)


def _blocks(stmt: Stmt) -> list[Block]:
    return [inner for inner in walk(stmt) if isinstance(inner, Block)]


def _buffers(stmt: Stmt) -> Iterator[str]:
    for block in _blocks(stmt):
        yield block.buffer
        for load in loads_of(block):
            yield load.buffer
