"""The copy of a tile from memory into shared memory, which all threads of a block make together."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.ir.graph import ITEM_BYTES
from pipeline.ir.poly import Poly
from pipeline.schedule.constraint import AtMost
from pipeline.schedule.nest import block_at, find_buffer, loop_at
from pipeline.schedule.sketch import Sketch
from pipeline.schedule.steps import Bind, Fuse, Reorder, Split, Vectorize
from pipeline.schedule.variables import Choice

WIDEST = 16  # bytes of one access of a thread
ROWS = (1, 2, 4, 8, 16, 32, 64, 128)  # that threads fetch at a time


@dataclass(frozen=True, slots=True)
class GpuFetch:
    """The sketch with the copy, and how many threads make it."""

    sketch: Sketch
    threads: Poly


def fetched(sketch: Sketch, name: str, *, along: int, width: int) -> GpuFetch:
    """Threads share out a tile: the pieces of a row, and so many rows at a time.

    name    of the block that copies; its last two loops run over the tile
    along   0 or 1: which of these two runs along what lies side by side in memory
    width   so many elements may be fetched together
    """
    block, place = block_at(sketch.program, name)
    buffer = find_buffer(sketch.program, block.buffer)
    assert buffer is not None
    pair = [loop.axes[0].var for loop in place.loops[-2:]]
    piece, row = pair[along], pair[1 - along]
    widths = tuple(w for w in (1, 2, 4, 8) if w * ITEM_BYTES[buffer.dtype] <= WIDEST and width % w == 0)
    symbols = (f"t_{name}_v", f"t_{name}_t")
    sketch = sketch.declare(Choice(symbols[0], widths)).declare(Choice(symbols[1], ROWS))
    tall = loop_at(sketch.program, row)[0].axes[0].extent
    sketch = sketch.require(AtMost(f"{name}: rows at a time", Poly.symbol(symbols[1]) - tall, 0))
    pieces = (f"{name}_p", f"{name}_v")
    rows = (f"{name}_r", f"{name}_t")
    sketch = sketch.apply(Split(piece, (Poly.symbol(symbols[0]),), pieces))
    sketch = sketch.apply(Split(row, (Poly.symbol(symbols[1]),), rows))
    threads = Poly.symbol(symbols[1]) * loop_at(sketch.program, pieces[0])[0].axes[0].extent
    sketch = sketch.apply(Reorder((rows[1], pieces[0], rows[0], pieces[1])))
    sketch = sketch.apply(Fuse((rows[1], pieces[0]))).apply(Bind(rows[1], "threadIdx.x"))
    return GpuFetch(sketch.attempt(Vectorize(pieces[1])), threads)
