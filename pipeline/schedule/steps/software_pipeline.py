"""The step that lets a loop start the copies of later iterations early."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pipeline.ir.annotation import wrong
from pipeline.ir.program import Alloc, Loop, Program, walk
from pipeline.schedule.nest import loop_at, no_loop, put, settled, unknown_symbols


@dataclass(frozen=True, slots=True)
class SoftwarePipeline:
    """Have several iterations of a loop under way at a time: their copies into shared memory are started early.

    loop     name of the loop
    stages   so many iterations at a time, 1 for none ahead: a number, or the name of a parameter

    for k in range(n): alloc S: { S = copy of A; use S }
      ->  for k in range(n) with software_pipeline=3: alloc S: { S = copy of A; use S }

    What the program computes stays the same: the code generator keeps as many of each shared buffer allocated in the
    loop as there are stages, and starts the copies that begin an iteration that many less one ahead.

    Legal when the loop is serial, of one axis, not annotated, no other pipeline is around it or in it, and buffers in
    shared memory are allocated in it.
    """

    loop: str
    stages: int | str

    def why_not(self, program: Program) -> str | None:
        if (reason := no_loop(program, self.loop) or wrong("software_pipeline", self.stages)) is not None:
            return reason
        if isinstance(self.stages, str) and (reason := unknown_symbols(program, [self.stages])) is not None:
            return reason
        loop, place = loop_at(program, self.loop)
        if loop.kind != "serial":
            return f"loop {self.loop} is {loop.kind}: only a serial loop has a next iteration"
        if len(loop.axes) != 1:
            return f"loop {self.loop} is fused of {', '.join(a.var for a in loop.axes)}: it has no one variable"
        if (reason := settled(loop, "pipelined")) is not None:
            return reason
        inside = [found for found in walk(loop.body) if isinstance(found, Loop)]
        for other in (*place.loops, *inside):
            if other.annotation("software_pipeline") is not None:
                return f"loop {other.axes[0].var} is a pipeline already: one inside another is not possible"
        if not any(isinstance(found, Alloc) and found.buffer.scope == "shared" for found in walk(loop.body)):
            return f"loop {self.loop} has no buffer in shared memory whose copy could be started early"
        return None

    def apply(self, program: Program) -> Program:
        loop, _ = loop_at(program, self.loop)
        return put(program, loop, replace(loop, annotations=(*loop.annotations, ("software_pipeline", self.stages))))
