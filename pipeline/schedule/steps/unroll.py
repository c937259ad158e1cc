"""The step that unrolls a loop in the code."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pipeline.ir.program import Program
from pipeline.schedule.nest import awaited, loop_at, no_loop, put, settled


@dataclass(frozen=True, slots=True)
class Unroll:
    """Repeat the body of a loop in the code, once for each iteration.

    loop   name of the loop

    for i in range(n): s  ->  unrolled for i in range(n): s

    Legal when the loop is serial and not annotated.
    """

    loop: str

    def why_not(self, program: Program) -> str | None:
        if (reason := no_loop(program, self.loop)) is not None:
            return reason
        loop, _ = loop_at(program, self.loop)
        if loop.kind != "serial":
            return f"loop {self.loop} is {loop.kind} already"
        return settled(loop, "unrolled") or awaited(loop, "unrolled")

    def apply(self, program: Program) -> Program:
        loop, _ = loop_at(program, self.loop)
        return put(program, loop, replace(loop, kind="unrolled"))
