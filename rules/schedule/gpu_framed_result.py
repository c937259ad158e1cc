"""The result of a product that was framed: the loops of its rows and columns, as rules that tile it want them."""

from __future__ import annotations

from pipeline.ir.expr import Load, Var, loads, variables
from pipeline.schedule.nest import block_at
from pipeline.schedule.sketch import Sketch
from pipeline.schedule.steps import Flatten, Reorder
from rules.schedule.gpu_tensor_product import GpuTensorProduct


def flat_result(sketch: Sketch, found: GpuTensorProduct) -> Sketch:
    """The result with one loop for its rows and one for its columns."""
    out, batch = f"{found.block}_out", len(found.batch)
    for number, letter in enumerate("mn"):
        block, place = block_at(sketch.program, out)
        by_iter = {it.var: it.binding.name for it in block.iters if isinstance(it.binding, Var)}
        index = next(load for load in loads(block.value) if load.buffer == f"{found.block}_tile").indices[
            batch + number
        ]
        used = {by_iter[node] for node in variables(index)}
        names = [loop.axes[0].var for loop in place.loops]
        mine = [loop for loop in names if loop in used]
        if len(mine) > 1:
            sketch = sketch.apply(Reorder((*(loop for loop in names if loop not in used), *mine)))
            sketch = sketch.apply(Flatten(tuple(mine), f"{out}_{letter}"))
    return sketch


def result_loops(sketch: Sketch, out: str, batch: int) -> tuple[str, str]:
    """The loops that will run over the rows and the columns of a tile of the result, once it is moved."""
    block, _ = block_at(sketch.program, out)
    tile = next(load for load in loads(block.value) if load.buffer == out.removesuffix("_out") + "_tile")
    assert isinstance(tile, Load)
    numbers = {it.var: number for number, it in enumerate(block.iters)}
    row, column = tile.indices[batch:]
    assert isinstance(row, Var) and isinstance(column, Var)
    return f"{out}_{numbers[row.name]}", f"{out}_{numbers[column.name]}"
