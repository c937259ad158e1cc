"""The step that fuses nested loops into one."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from pipeline.ir.program import Loop, Program
from pipeline.schedule.nest import awaited, loop_at, no_loop, put, settled


@dataclass(frozen=True, slots=True)
class Fuse:
    """Fuse perfectly nested loops into one that runs over the product of their axes.

    loops   names of the loops, outermost first

    for i in range(n): for j in range(m): s  ->  for i, j in range(n, m): s

    The variables stay, so that indices below stay affine. The new loop is named by its first axis.

    Legal when each loop is the whole body of the one before it, and all are serial and not annotated.
    """

    loops: tuple[str, ...]

    def why_not(self, program: Program) -> str | None:
        if len(self.loops) < 2:
            return "it takes two loops to fuse"
        for name in self.loops:
            if (reason := no_loop(program, name)) is not None:
                return reason
        found = [loop_at(program, name)[0] for name in self.loops]
        for loop in found:
            if loop.kind != "serial":
                return f"loop {loop.axes[0].var} is {loop.kind}: fuse before that"
            if (reason := settled(loop, "fused") or awaited(loop, "fused")) is not None:
                return reason
        for outer, below in pairwise(found):
            if outer.body is not below:
                return f"loop {below.axes[0].var} is not the whole body of loop {outer.axes[0].var}: reorder first"
        return None

    def apply(self, program: Program) -> Program:
        found = [loop_at(program, name)[0] for name in self.loops]
        axes = tuple(axis for loop in found for axis in loop.axes)
        return put(program, found[0], Loop(axes, found[-1].body))
