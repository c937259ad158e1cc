"""What is done to a product before it is tiled for tensor cores: conversions move into it, and a long sum is cut."""

from __future__ import annotations

from pipeline.ir.expr import Load, Op, loads
from pipeline.ir.program import Block
from pipeline.ir.target import Gpu
from pipeline.schedule.nest import block_at, find_buffer, readers, writers
from pipeline.schedule.sketch import Sketch
from pipeline.schedule.steps import Inline, Rfactor, Split
from rules.schedule.gpu_tensor_product import product_of

USUAL_TILE = 64  # rows and columns of a tile, in the guess of how many there are
SHORTEST_SUM = 64  # terms of a part of a sum
MOST_PARTS = 32


def with_casts(sketch: Sketch, block: str) -> Sketch:
    """The product reading what its operands were converted from, where nothing else reads them: the conversion then
    happens on the way into shared memory."""
    found, _ = block_at(sketch.program, block)
    for load in loads(found.value):
        made = writers(sketch.program, load.buffer)
        buffer = find_buffer(sketch.program, load.buffer)
        if buffer is None or buffer.role != "intermediate" or len(made) != 1:
            continue
        if len(readers(sketch.program, load.buffer)) == 1 and _converts(made[0][0]):
            sketch = sketch.attempt(Inline(made[0][0].name))
    return sketch


def _converts(block: Block) -> bool:
    value = block.value
    while isinstance(value, Op) and value.fn == "cast":
        value = value.args[0]
    return isinstance(value, Load) and block.combine is None and value is not block.value


def split_sum(sketch: Sketch, block: str, gpu: Gpu) -> Sketch | None:
    """The product with its sum in parts, `<block>_rf`, so many that every multiprocessor has a tile; None where there
    are enough tiles, or the sum is short."""
    found = product_of(sketch.program, block)
    if found is None:
        return None
    _, place = block_at(sketch.program, block)
    extents = {axis.var: axis.extent.value for axis in place.axes}
    tiles = 1
    for length in found.lengths[:2]:
        tiles *= -(-length // USUAL_TILE)
    for loop in found.batch:
        tiles *= extents[loop]
    parts = 1
    while parts * tiles < gpu.multiprocessors and parts < MOST_PARTS:
        if found.lengths[2] < 2 * parts * SHORTEST_SUM:
            break
        parts *= 2
    for loop in found.sums:
        count = parts
        while count > 1 and extents[loop] % count:
            count //= 2
        if count > 1:
            cut = Split(loop, (extents[loop] // count,), (f"{loop}_part", f"{loop}_rest"))
            return sketch.apply(cut).apply(Rfactor(block, f"{loop}_part"))
    return None
