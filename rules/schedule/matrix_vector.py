"""The rule for products of a few rows with a matrix, whose time is that of reading the matrix."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from pipeline.ir.expr import Var, affine, loads
from pipeline.ir.poly import Poly, product
from pipeline.ir.program import Block, Iter, Program
from pipeline.ir.target import Target
from pipeline.schedule.constraint import AtMost
from pipeline.schedule.nest import block_at, find_buffer, find_loop, loop_at, over_loops
from pipeline.schedule.sketch import Sketch
from pipeline.schedule.steps import (
    CacheWrite,
    ComputeAt,
    DecomposeReduction,
    Pack,
    Parallel,
    Reorder,
    Rfactor,
    Split,
    Unroll,
    Vectorize,
)
from pipeline.schedule.variables import Tile
from rules.schedule.innermost import contiguous
from rules.schedule.multi_level_tiling import MultiLevelTiling, epilogue
from rules.schedule.parallel_vectorize import ParallelVectorize
from rules.schedule.scheduled import is_row_reduction, is_scheduled, lanes_of, loop_of

COLUMNS = 16  # whose sums are kept at once where lanes run along the sum


@dataclass(frozen=True, slots=True)
class MatrixVector:
    """Read a matrix that is used for a few rows only in the order in which it lies, without packing it.

    rows     the rule is for products of so many rows at most: the spatial extents but the longest, multiplied
    vectors  of columns that are kept in registers for each row, where the sum is in pieces
    pieces   the sum is, where a thread would have fewer vectors of columns than this

    The sketch stays as it is, too, for MultiLevelTiling. Where the matrix lies column by column along the sum (x times
    w transposed), lanes run along the sum: each pair of a row and a column has a vector of partial sums, added across
    the lanes at the end. Else lanes run along the columns, in register tiles that hold partial sums, and where there
    are too few columns to share out, a piece of the sum for each thread.
    """

    rows: int = 16
    vectors: int = 15
    pieces: int = 4

    def apply(self, sketch: Sketch, block: str, target: Target) -> list[Sketch]:
        found, place = block_at(sketch.program, block)
        if found.combine != "sum" or found.init is None or found.where or place.prologue or is_scheduled(place):
            return []
        if is_row_reduction(found):
            return []
        if any(it.kind == "scan" or not isinstance(it.binding, Var) for it in found.iters):
            return []
        wide = [it for it in found.iters if it.kind == "spatial" and it.extent.value > 1]
        if len(place.loops) != len(found.iters) or len({load.buffer for load in loads(found.value)}) < 2 or not wide:
            return []
        columns = max(wide, key=lambda it: it.extent.value)
        others = [it for it in wide if it is not columns]
        if prod(it.extent.value for it in others) > self.rows:
            return []
        reduced = [it for it in found.iters if it.kind == "reduce" and it.extent.value > 1]
        lanes = lanes_of(sketch.program, found, target)
        inner = next((it for it in reversed(reduced) if contiguous(found, loop_of(it))), None)
        if inner is not None and inner.extent.value >= 2 * lanes and not _packed(sketch.program, found, inner):
            return [sketch, *_along_sum(sketch, found, columns, others, inner, lanes, target)]
        if not reduced or not contiguous(found, loop_of(columns)):
            return []
        tiled = MultiLevelTiling("SRSRS").apply(sketch, block, target)
        made = [sketch, *_as_it_lies(sketch.program, tiled)]
        if columns.extent.value < self.pieces * lanes * target.cores:
            longest = max(reduced, key=lambda it: it.extent.value)
            made.extend(self._in_pieces(sketch, found, longest, target))
        return made

    def _in_pieces(self, sketch: Sketch, block: Block, it: Iter, target: Target) -> list[Sketch]:
        """A piece of the sum for each thread, and their sums added at the end."""
        loop, extent = loop_of(it), it.extent.value
        if target.cores < 2 or extent < 16 * target.cores:
            return []
        piece = -(-extent // target.cores)
        sketch = sketch.apply(Split(loop, (piece,), (f"{loop}_p", f"{loop}_q")))
        step = Rfactor(block.name, f"{loop}_p", 0)
        if step.why_not(sketch.program) is not None:
            return []
        sketch = sketch.apply(step)
        (sketch,) = ParallelVectorize().apply(sketch, block.name, target)
        tiled = MultiLevelTiling("SRRS", vectors=self.vectors).apply(sketch, f"{block.name}_rf", target)
        return _as_it_lies(sketch.program, tiled)


def _along_sum(
    sketch: Sketch, block: Block, columns: Iter, others: list[Iter], inner: Iter, lanes: int, target: Target
) -> list[Sketch]:
    """Lanes along the sum: `<block>_rf` fills vectors of partial sums, the block adds up each of them."""
    name, loop, rank = block.name, loop_of(inner), len(block.indices)
    dims = {index.name: d for d, index in enumerate(block.indices) if isinstance(index, Var)}
    if columns.var not in dims or any(it.var not in dims for it in others):
        return []
    sketch = sketch.apply(Split(loop, (lanes,), (f"{loop}_0", f"{loop}_1")))
    factor = Rfactor(name, f"{loop}_1", rank)
    if factor.why_not(sketch.program) is not None:
        return []
    sketch = sketch.apply(factor)
    across = f"{name}_f_{loop}_1"
    outer: list[str] = []
    tile: list[str] = []
    sizes: list[Poly] = []
    # the columns outermost, for threads to share; of the rows, the longest axis is in the register tile
    longest = max(others, key=lambda it: it.extent.value, default=None)
    for it in (columns, *others):
        own = f"{name}_f_{dims[it.var]}"
        if it is not columns and it is not longest:
            outer.append(own)
            continue
        symbol, extent = f"t_{own}_1", it.extent.value
        sketch = sketch.declare(Tile((symbol,), extent, (1,), (min(COLUMNS, extent),)))
        sketch = sketch.apply(Split(own, (Poly.symbol(symbol),), (f"{own}_0", f"{own}_1")))
        outer.append(f"{own}_0")
        tile.insert(0, f"{own}_1")
        sizes.append(Poly.symbol(symbol))
    sums = product(sizes)
    most = max(target.vector_registers - 2, 2)
    sketch = sketch.require(AtMost("registers", sums + sizes[0], most))
    ones = [f"{name}_f_{d}" for d in range(rank) if d not in {dims[it.var] for it in (columns, *others)}]
    sketch = sketch.apply(Reorder((*outer, *ones, *tile, across)))
    at = outer[-1]
    step = ComputeAt(f"{name}_rf", at, "local")
    cached = CacheWrite(name, "local", at)
    if step.why_not(sketch.program) is not None or cached.why_not(sketch.program) is not None:
        return []
    sketch = sketch.apply(cached)
    if step.why_not(sketch.program) is not None:
        return []
    sketch = _partial_sums(sketch.apply(step), f"{name}_rf", rank)
    sketch = sketch.apply(DecomposeReduction(name, across)).apply(Vectorize(across))
    for found in tile:
        sketch = sketch.apply(Unroll(found))
    stores = [f"{name}_w_{d}" for d in range(rank)]
    vector = stores[dims[columns.var]]
    if stores[-1] != vector:
        sketch = sketch.apply(Reorder((*(found for found in stores if found != vector), vector)))
    for found in stores:
        if loop_at(sketch.program, found)[0].axes[0].extent != Poly.of(1):
            sketch = sketch.apply(Vectorize(found) if found == vector else Unroll(found))
    return [epilogue(sketch.apply(Parallel(outer[0])), f"{name}_write")]


def _partial_sums(sketch: Sketch, block: str, rank: int) -> Sketch:
    """The loops of the partial sums: the summed ones outside, the register tile inside, lanes last."""
    mine = [f"{block}_{d}" for d in range(rank + 1) if find_loop(sketch.program, f"{block}_{d}") is not None]
    _, place = block_at(sketch.program, block)
    names = [loop.axes[0].var for loop in place.loops]
    summed = names[names.index(mine[-1]) + 1 :]
    sketch = sketch.apply(Reorder((*summed, *mine)))
    sketch = sketch.apply(DecomposeReduction(block, summed[0]))
    starts = [f"{block}_i_{found}" for found in mine]
    for own in (mine, starts):
        for found in own[:-1]:
            there = find_loop(sketch.program, found)
            if there is not None and loop_at(sketch.program, found)[0].axes[0].extent != Poly.of(1):
                sketch = sketch.apply(Unroll(found))
        sketch = sketch.apply(Vectorize(own[-1]))
    return sketch


def _packed(program: Program, block: Block, inner: Iter) -> bool:
    """Is what is read along the sum, with columns, known ahead of time? Then it is packed, which is better still."""
    for load in loads(block.value):
        buffer = find_buffer(program, load.buffer)
        forms = [affine(over_loops(block, index)) for index in load.indices]
        if any(form is None for form in forms):
            return True
        moving = any(form is not None and form.coefficient(loop_of(inner)).terms for form in forms)
        if moving and buffer is not None and buffer.role == "constant":
            return True
    return False


def _as_it_lies(program: Program, sketches: list[Sketch]) -> list[Sketch]:
    """Those that do not copy at run time what the program reads: what is read once gains nothing by it."""
    kept = []
    for sketch in sketches:
        packs = [step for step in sketch.trace if isinstance(step, Pack)]
        buffers = [find_buffer(program, step.buffer) for step in packs]
        if all(buffer is not None and buffer.role == "constant" for buffer in buffers):
            kept.append(sketch)
    return kept
