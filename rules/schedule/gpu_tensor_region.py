"""A region of several blocks whose tiles have the same rows, so that warps can take rows of their own through all."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.ir.expr import Expr, Load, Op, affine, loads, variables
from pipeline.ir.poly import Poly
from pipeline.ir.program import Block, Buffer, Loop, Program
from pipeline.ir.target import Target
from pipeline.schedule.nest import block_at, blocks_in, find_buffer, over_loops
from pipeline.schedule.sketch import Sketch
from pipeline.schedule.steps import Reorder, TransformLayout
from rules.schedule.gpu_tensor_units import COLUMNS, ROWS, GpuTensorUnits, units_for

MOST_WARPS = 16  # of a block whose rows are a number


@dataclass(frozen=True, slots=True)
class GpuTensorRegion:
    """A region whose tiles have the same rows.

    rows      of a tile, `fragments` times a unit's rows for each of `warps`
    products  names of the blocks that multiply; `loose`: of those whose tiles have no rows and stay in shared memory
    divides   parameters and the extents that they have to divide, so that no tile sticks out
    """

    root: str
    rows: Poly
    warps: Poly
    fragments: Poly
    products: tuple[str, ...]
    loose: tuple[str, ...]
    units: GpuTensorUnits
    divides: tuple[tuple[Poly, int], ...]


def region_of(program: Program, name: str, names: tuple[str, ...], target: Target) -> GpuTensorRegion | None:
    """What is known about the region of a block; None where it is not for this rule, or the block is not its last."""
    block, place = block_at(program, name)
    root = place.root
    if not isinstance(root, Loop) or root.kind != "parallel" or place.prologue:
        return None
    inside = blocks_in(root)
    if len(inside) < 2 or inside[-1] is not block:
        return None
    rows = _first_extent(program, inside)
    shared_out = None if rows is None else _warps_of(rows)
    if rows is None or shared_out is None:
        return None
    warps, fragments = shared_out
    divides: dict[str, tuple[Poly, int]] = {}
    products, loose = [], []
    units: GpuTensorUnits | None = None
    for found in inside:
        own = loops_of(program, found)
        kind = _kind(program, found, own, rows)
        if kind is None:
            return None
        for it in found.iters:
            form = affine(it.binding)
            assert form is not None
            mine = [loop for loop in own if form.coefficient(loop.axes[0].var) == Poly.of(1)]
            if mine and it.extent.is_constant and len(form.terms) > 1:
                extent = mine[0].axes[0].extent
                divides[f"{extent} {it.extent}"] = (extent, it.extent.value)
        if kind == "loose":
            loose.append(found.name)
        if kind == "product":
            products.append(found.name)
            factor = loads(found.value)[0].dtype
            units = units_for(factor, "float32", names, target)
            if units is None or not _fits(program, found, own, units):
                return None
    if not products or units is None:
        return None
    for extent, whole in divides.values():
        if extent.terms and whole % extent.terms[0][1]:
            return None
    name = root.axes[0].var
    return GpuTensorRegion(name, rows, warps, fragments, tuple(products), tuple(loose), units, tuple(divides.values()))


def _warps_of(rows: Poly) -> tuple[Poly, Poly] | None:
    """The warps that share out the rows of a tile, and the fragments of each; None where those are not whole."""
    if rows.is_constant:
        count = rows.value // ROWS
        warps = next((n for n in range(min(count, MOST_WARPS), 0, -1) if count % n == 0), 0)
        return (Poly.of(warps), Poly.of(count // warps)) if warps and rows.value % ROWS == 0 else None
    if len(rows.terms) != 1:
        return None
    ((symbols, number),) = rows.terms
    if number != ROWS or len(symbols) != 2:
        return None
    first, second = (Poly.symbol(symbol) for symbol in symbols)
    return (first, second) if symbols[0].endswith("t1") else (second, first)


def _first_extent(program: Program, inside: list[Block]) -> Poly | None:
    """The rows of the tiles of all products."""
    found = set()
    for block in inside:
        own = loops_of(program, block)
        if len(own) == 3 and block.combine == "sum" and isinstance(block.value, Op) and block.value.fn == "mul":
            found.add(own[0].axes[0].extent)
    return found.pop() if len(found) == 1 else None


def loops_of(program: Program, block: Block) -> tuple[Loop, ...]:
    """The loops around nothing but a block."""
    _, place = block_at(program, block.name)
    return tuple(loop for loop in place.loops if blocks_in(loop) == [block])


def _kind(program: Program, block: Block, own: tuple[Loop, ...], rows: Poly) -> str | None:
    """product, tile (elementwise, of rows and columns), row (of one number for each row), reduction (of a row), loose
    (of something that has no rows); None for anything else."""
    if not own or any(loop.kind != "serial" or len(loop.axes) != 1 or loop.annotations for loop in own):
        return None
    if block.where or any(affine(it.binding) is None for it in block.iters):
        return None
    stored = find_buffer(program, block.buffer)
    assert stored is not None
    row = own[0].axes[0].var
    tiles = [buffer for buffer, _ in _tiles(program, block)]
    if own[0].axes[0].extent != rows and stored.scope == "shared" and stored.shape[0] != rows:
        return "loose" if all(buffer.shape[0] != rows for buffer in tiles) else None
    for buffer, indices in _tiles(program, block):
        if buffer.shape[0] != rows and buffer is not stored:
            continue  # it stays in shared memory
        first = affine(over_loops(block, indices[0]))
        if first is None or first.terms != ((row, Poly.of(1)),) or first.constant.terms or buffer.shape[0] != rows:
            return None
    if len(own) == 3 and block.combine == "sum" and isinstance(block.value, Op) and block.value.fn == "mul":
        return "product" if stored.scope == "shared" and len(stored.shape) == 2 else None
    if block.combine is None:
        if len(own) == 2:
            return "tile"
        return "row" if len(own) == 1 and (stored.scope == "global" or len(stored.shape) == 1) else None
    if block.combine in ("sum", "max", "min") and len(own) == 2 and stored.scope == "shared":
        return "reduction" if len(stored.shape) == 1 else None
    return None


def _tiles(program: Program, block: Block) -> list[tuple[Buffer, tuple[Expr, ...]]]:
    """The accesses of a block to what lives in the region."""
    pairs = [(block.buffer, block.indices), *((load.buffer, load.indices) for load in loads(block.value))]
    found = [(find_buffer(program, name), indices) for name, indices in pairs]
    return [(buffer, indices) for buffer, indices in found if buffer is not None and buffer.scope != "global"]


def _fits(program: Program, block: Block, own: tuple[Loop, ...], units: GpuTensorUnits) -> bool:
    """Whether the product is one of whole units, of a left factor with the rows and a right one from memory."""
    row, column, term = (loop.axes[0] for loop in own)
    left, right = factors_of(block, row.var)
    if left is None or right is None or left.dtype != units.factors or right.dtype != units.factors:
        return False
    memory = find_buffer(program, right.buffer)
    if memory is None or memory.scope != "global":
        return False
    for axis, side in ((column, COLUMNS), (term, units.depth)):
        if axis.extent.quotient(Poly.of(side)) is None:
            return False
    return all(affine(over_loops(block, index)) is not None for load in (left, right) for index in load.indices)


def factors_of(block: Block, row: str) -> tuple[Load | None, Load | None]:
    """The load of the factor that has the rows, and the other one."""
    found = loads(block.value)
    if len(found) != 2:
        return None, None
    with_row = [load for load in found if any(row in variables(over_loops(block, i)) for i in load.indices)]
    if len(with_row) != 1:
        return None, None
    return with_row[0], next(load for load in found if load is not with_row[0])


def turned_region(sketch: Sketch, name: str) -> Sketch | None:
    """The region of a block with the rows and columns of its tiles exchanged, where all have as few rows as a unit has
    columns: what were the columns are shared out over warps. None elsewhere, or where the block is not its last."""
    block, place = block_at(sketch.program, name)
    root = place.root
    if not isinstance(root, Loop) or root.kind != "parallel" or place.prologue or blocks_in(root)[-1] is not block:
        return None
    inside = blocks_in(root)
    if _first_extent(sketch.program, inside) != Poly.of(COLUMNS):
        return None
    tiles = {buffer.name for found in inside for buffer, _ in _tiles(sketch.program, found) if len(buffer.shape) == 2}
    for found in inside:
        loops = [loop.axes[0].var for loop in loops_of(sketch.program, found)]
        if len(loops) < 2 or (len(loops) == 2 and found.combine is not None):
            continue  # sums of a row stay as they are: they are of something that has no rows any more
        step = Reorder((loops[1], loops[0]))
        if step.why_not(sketch.program) is not None:
            return None
        sketch = sketch.apply(step)
    for buffer in sorted(tiles):
        sketch = sketch.apply(TransformLayout(buffer, (1, 1), (1, 0)))
    return sketch
