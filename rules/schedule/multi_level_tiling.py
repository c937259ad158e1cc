"""The rule that tiles a reduction over several levels, down to a register tile."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

from pipeline.ir.expr import Load, Var, affine, loads, variables
from pipeline.ir.poly import Poly, product
from pipeline.ir.program import Block, Iter, Program
from pipeline.ir.target import Target
from pipeline.schedule.constraint import AtMost
from pipeline.schedule.nest import block_at, find_buffer, find_loop, loop_at, over_loops, readers
from pipeline.schedule.sketch import Sketch
from pipeline.schedule.steps import (
    Annotate,
    CacheWrite,
    DecomposeReduction,
    Fuse,
    Pack,
    Parallel,
    Reorder,
    ReverseInline,
    Split,
    TransformLayout,
    Unroll,
    Vectorize,
)
from pipeline.schedule.variables import Tile
from rules.schedule.scheduled import is_row_reduction, is_scheduled, lanes_of, loop_of
from rules.schedule.streaming import large, streams

LARGEST_TILE = 64  # iterations of a middle level
LARGEST_SUM = 1024  # iterations of a reduced loop inside another one
UNROLLED = 8  # iterations of a reduced loop that is unrolled
AHEAD = (32, 96)  # iterations of the sum by which a packed operand is asked for early: some thousand bytes
LARGEST_CODE = 320  # multiply-adds in the innermost unrolled nest


@dataclass(frozen=True, slots=True)
class MultiLevelTiling:
    """Tile every loop of a reduction as the letters of `structure` say, and keep the innermost tile in registers.

    structure  a level for each letter, outermost first: S tiles the spatial loops, R the reduced ones. The first S
               level is what threads share out; the last one, after the last R, is the register tile. Where two Rs
               follow each other at the end, the inner one is unrolled. Where spatial loops other than those of the
               register tile lie inside a reduced one (SSRSRS), the tile holds partial sums, which are added to the
               result: what is read by one iteration of the outer R stays in cache.
    rows       the register tile has at most so many rows
    vectors    and so many vectors in each
    least_sum  sums of fewer terms are left to other rules
    beside     the sketch stays as it is, too, for another structure that follows in the list

    Operands that are known at compile time are packed, panel by panel, before the program is ever run. Others are
    offered both ways, where neighbouring lanes read neighbouring elements; else they have to be packed at run time.

    One axis is vectorized: the last one of the result, or, where that is short, also the longest one. Ragged tiles are
    masked or peeled, so every extent will do.
    """

    structure: str = "SSRRS"
    rows: int = 16
    vectors: int = 4
    least_sum: int = 1
    beside: bool = False

    def apply(self, sketch: Sketch, block: str, target: Target) -> list[Sketch]:
        reduced = [it.extent for it in block_at(sketch.program, block)[0].iters if it.kind == "reduce"]
        if prod(extent.value for extent in reduced if extent.is_constant) < self.least_sum:
            return []
        results = []
        for plan in _plans(sketch.program, block, target, self.structure):
            tiled = _tile(sketch, plan, self.structure, self.rows, self.vectors, target)
            for packed in _packings(tiled.program, plan):
                made = tiled
                for number, operand in enumerate(packed):
                    made = _pack(made, plan, operand, f"{block}_pack{number}")
                results.append(_finish(made, plan))
                if any(_constant(tiled.program, operand.buffer) for operand in packed) and plan.streamed:
                    results.extend(_asked_for_early(results[-1], plan))
                elif any(large(tiled.program, operand.buffer, target) for operand in packed):
                    results[-1] = _next_panel(results[-1], plan)
                elif not packed and plan.streamed and "RSR" in self.structure:
                    results[-1] = _next_rows(results[-1], plan)
        return [sketch, *results] if results and self.beside else results


@dataclass(slots=True)
class _Plan:
    """What the rule has found out about the block, and the loops as they are being made."""

    block: str
    spatial: list[Iter]
    reduced: list[Iter]
    vector: Iter
    lanes: int
    streamed: bool = False
    levels: dict[tuple[str, int], list[str]] = field(default_factory=dict)  # ("S", 0) -> loops of that level
    where: dict[str, list[str]] = field(default_factory=dict)  # iteration variable -> its loops, outermost first


def _plans(program: Program, name: str, target: Target, structure: str) -> list[_Plan]:
    """One for each axis that may be vectorized; none where the block is not a reduction that gains from tiling."""
    block, place = block_at(program, name)
    if block.combine is None or block.init is None or place.prologue or is_scheduled(place):
        return []
    if not all(isinstance(it.binding, Var) for it in block.iters) or any(it.kind == "scan" for it in block.iters):
        return []
    if len(place.loops) != len(block.iters) or not structure.startswith("S"):
        return []
    order = [index.name for index in block.indices if isinstance(index, Var)]
    spatial = [it for it in block.iters if it.kind == "spatial"]
    spatial.sort(key=lambda it: order.index(it.var) if it.var in order else -1)  # as the register tile has them
    reduced = [it for it in block.iters if it.kind == "reduce"]
    wide = [it for it in spatial if it.extent.value > 1]
    if not reduced or not wide or is_row_reduction(block):
        return []
    lanes = lanes_of(program, block, target)
    reduced.sort(key=lambda it: -_stride(program, block, it))
    return [
        _Plan(name, spatial, reduced, vector, lanes, streams(block, (loop_of(vector),), target))
        for vector in _vector_axes(program, block, wide, lanes)
    ]


def _stride(program: Program, block: Block, it: Iter) -> int:
    """How far apart two neighbours along a reduced axis lie in what is read at run time: the innermost loop should be
    the one that stays on a line. 0 where nothing says."""
    best = 0
    for load in loads(block.value):
        buffer = find_buffer(program, load.buffer)
        if buffer is None or buffer.role == "constant":
            continue
        step, total = 1, 0
        for index, extent in zip(reversed(load.indices), reversed(buffer.shape), strict=True):
            form = affine(index)
            total += step * abs(form.coefficient(it.var).value) if form is not None else 0
            step *= extent.value
        best = max(best, total)
    return best


def _vector_axes(program: Program, block: Block, wide: list[Iter], lanes: int) -> list[Iter]:
    """The last wide axis of the result, unless it is shorter than half a vector; where it has only a few vectors, the
    longest other axis along which every operand can be read or packed without copying a window over and over."""
    order = [index.name for index in block.indices if isinstance(index, Var)]
    wide = sorted(wide, key=lambda it: order.index(it.var) if it.var in order else -1)
    last, others = wide[-1], [it for it in wide[:-1] if _can_be_lanes(program, block, it)]
    longest = max(others, key=lambda it: it.extent.value, default=None)
    if longest is None or last.extent.value >= 4 * lanes or longest.extent.value < lanes:
        return [last]
    return [longest] if 2 * last.extent.value < lanes else [last, longest]


def _can_be_lanes(program: Program, block: Block, it: Iter) -> bool:
    """No operand of run time has the axis in an index together with another axis: a copy with it as lanes would repeat
    elements."""
    for load in loads(block.value):
        known = find_buffer(program, load.buffer)
        if known is not None and known.role == "constant":
            continue
        for index in load.indices:
            names = variables(index)
            if it.var in names and len(names) > 1:
                return False
        used = frozenset().union(*(variables(index) for index in load.indices))
        window = any(len(variables(index)) > 1 for index in load.indices)
        if it.var in used and window and variables(load.indices[-1]) != {it.var}:
            return False
    return True


def _tile(sketch: Sketch, plan: _Plan, structure: str, rows: int, vectors: int, target: Target) -> Sketch:
    """Splits and orders the loops, bounds the register tile, and gives the loops their kinds."""
    spatial_levels, reduce_levels = structure.count("S"), structure.count("R")
    tile: list[Poly] = []
    for it in plan.spatial:
        sketch, names = _split(sketch, plan, it, spatial_levels, rows, vectors)
        plan.where[it.var] = names
        if it.extent.value > 1 and spatial_levels > 1 and it is not plan.vector:
            tile.append(Poly.symbol(f"t_{names[-1]}"))
    cut = [it for it in plan.reduced if it.extent.value > 1][-1:] if reduce_levels > 1 else []
    unroll = cut if structure.endswith("RRS") else []
    for it in plan.reduced:
        loop, names = loop_of(it), [loop_of(it)]
        if it in cut:
            names = [f"{loop}_{level}" for level in range(reduce_levels)]
            symbols = tuple(f"t_{name}" for name in names[1:])
            most = [min(LARGEST_SUM, it.extent.value)] * len(symbols)
            most[-1] = min(UNROLLED, most[-1]) if unroll else most[-1]
            sketch = sketch.declare(Tile(symbols, it.extent.value, (1,) * len(symbols), tuple(most)))
            sketch = sketch.apply(Split(loop, tuple(Poly.symbol(symbol) for symbol in symbols), tuple(names)))
        for level, name in enumerate(names):
            plan.levels.setdefault(("R", level), []).append(name)
        plan.where[it.var] = names
    _order_levels(plan, spatial_levels)
    sketch = sketch.apply(Reorder(tuple(_nest_order(plan, structure))))
    if plan.vector.extent.value > 1 and spatial_levels > 1:
        width = Poly.symbol(f"t_{plan.where[plan.vector.var][-1]}")
        lanes, registers = plan.lanes, target.vector_registers
        if plan.vector.extent.value < lanes:
            width = Poly.of(lanes)  # part of a vector takes a whole register
        accumulators = product(tile) * width
        sketch = sketch.require(
            AtMost("registers", accumulators + width + Poly.of(2 * lanes), max(registers, 4) * lanes)
        )
        steps = [Poly.symbol(f"t_{names[-1]}") for it in unroll for names in [plan.where[it.var]]]
        sketch = sketch.require(AtMost("code", product([*tile, width, *steps]), LARGEST_CODE * lanes))
    for it in plan.spatial:
        names = plan.where[it.var]
        if len(names) > 1:
            sketch = sketch.apply(Vectorize(names[-1]) if it is plan.vector else Unroll(names[-1]))
    for it in unroll:
        sketch = sketch.apply(Unroll(plan.where[it.var][-1]))
    return sketch


def _split(sketch: Sketch, plan: _Plan, it: Iter, levels: int, rows: int, vectors: int) -> tuple[Sketch, list[str]]:
    """The loop of a spatial iteration variable over its levels; an extent of one stays one loop."""
    loop, extent = loop_of(it), it.extent.value
    if extent == 1 or levels == 1:
        plan.levels.setdefault(("S", 0), []).append(loop)
        return sketch, [loop]
    names = [f"{loop}_{level}" for level in range(levels)]
    symbols = tuple(f"t_{name}" for name in names[1:])
    if it is plan.vector:
        width = min(plan.lanes, extent)
        multiple, most = width, max(width, min(width * vectors, -(-extent // width) * width))
    else:
        multiple, most = 1, min(rows, extent)
    middle = [min(LARGEST_TILE, extent)] * (levels - 2)
    sketch = sketch.declare(Tile(symbols, extent, (*(1 for _ in middle), multiple), (*middle, most)))
    sketch = sketch.apply(Split(loop, tuple(Poly.symbol(symbol) for symbol in symbols), tuple(names)))
    for level, name in enumerate(names):
        plan.levels.setdefault(("S", level), []).append(name)
    return sketch, names


def _order_levels(plan: _Plan, spatial_levels: int) -> None:
    """Outer levels run the vectorized axis slowest, so that a panel stays in cache; register tiles run it fastest."""
    vector = plan.where[plan.vector.var]
    for level in range(spatial_levels):
        loops = plan.levels.get(("S", level), [])
        mine = [name for name in loops if name in vector]
        others = [name for name in loops if name not in vector]
        plan.levels["S", level] = others + mine if level == spatial_levels - 1 else mine + others


def _nest_order(plan: _Plan, structure: str) -> list[str]:
    order: list[str] = []
    seen = {"S": 0, "R": 0}
    for letter in structure:
        order.extend(plan.levels.get((letter, seen[letter]), []))
        seen[letter] += 1
    # a structure with fewer levels than a loop has parts cannot happen: both come from the same string
    return order


@dataclass(frozen=True, slots=True)
class _Operand:
    """A load that may be packed.

    number   which of the block's loads of the buffer
    order    the loops of its packed form
    at       None: all of it, before the product · a loop: one panel at a time, into scratch that stays in the cache
    """

    buffer: str
    number: int
    order: tuple[str, ...]
    at: str | None = None


def _packings(program: Program, plan: _Plan) -> list[list[_Operand]]:
    """The choices of operands to pack: those that have to be; those and all that may be; the same, panel by panel where
    the operand is one of run time."""
    block, place = block_at(program, plan.block)
    vector = plan.where[plan.vector.var]
    always: list[_Operand] = []
    maybe: list[_Operand] = []
    chain = [axis.var for axis in place.axes]
    reads: dict[str, list[Load]] = {}
    for load in loads(block.value):
        reads.setdefault(load.buffer, []).append(load)
    for buffer, found in reads.items():
        known = find_buffer(program, buffer)
        constant = known is not None and known.role == "constant"
        # from the last to the first: the numbers of those that are left stay what they are
        for number, load in reversed(list(enumerate(found))):
            if load in found[:number]:
                continue  # what packs one packs its equals
            forms = [affine(over_loops(block, index)) for index in load.indices]
            if any(form is None for form in forms):
                continue
            used = {name for form in forms if form is not None for name, _ in form.terms}
            order = tuple(name for name in chain if name in used)
            step = Pack(plan.block, buffer, order, f"{plan.block}_probe", None, number)
            if not set(vector) & used or step.why_not(program) is not None:
                continue
            last = forms[-1]
            contiguous = last is not None and last.coefficient(vector[-1]) == Poly.of(1)
            (always if constant or not contiguous else maybe).append(_Operand(buffer, number, order))
    choices = [always, [*always, *maybe]] if maybe else [always]
    panels = [_panel(program, plan, operand, chain) for operand in (*always, *maybe)]
    if any(panel.at is not None for panel in panels):
        choices.append(panels)
    return choices


def _panel(program: Program, plan: _Plan, operand: _Operand, chain: list[str]) -> _Operand:
    """The operand packed inside the loop over panels, where its index does not depend on the loops between the two."""
    known = find_buffer(program, operand.buffer)
    vector = plan.where[plan.vector.var]
    if known is None or known.role == "constant" or len(vector) < 3:
        return operand
    loop = vector[-2]
    inside = chain[chain.index(loop) + 1 :]
    return _Operand(operand.buffer, operand.number, tuple(name for name in operand.order if name in inside), loop)


def _pack(sketch: Sketch, plan: _Plan, operand: _Operand, name: str) -> Sketch:
    """A copy of the operand in the order in which the register tile reads it."""
    order = operand.order
    step = Pack(plan.block, operand.buffer, order, name, operand.at, operand.number)
    if operand.at is not None and step.why_not(sketch.program) is not None:
        return sketch
    sketch = sketch.apply(step)
    loops = [f"{name}_{var}" for var in order]
    sketch = sketch.apply(Vectorize(loops[-1]))
    _, place = block_at(sketch.program, name)
    if place.prologue or operand.at is not None:
        return sketch
    outer = [loop for loop in loops[:-1] if not _reduced(plan, loop.removeprefix(f"{name}_"))][:3]
    if len(outer) > 1 and Fuse(tuple(outer)).why_not(sketch.program) is None:
        sketch = sketch.apply(Fuse(tuple(outer)))
    return sketch.apply(Parallel(loops[0]))


def _constant(program: Program, buffer: str) -> bool:
    known = find_buffer(program, buffer)
    return known is not None and known.role == "constant"


def _asked_for_early(sketch: Sketch, plan: _Plan) -> list[Sketch]:
    """The same with the packed operand asked for some iterations ahead: where memory sets the pace, that keeps more of
    its lines on their way than the processor asks for by itself."""
    loop = plan.levels["R", 0][-1]
    found = find_loop(sketch.program, loop)
    steps = [Annotate(loop, "prefetch", ahead) for ahead in AHEAD]
    return [sketch.apply(step) for step in steps if found is not None and step.why_not(sketch.program) is None]


def _next_panel(sketch: Sketch, plan: _Plan) -> Sketch:
    """The same with the next panel of the packed operand asked for, in parts, while this one is computed with."""
    names = plan.where[plan.vector.var]
    if len(names) < 3:
        return sketch
    sums = [name for letter, level in sorted(plan.levels) if letter == "R" for name in plan.levels[letter, level]]
    serial = [name for name in sums if loop_at(sketch.program, name)[0].kind == "serial"]
    return sketch.attempt(Annotate(serial[-1], "prefetch_next", names[-2])) if serial else sketch


def _next_rows(sketch: Sketch, plan: _Plan) -> Sketch:
    """The same with what the next piece of the sum reads of an operand that lies as it is asked for, each row of a tile
    while that tile is computed with: rows are too far apart for the processor to follow them all by itself."""
    inner = plan.levels.get(("R", 1))
    return sketch if inner is None else sketch.attempt(Annotate(inner[-1], "prefetch_next", plan.levels["R", 0][-1]))


def _reduced(plan: _Plan, loop: str) -> bool:
    return any(loop in plan.where[it.var] for it in plan.reduced)


def _finish(sketch: Sketch, plan: _Plan) -> Sketch:
    """The write cache, the initial values, and threads over the outermost level."""
    inner = max(level for letter, level in plan.levels if letter == "S" and plan.levels[letter, level])
    middle = plan.levels.get(("S", inner - 1), []) if inner else []
    outer = plan.levels["S", 0]
    if len(outer) > 1:
        sketch = sketch.apply(Fuse(tuple(outer)))
    at = middle[-1] if middle and inner - 1 > 0 else outer[0]
    first_reduced = plan.levels["R", 0][0]
    sketch = sketch.apply(CacheWrite(plan.block, "local", at))
    sketch = _lanes_last(sketch, plan)
    if block_at(sketch.program, plan.block)[0].init is not None:  # a cache of partial sums begins by itself
        sketch = sketch.apply(DecomposeReduction(plan.block, first_reduced))
    block, _ = block_at(sketch.program, f"{plan.block}_write")
    loops = [f"{plan.block}_w_{d}" for d in range(len(block.indices))]
    sketch = _kinds(sketch, plan, loops)
    return epilogue(sketch.apply(Parallel(outer[0])), f"{plan.block}_write")


def _lanes_last(sketch: Sketch, plan: _Plan) -> Sketch:
    """The register tile with its vectorized axis innermost, wherever the result has it."""
    block, _ = block_at(sketch.program, plan.block)
    rank = len(block.indices)
    position = [it.var for it in plan.spatial].index(plan.vector.var)
    if position == rank - 1:
        return sketch
    order = (*(d for d in range(rank) if d != position), position)
    return sketch.apply(TransformLayout(block.buffer, (1,) * rank, order))


def epilogue(sketch: Sketch, write: str) -> Sketch:
    """What is computed from the result alone, element by element, is computed where the result is stored."""
    while True:
        block, _ = block_at(sketch.program, write)
        users = readers(sketch.program, block.buffer)
        if len(users) != 1:
            return sketch
        step = ReverseInline(users[0][0].name, block.buffer)
        if step.why_not(sketch.program) is not None:
            return sketch
        sketch = sketch.apply(step)


def _kinds(sketch: Sketch, plan: _Plan, loops: list[str]) -> Sketch:
    """The loops of the write back: the vectorized axis as a vector, the others unrolled."""
    position = [it.var for it in plan.spatial].index(plan.vector.var)
    if position != len(loops) - 1 and len(loops) > 1:
        there = [loop for loop in loops if find_loop(sketch.program, loop) is not None]
        if loops[position] in there and len(there) > 1:
            last = (*(loop for loop in there if loop != loops[position]), loops[position])
            sketch = sketch.apply(Reorder(last))
    for d, loop in enumerate(loops):
        if find_loop(sketch.program, loop) is None:
            continue
        extent = loop_at(sketch.program, loop)[0].axes[0].extent
        if extent == Poly.of(1):
            continue
        sketch = sketch.apply(Vectorize(loop) if d == position else Unroll(loop))
    return sketch
