"""The rule that keeps a register tile of a product which is one of several blocks in a nest."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pipeline.ir.expr import Op, affine, loads, variables
from pipeline.ir.poly import Poly
from pipeline.ir.program import Block, Loop
from pipeline.ir.target import Target
from pipeline.schedule.constraint import AtMost
from pipeline.schedule.nest import block_at, find_buffer, loop_at, over_loops
from pipeline.schedule.register_tile import row_multiple, vector_multiple
from pipeline.schedule.sketch import Sketch
from pipeline.schedule.steps import Annotate, CacheWrite, DecomposeReduction, Pack, Reorder, Split, Unroll, Vectorize
from pipeline.schedule.variables import Tile
from rules.schedule.inside_nest import around_own, own_loops, register_symbol
from rules.schedule.multi_level_tiling import epilogue
from rules.schedule.scheduled import lanes_of
from rules.schedule.streaming import large, streams

PIECE = 32  # pieces of a long sum have a multiple of so many terms
AHEAD = (64, 128)  # iterations of the sum by which a packed operand is asked for early: some thousand bytes


@dataclass(frozen=True, slots=True)
class InnerProduct:
    """A sum of products inside a nest: rows times vectors of its result stay in registers over the whole sum.

    rows      the register tile has at most so many rows
    vectors   and so many vectors in each
    long_sum  sums of at least so many terms are offered in pieces, too: the tile in registers then holds partial sums,
              and what one piece reads of the operand along the lanes stays in cache for all rows

    Lanes run along the last dimension of the result. An operand that is known at compile time is packed ahead of time;
    one whose neighbours along the lanes lie apart is packed in the nest, where its index changes. Others are offered
    both ways, but for those that are used for so few rows that reading them takes longer than computing with them: they
    are read where they lie, and the next tile is asked for while this one is computed with. Rows that are multiplied
    with rows, each by itself (a sum of squares), are left to `InnerRows`.
    """

    rows: int = 16
    vectors: int = 4
    long_sum: int = 1024

    def apply(self, sketch: Sketch, block: str, target: Target) -> list[Sketch]:
        found, _ = block_at(sketch.program, block)
        own = own_loops(sketch.program, block)
        if own is None or found.combine != "sum" or not _is_product(found):
            return []
        spatial = _loops_of(found, own, "spatial")
        summed = [loop for loop in _loops_of(found, own, "reduce") if loop not in spatial]
        lanes = lanes_of(sketch.program, found, target)
        vector = _vector(found, spatial, lanes)
        if vector is None or not summed or _rows_alone(found, vector, summed):
            return []
        around = around_own(sketch.program, block, own)
        others = [loop for loop in spatial if loop is not vector]
        rows = max(others, key=_length, default=None)
        outer = [loop.axes[0].var for loop in others if loop is not rows]
        registers, most = target.vector_registers, self.vectors * lanes
        sketch, wide = self._cut(sketch, vector, lanes * vector_multiple(_known(vector), most, registers), most)
        high: tuple[str, ...] = ()
        if rows is not None:
            sketch, high = self._cut(sketch, rows, row_multiple(_known(rows), registers), self.rows)
        width = _extent(sketch, wide[-1])
        tall = _extent(sketch, high[-1]) if high else Poly.of(1)
        if not (width.is_constant and tall.is_constant):
            room = max(registers, 4) * lanes
            sketch = sketch.require(AtMost(f"{block} registers", tall * width + width + Poly.of(2 * lanes), room))
        streamed = streams(found, (vector.axes[0].var,), target)
        names = tuple(loop.axes[0].var for loop in summed)
        whole = _Loops(tuple(outer), wide, (), high, names, around[-1].axes[0].var)
        made = self._made(sketch, block, whole, around, target, streamed=streamed)
        extent = _known(summed[-1])
        if not streamed and len(high) > 1 and extent is not None and extent >= self.long_sum:
            last, symbol = names[-1], f"t_{names[-1]}"
            cut = sketch.declare(Tile((symbol,), extent, (PIECE,), (max(PIECE, extent // 2),)))
            cut = cut.apply(Split(last, (Poly.symbol(symbol),), (f"{last}_0", f"{last}_1")))
            loops = replace(whole, pieces=(*names[:-1], f"{last}_0"), sums=(f"{last}_1",))
            made.extend(self._made(cut, block, loops, around, target, streamed=False))
        return made

    def _made(
        self, sketch: Sketch, block: str, loops: _Loops, around: tuple[Loop, ...], target: Target, *, streamed: bool
    ) -> list[Sketch]:
        """The loops in order and the tile in registers, for each choice of packed operands."""
        sketch = sketch.apply(Reorder(loops.order)) if len(loops.order) > 1 else sketch
        made: list[Sketch] = []
        for packing in self._packings(sketch, block, loops.wide, around, streamed):
            current = sketch
            for step in packing:
                current = _copy_loops(current.apply(step), step.name)
            current = _kept(current, block, loops)
            if not streamed and loops.panels and any(large(sketch.program, step.buffer, target) for step in packing):
                current = current.attempt(Annotate(loops.sums[-1], "prefetch_next", loops.panels[-1]))
            if streamed and not packing:
                next_tile = _next_tile(sketch, block, loops, around)
                current = current.attempt(Annotate(loops.sums[-1], "prefetch_next", next_tile))
            if streamed and any(step.at is None for step in packing):
                made.extend(current.attempt(Annotate(loops.sums[-1], "prefetch", ahead)) for ahead in AHEAD)
            else:
                made.append(current)
        return made

    def _cut(self, sketch: Sketch, loop: Loop, multiple: int, most: int) -> tuple[Sketch, tuple[str, ...]]:
        """The loop in two, the inner one for the register tile; or as it is, where all of it fits."""
        axis = loop.axes[0]
        if axis.extent.is_constant:
            extent = axis.extent.value
            least = min(multiple, extent)
            if extent <= least:
                return sketch, (axis.var,)
            symbol = f"t_{axis.var}"
            limit = max(least, min(most, -(-extent // least) * least))
            sketch = sketch.declare(Tile((symbol,), extent, (least,), (limit,)))
        else:
            found = register_symbol(sketch, axis.extent)
            if found is None:
                return sketch, (axis.var,)
            symbol = found
        names = (f"{axis.var}_0", f"{axis.var}_1")
        return sketch.apply(Split(axis.var, (Poly.symbol(symbol),), names)), names

    def _packings(
        self, sketch: Sketch, block: str, wide: tuple[str, ...], around: tuple[Loop, ...], streamed: bool
    ) -> list[list[Pack]]:
        """Which operands are packed: those that must be; beside them those that may be, unless they are streamed."""
        found, place = block_at(sketch.program, block)
        chain = [axis.var for axis in place.axes]
        must: list[Pack] = []
        may: list[Pack] = []
        for load in loads(found.value):
            buffer = find_buffer(sketch.program, load.buffer)
            forms = [affine(over_loops(found, index)) for index in load.indices]
            if buffer is None or buffer.scope != "global" or any(form is None for form in forms):
                continue
            used = {name for form in forms if form is not None for name, _ in form.terms}
            if wide[-1] not in used:
                continue
            last = forms[-1]
            side_by_side = last is not None and last.coefficient(wide[-1]) == Poly.of(1)
            name = f"{block}_pack{len(must) + len(may)}"
            if buffer.role == "constant":
                step = Pack(block, load.buffer, tuple(v for v in chain if v in used), name)
                must.append(step)
                continue
            changes = [loop for loop in around if used & {axis.var for axis in loop.axes}]
            at = (changes or around)[-1]
            inside = chain[chain.index(at.axes[-1].var) + 1 :]
            step = Pack(block, load.buffer, tuple(v for v in inside if v in used), name, at.axes[0].var)
            (may if side_by_side else must).append(step)
        choices = [must, [*must, *may]] if may and not streamed else [must]
        legal = []
        for choice in choices:
            if all(step.why_not(sketch.program) is None for step in choice):
                legal.append(choice)
        return legal or [[]]


@dataclass(frozen=True, slots=True)
class _Loops:
    """Those of the product, each tuple outermost first.

    outer   over what the register tile has one of
    wide    along the lanes; the last one is a row of the register tile
    pieces  over pieces of the sum, where it is not summed up whole
    high    over rows; the last one is that of the register tile
    sums    over the terms of the sum, or of a piece
    around  the innermost loop around all of them
    """

    outer: tuple[str, ...]
    wide: tuple[str, ...]
    pieces: tuple[str, ...]
    high: tuple[str, ...]
    sums: tuple[str, ...]
    around: str

    @property
    def panels(self) -> tuple[str, ...]:
        """Those of which each iteration reads another panel of the operand along the lanes, for all rows."""
        return (*self.wide[:-1], *self.pieces)

    @property
    def order(self) -> tuple[str, ...]:
        return (*self.outer, *self.panels, *self.high[:-1], *self.sums, *self.high[-1:], self.wide[-1])


def _next_tile(sketch: Sketch, block: str, loops: _Loops, around: tuple[Loop, ...]) -> str:
    """The loop of which each iteration reads another tile along the lanes: around the product, or else its panels."""
    found, _ = block_at(sketch.program, block)
    used: frozenset[str] = frozenset()
    for load in loads(found.value):
        names = frozenset().union(*(variables(over_loops(found, index)) for index in load.indices))
        used |= names if loops.wide[-1] in names else frozenset()
    moving = [axis.var for loop in around if loop.kind == "serial" for axis in loop.axes if axis.var in used]
    return [loops.around, *loops.panels, *moving][-1]


def _is_product(block: Block) -> bool:
    value = block.value
    return isinstance(value, Op) and value.fn == "mul" and all(loads(arg) for arg in value.args)


def _rows_alone(block: Block, vector: Loop, summed: list[Loop]) -> bool:
    """Is each operand read side by side along the sum, another row of it for each lane? Such rows share nothing."""
    last = {loop.axes[0].var for loop in summed}
    for load in loads(block.value):
        forms = [affine(over_loops(block, index)) for index in load.indices]
        if not forms or any(form is None for form in forms):
            return False
        *before, end = ({name for name, _ in form.terms} for form in forms if form is not None)
        if not end & last or not any(vector.axes[0].var in names for names in before):
            return False
    return True


def _loops_of(block: Block, own: tuple[Loop, ...], kind: str) -> list[Loop]:
    names = {name for it in block.iters if it.kind == kind for name in variables(it.binding)}
    return [loop for loop in own if loop.axes[0].var in names]


def _known(loop: Loop) -> int | None:
    """The extent of a loop that is no parameter."""
    extent = loop.axes[0].extent
    return extent.value if extent.is_constant else None


def _length(loop: Loop) -> float:
    extent = _known(loop)
    return 1e9 if extent is None else float(extent)


def _vector(block: Block, spatial: list[Loop], lanes: int) -> Loop | None:
    """The loop along which neighbours of the result lie side by side."""
    last = affine(over_loops(block, block.indices[-1])) if block.indices else None
    if last is None:
        return None
    for loop in spatial:
        extent = loop.axes[0].extent
        if last.coefficient(loop.axes[0].var) == Poly.of(1) and (not extent.is_constant or extent.value >= lanes // 2):
            return loop
    return None


def _extent(sketch: Sketch, loop: str) -> Poly:
    return loop_at(sketch.program, loop)[0].axes[0].extent


def _copy_loops(sketch: Sketch, name: str) -> Sketch:
    """The loops of a copy: lanes along the last one."""
    _, place = block_at(sketch.program, name)
    return sketch.attempt(Vectorize(place.loops[-1].axes[0].var))


def _kept(sketch: Sketch, block: str, loops: _Loops) -> Sketch:
    """The register tile, its initial value, and the loops' kinds."""
    for name in loops.high[-1:]:
        if _extent(sketch, name) != Poly.of(1):
            sketch = sketch.apply(Unroll(name))
    sketch = sketch.apply(Vectorize(loops.wide[-1]))
    outside = loops.order[: loops.order.index(loops.sums[0])]
    cached = CacheWrite(block, "local", outside[-1] if outside else loops.around)
    kept = cached.why_not(sketch.program) is None
    if kept:
        sketch = sketch.apply(cached)
    if block_at(sketch.program, block)[0].init is not None:
        sketch = sketch.apply(DecomposeReduction(block, (*loops.pieces, *loops.sums)[0]))
    return epilogue(_write_back(sketch, f"{block}_write"), f"{block}_write") if kept else sketch


def _write_back(sketch: Sketch, name: str) -> Sketch:
    """The loops that store the register tile: the last one as a vector, the others unrolled."""
    own = own_loops(sketch.program, name) or ()
    for loop in own:
        if loop.axes[0].extent != Poly.of(1):
            step = Vectorize(loop.axes[0].var) if loop is own[-1] else Unroll(loop.axes[0].var)
            sketch = sketch.apply(step)
    return sketch
