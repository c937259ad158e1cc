"""The step that runs a loop in the lanes of vectors."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pipeline.ir.program import Alloc, Loop, Program, walk
from pipeline.schedule.nest import loop_at, no_loop, put, settled
from pipeline.schedule.steps.parallel import carried_by


@dataclass(frozen=True, slots=True)
class Vectorize:
    """Run the iterations of a loop in the lanes of vectors; any extent, the code generator masks the tail.

    loop   name of the loop

    for i in range(n): s  ->  vectorized for i in range(n): s

    Legal when the loop is serial, not fused, not annotated, has no loop or buffer inside, and its iterations touch
    different elements or are combined (a horizontal reduction); never along a scan.
    """

    loop: str

    def why_not(self, program: Program) -> str | None:
        if (reason := no_loop(program, self.loop)) is not None:
            return reason
        loop, _ = loop_at(program, self.loop)
        if loop.kind != "serial":
            return f"loop {self.loop} is {loop.kind} already"
        if (reason := settled(loop, "vectorized")) is not None:
            return reason
        if len(loop.axes) != 1:
            return f"loop {self.loop} is fused of {', '.join(a.var for a in loop.axes)}: vectorize a loop of one axis"
        for found in walk(loop.body):
            if isinstance(found, Alloc):
                return f"buffer {found.buffer.name} lives inside loop {self.loop}: lanes have no buffers of their own"
            if isinstance(found, Loop):
                return f"loop {found.axes[0].var} is inside loop {self.loop}: only an innermost loop has lanes"
        return carried_by(loop, reductions=True)

    def apply(self, program: Program) -> Program:
        loop, _ = loop_at(program, self.loop)
        return put(program, loop, replace(loop, kind="vectorized"))
