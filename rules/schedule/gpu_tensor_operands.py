"""What is done to a product before it is tiled for tensor cores: conversions of its operands move into it."""

from __future__ import annotations

from pipeline.ir.expr import Load, Op, loads
from pipeline.ir.program import Block
from pipeline.schedule.nest import block_at, find_buffer, readers, writers
from pipeline.schedule.sketch import Sketch
from pipeline.schedule.steps import Inline


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
