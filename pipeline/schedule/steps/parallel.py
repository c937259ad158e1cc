"""The step that runs a loop on several threads."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pipeline.ir.program import Loop, Program
from pipeline.schedule.dependence import carried
from pipeline.schedule.nest import extents, loop_at, no_loop, put, settled


@dataclass(frozen=True, slots=True)
class Parallel:
    """Run the iterations of a loop on several threads.

    loop   name of the loop

    for i in range(n): s  ->  parallel for i in range(n): s

    Legal when the loop is the outermost of its region, serial, not annotated, and its iterations touch different
    elements (no reduction, no scan).
    """

    loop: str

    def why_not(self, program: Program) -> str | None:
        if (reason := no_loop(program, self.loop)) is not None:
            return reason
        loop, place = loop_at(program, self.loop)
        if place.path:
            return f"loop {self.loop} is not the outermost of its region: reorder or fuse first"
        if loop.kind != "serial":
            return f"loop {self.loop} is {loop.kind} already"
        if (reason := settled(loop, "parallel")) is not None:
            return reason
        return carried_by(loop, reductions=False)

    def apply(self, program: Program) -> Program:
        loop, _ = loop_at(program, self.loop)
        return put(program, loop, replace(loop, kind="parallel"))


def carried_by(loop: Loop, *, reductions: bool) -> str | None:
    """Why the iterations of a loop cannot run at the same time; with `reductions`, combining is allowed."""
    sizes = extents(loop.axes)
    for axis in loop.axes:
        found = carried(loop.body, axis, {var: extent for var, extent in sizes.items() if var != axis.var})
        if found.kind == "order" or (found.kind == "reduction" and not reductions):
            return f"loop {loop.axes[0].var} carries a dependence: {found.why}"
    return None
