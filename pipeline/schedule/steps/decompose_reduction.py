"""The step that splits the initial value off a reduction."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pipeline.ir.poly import Poly
from pipeline.ir.program import Alloc, Loop, Program
from pipeline.schedule.nest import (
    block_at,
    blocks_in,
    clash,
    loop_at,
    no_loop_around,
    put,
    several,
    swapped_in,
)
from pipeline.schedule.rewrite import constant_store, constant_store_names, reduce_variables, spatial_variables


@dataclass(frozen=True, slots=True)
class DecomposeReduction:
    """Store the initial value of a reduction in a block of its own, before its loops.

    block   name of the reduction block
    loop    the loop before which the initial value is stored; the block's reduction loops are at or inside it

    for i: for k: [init 0] C[i] += a  ->  for i: { C[i] = 0; for k: C[i] += a }     at loop k

    The new block is `<block>_init`; its loops are the spatial ones at and inside `loop`, called `<block>_i_<name>`.

    Legal when the block has an initial value, every loop at or inside `loop` is an iteration of the block (each element
    is initialised once), and nothing else inside `loop` writes the buffer.
    """

    block: str
    loop: str

    def why_not(self, program: Program) -> str | None:
        if (reason := no_loop_around(program, self.block, self.loop)) is not None:
            return reason
        block, place = block_at(program, self.block)
        loop, around = loop_at(program, self.loop)
        if block.combine is None:
            return f"block {self.block} is not a reduction"
        if block.init is None:
            return f"block {self.block} has no initial value: it was decomposed already"
        if (unit := loop.annotation("blockize")) is not None and unit != self.loop:
            return f"loop {self.loop} is inside the unit {unit}, which stays whole: choose that loop"
        reduced, spatial = reduce_variables(block), spatial_variables(block)
        for outer in around.loops:
            if found := [axis.var for axis in outer.axes if axis.var in reduced]:
                return f"the reduction runs over {found[0]}, around loop {self.loop}: choose that loop"
        inside = (loop, *place.inside(loop))
        for axis in (axis for found in inside for axis in found.axes):
            if axis.var in reduced and axis.var in spatial:
                return f"loop {axis.var} is spatial and reduced at once"
            if axis.var not in reduced and axis.var not in spatial and axis.extent != Poly.of(1):
                return f"block {self.block} does not iterate over loop {axis.var}: choose a loop inside it"
        for stmt in place.path[len(around.path) :]:
            if isinstance(stmt, Alloc) and stmt.buffer.name == block.buffer:
                return f"buffer {block.buffer} lives only inside loop {self.loop}: choose a loop inside its allocation"
        for other in blocks_in(loop):
            if other.buffer == block.buffer and other is not block:
                return f"block {other.name} writes {block.buffer} inside loop {self.loop}, too: choose a loop inside it"
        names = constant_store_names(inside, block, f"{self.block}_i")
        return clash(program, variables=names, blocks=[f"{self.block}_init"])

    def apply(self, program: Program) -> Program:
        block, place = block_at(program, self.block)
        loop, _ = loop_at(program, self.loop)
        assert block.init is not None
        inside: tuple[Loop, ...] = (loop, *place.inside(loop))
        before = constant_store(block, inside, f"{self.block}_i", f"{self.block}_init", block.init)
        update = swapped_in(loop, block, replace(block, init=None))
        assert update is not None
        return put(program, loop, several((before, update)))
