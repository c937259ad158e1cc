"""The step that gives the iterations of a loop to the blocks of a grid, or to the threads of a block."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Literal

from pipeline.ir.lockstep import GRID
from pipeline.ir.program import PRIVATE, Alloc, Loop, Program, walk
from pipeline.schedule.nest import Place, blocks_in, loads_of, loop_at, no_loop, put, settled
from pipeline.schedule.steps.parallel import carried_by

Hardware = Literal["blockIdx.x", "blockIdx.y", "blockIdx.z", "threadIdx.x", "threadIdx.y", "threadIdx.z"]
LONGEST = {"blockIdx.x": 2**31 - 1, "blockIdx.y": 65535, "blockIdx.z": 65535,
           "threadIdx.x": 1024, "threadIdx.y": 1024, "threadIdx.z": 64}  # fmt: skip
"""Of a grid and of a block in each direction: CUDA C++ Programming Guide, technical specifications by compute
capability."""


@dataclass(frozen=True, slots=True)
class Bind:
    """Give the iterations of a loop to the blocks of a grid, or to the threads of a block.

    loop   name of the loop; its axes, where it is a fused one, are counted together, the last one fastest
    to     blockIdx.x, .y, .z or threadIdx.x, .y, .z

    for i in range(n): s  ->  for i in blockIdx.x(n): s
    parallel for i in range(n): s  ->  for i in blockIdx.x(n): s

    Legal when the iterations touch different elements (no reduction, no scan) and no loop around or inside is of the
    same kind. A grid loop is the outermost of its region, or inside other grid loops only; it is serial or parallel. A
    thread loop is serial, is not inside lanes, has no shared buffer inside (its threads would all have one), and uses
    no registers from outside: each thread has its own of those (see Privatize).
    """

    loop: str
    to: Hardware

    def why_not(self, program: Program) -> str | None:
        if (reason := no_loop(program, self.loop)) is not None:
            return reason
        if self.to not in LONGEST:
            return f"a loop is bound to one of {', '.join(LONGEST)}, not to {self.to}"
        loop, place = loop_at(program, self.loop)
        grid = self.to in GRID
        if loop.kind != "serial" and not (grid and loop.kind == "parallel"):
            return f"loop {self.loop} is {loop.kind} already"
        if (reason := settled(loop, "bound")) is not None:
            return reason
        inside = tuple(found for found in walk(loop.body) if isinstance(found, Loop))
        for where, others in (("around", place.loops), ("inside", inside)):
            for other in others:
                if other.kind == self.to:
                    return f"loop {other.axes[0].var} {where} loop {self.loop} is {self.to} already"
        if (reason := _grid(loop, place) if grid else _threads(loop, place)) is not None:
            return reason
        sizes = [axis.extent for axis in loop.axes]
        if all(extent.is_constant for extent in sizes) and prod(e.value for e in sizes) > LONGEST[self.to]:
            return (
                f"loop {self.loop} has {prod(e.value for e in sizes)} iterations: {self.to} counts {LONGEST[self.to]}"
            )
        return carried_by(loop, reductions=False)

    def apply(self, program: Program) -> Program:
        loop, _ = loop_at(program, self.loop)
        return put(program, loop, replace(loop, kind=self.to))


def _grid(loop: Loop, place: Place) -> str | None:
    """Why a loop is no part of a grid."""
    for stmt in place.path:
        if not isinstance(stmt, Loop) or stmt.kind not in GRID or stmt.kind == "parallel":
            return f"loop {loop.axes[0].var} is not the outermost of its region: reorder or fuse first"
    return None


def _threads(loop: Loop, place: Place) -> str | None:
    """Why a loop is not run by the threads of a block."""
    name = loop.axes[0].var
    for outer in place.loops:
        if outer.kind == "vectorized":
            return f"loop {name} is inside the lanes of loop {outer.axes[0].var}"
        if outer.kind == "parallel":
            return f"loop {name} is inside the parallel loop {outer.axes[0].var}: bind that to blockIdx first"
    for inner in walk(loop.body):
        if isinstance(inner, Alloc) and inner.buffer.scope == "shared":
            return f"the threads of loop {name} would share {inner.buffer.name}, which each iteration has of its own"
        if isinstance(inner, Loop) and inner.kind in GRID:
            return f"the grid loop {inner.axes[0].var} is inside loop {name}"
    used = {
        buffer for block in blocks_in(loop) for buffer in (block.buffer, *(load.buffer for load in loads_of(block)))
    }
    for around in place.path:
        if isinstance(around, Alloc) and around.buffer.scope in PRIVATE and around.buffer.name in used:
            return (f"each thread of loop {name} has a {around.buffer.name} of its own, which is allocated outside: "
                    f"bind while it is shared, and make it private after that")  # fmt: skip
    return None
