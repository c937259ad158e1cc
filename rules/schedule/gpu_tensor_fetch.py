"""The copies that bring the operands of a product on tensor cores into shared memory, and from there into registers."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.ir.graph import ITEM_BYTES, DType
from pipeline.ir.poly import Poly
from pipeline.schedule.constraint import AtMost
from pipeline.schedule.nest import block_at
from pipeline.schedule.sketch import Sketch
from pipeline.schedule.steps import (
    Bind,
    Blockize,
    Fuse,
    Reorder,
    Split,
    StorageAlign,
    Swizzle,
    Tensorize,
    TransformLayout,
    Unroll,
    Vectorize,
)
from pipeline.schedule.variables import Tile
from rules.schedule.gpu_tensor_units import PIECE

LANES = 32  # of a warp
ROW = 64  # bytes that lie side by side, at least, in what a warp fetches at once: two sectors of memory


@dataclass(frozen=True, slots=True)
class GpuTensorFetch:
    """How all warps together copy a tile into shared memory.

    name     of the block that copies
    vector   elements that a thread copies at once
    lanes    of a warp along the rows, and along each row
    turned   neighbours of a column, not of a row, lie side by side where it comes from
    """

    name: str
    vector: int
    lanes: tuple[Poly, Poly]
    turned: bool = False


def pieces(dtype: DType, width: int) -> int:
    """Elements that a thread fetches at once, where so many may be fetched together."""
    most = PIECE // ITEM_BYTES[dtype]
    while width % most:
        most //= 2
    return most


def free_lanes(sketch: Sketch, name: str, length: int, piece: int) -> tuple[Sketch, tuple[Poly, Poly]]:
    """Two parameters that share out the lanes of a warp along the rows of a tile and along each row, of at most so many
    bytes; neighbours fetch pieces of so many bytes each, two sectors of memory together where there are as many."""
    across = 1
    while 2 * across <= min(LANES, -(-length // piece), ROW // piece):
        across *= 2
    most = across
    while most < min(LANES, -(-length // piece)):
        most *= 2
    symbols = (f"t_{name}_y", f"t_{name}_x")
    sketch = sketch.declare(Tile(symbols, LANES, (1, across), (LANES, most), exact=True))
    down, along = (Poly.symbol(symbol) for symbol in symbols)
    return sketch.require(AtMost(f"{name}: all lanes", down * along * -1, -LANES)), (down, along)


def wide_dims(shape: tuple[Poly, ...]) -> tuple[int, int]:
    """The two dimensions of a tile: the others have one element."""
    found = [dim for dim, extent in enumerate(shape) if extent != Poly.of(1)]
    first, second = found if len(found) == 2 else (len(shape) - 2, len(shape) - 1)
    return first, second


def two_loops(sketch: Sketch, name: str) -> tuple[Sketch, tuple[str, str], tuple[str, ...]]:
    """The two loops of a copy that count, which become its innermost ones, and those of one iteration."""
    shape = sketch.program.buffer(name).shape
    _, place = block_at(sketch.program, name)
    own = [loop.axes[0].var for loop in place.loops[-len(shape) :]]
    first, second = (own[dim] for dim in wide_dims(shape))
    single = tuple(loop for loop in own if loop not in (first, second))
    order = (*single, first, second)
    return (sketch if list(order) == own else sketch.apply(Reorder(order))), (first, second), single


def fetched(sketch: Sketch, fetch: GpuTensorFetch, warps: Poly, *, swizzled: bool) -> Sketch:
    """The copy into shared memory, by all threads, each a piece of a row at a time."""
    name = fetch.name
    sketch, (row, across), single = two_loops(sketch, name)
    down, along = fetch.lanes
    rows = (f"{name}_r", f"{name}_w", f"{name}_y")
    columns = (f"{name}_c", f"{name}_x", f"{name}_v")
    sketch = sketch.apply(Split(row, (warps, down), rows))
    sketch = sketch.apply(Split(across, (along, fetch.vector), columns))
    lanes = (columns[1], rows[2]) if fetch.turned else (rows[2], columns[1])
    sketch = sketch.apply(Reorder((rows[1], *lanes, *single, rows[0], columns[0], columns[2])))
    sketch = sketch.apply(Fuse(lanes))
    if fetch.vector > 1:
        sketch = sketch.apply(Vectorize(columns[2]))
    sketch = sketch.apply(Bind(lanes[0], "threadIdx.x")).apply(Bind(rows[1], "threadIdx.y"))
    for loop in (rows[0], columns[0]):
        sketch = sketch.apply(Unroll(loop))
    if swizzled:
        return sketch.apply(Swizzle(name))
    size = ITEM_BYTES[sketch.program.buffer(name).dtype]
    return sketch.apply(StorageAlign(name, room_bytes(size) // size))


def room_bytes(size: int) -> int:
    """Bytes free after each row, so that lanes which read numbers of so many bytes down columns find other banks."""
    return 2 * PIECE if size == 4 else PIECE


def loaded(sketch: Sketch, name: str, unit: str, sides: tuple[int, int], *, own_first: bool, left: bool) -> Sketch:
    """The copy from shared memory into fragments: one unit for each tile along the operand's own loops.

    sides       of a unit's tile: along the operand's own loops and along the sum
    own_first   the operand's own index comes before that of the sum
    """
    sketch, (first, second), _ = two_loops(sketch, name)
    shape = sketch.program.buffer(name).shape
    dims = wide_dims(shape)
    own, sums = (first, second) if own_first else (second, first)
    outer, along = dims if own_first else dims[::-1]
    tiles = tuple(sides[0] if dim == outer else 1 for dim in range(len(shape)))
    inner = len(shape)  # the only dimension that is split has its inner part last
    last = (inner, along) if left else (along, inner)
    batch = [dim for dim in range(len(shape)) if dim not in dims]
    parts = (f"{name}_f", f"{name}_i")
    whole = shape[outer] == Poly.of(sides[0])  # one tile is all of it
    if whole:
        parts = (own, own)
    else:
        sketch = sketch.apply(Split(own, (sides[0],), parts))
    sketch = sketch.apply(TransformLayout(name, tiles, (*batch, outer, *last)))
    last_two = (parts[1], sums) if left else (sums, parts[1])
    sketch = sketch.apply(Reorder(last_two if whole else (parts[0], *last_two)))
    if not whole:
        sketch = sketch.apply(Unroll(parts[0]))
    return sketch.apply(Blockize(last_two[0])).apply(Tensorize(last_two[0], unit))
