"""Which elements of its outputs a program gives to chosen blocks of a launch: what a sample of them has to write.

Without this, a sample could not tell an element that was forgotten from one that belongs to a block that did not run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from pipeline.ir.expr import loads, variables
from pipeline.ir.lockstep import BLOCKS
from pipeline.ir.program import Alloc, Block, Loop, Program, Seq, Stmt
from pipeline.ir.program_bounds import evaluate

MOST_POINTS = 1 << 23  # of the loops around one statement, of all chosen blocks together

Array = np.ndarray[tuple[int, ...], np.dtype[np.int64]]
Mask = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]


def expected_writes(program: Program, region: int, blocks: np.ndarray[Any, Any]) -> dict[str, Mask] | None:
    """For each output the elements that these blocks (x, y, z) of a region's grid store; None where that hangs on data,
    or where there are too many points to look at."""
    roles = {buffer.name: buffer for buffer in program.buffers if buffer.role == "output"}
    masks = {name: np.zeros(tuple(e.value for e in buffer.shape), np.bool_) for name, buffer in roles.items()}
    chosen = blocks.astype(np.int64).reshape(-1, 3)
    for loops, block in _stores(program.body.body[region], ()):
        if block.buffer not in masks:
            continue
        spatial = [it for it in block.iters if it.kind != "reduce"]
        exprs = [*(it.binding for it in spatial), *block.where]
        if any(loads(expr) for expr in (*exprs, *block.indices)):
            return None
        points = _points(loops, {name for expr in exprs for name in variables(expr)}, chosen)
        if points is None:
            return None
        inside: Mask = np.ones(_count(points, chosen), np.bool_)
        iters: dict[str, Array] = {}
        for it in block.iters:
            if it.kind == "reduce":
                continue
            iters[it.var] = value = np.broadcast_to(evaluate(it.binding, points), inside.shape)
            inside = inside & (value >= 0) & (value < it.extent.value)
        for condition in block.where:
            inside = inside & np.asarray(evaluate(condition, points), np.bool_)
        at = tuple(np.broadcast_to(evaluate(index, iters), inside.shape)[inside] for index in block.indices)
        masks[block.buffer][at] = True
    return masks


def _stores(stmt: Stmt, around: tuple[Loop, ...]) -> Iterator[tuple[tuple[Loop, ...], Block]]:
    """Each block with the loops around it."""
    match stmt:
        case Block():
            yield around, stmt
        case Loop():
            yield from _stores(stmt.body, (*around, stmt))
        case Alloc():
            yield from _stores(stmt.body, around)
        case Seq():
            for child in stmt.body:
                yield from _stores(child, around)


def _points(loops: Sequence[Loop], needed: set[str], chosen: Array) -> dict[str, Array] | None:
    """The values of the variables at all points of the loops; of one that is not needed, its first alone."""
    values: dict[str, Array] = {}
    count = len(chosen)
    for number, loop in enumerate(loops):
        on_grid = loop.kind in BLOCKS or (loop.kind == "parallel" and number == 0)
        flat: Array
        if on_grid:
            flat = chosen[:, BLOCKS.index(loop.kind) if loop.kind in BLOCKS else 0]
            flat = np.repeat(flat, count // len(chosen))
            for axis in reversed(loop.axes):
                values[axis.var], flat = flat % axis.extent.value, flat // axis.extent.value
            continue
        for axis in loop.axes:
            extent = axis.extent.value
            if axis.var not in needed:
                values[axis.var] = np.zeros(count, np.int64)
                continue
            if count * extent > MOST_POINTS:
                return None
            values = {name: np.repeat(value, extent) for name, value in values.items()}
            values[axis.var] = np.tile(np.arange(extent, dtype=np.int64), count)
            count *= extent
    return values


def _count(points: dict[str, Array], chosen: Array) -> int:
    return max((len(value) for value in points.values()), default=min(1, len(chosen)))


def forgotten(masks: Mapping[str, Mask], written: Mapping[str, np.ndarray[Any, Any]]) -> str | None:
    """What is wrong where an element of the masks was not written; else None."""
    for name, mask in masks.items():
        missing = mask & ~written[name]
        if missing.any():
            place = [int(i) for i in np.argwhere(missing)[0]]
            return (
                f"output {name}: {int(missing.sum())} elements that the blocks have to write were not, such as {place}"
            )
    return None
