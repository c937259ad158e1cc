"""The step that makes the innermost loops around a block one unit."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pipeline.ir.program import Block, Loop, Program, Stmt
from pipeline.schedule.nest import loop_at, no_loop, put, settled


@dataclass(frozen=True, slots=True)
class Blockize:
    """Make the nest from a loop down to its block one unit, which no later step takes apart.

    loop   name of the outermost loop of the unit

    for i in range(16): for k in range(4): s
      ->  for i in range(16) with blockize="i": for k in range(4) with blockize="i": s

    A unit has no meaning of its own: it runs as the loops it consists of. Split, Fuse, Reorder, Unroll, Vectorize and
    Parallel refuse its loops, and nothing is computed or cached between them. Tensorize makes an instruction of it.

    Legal when the loops from this one on are a perfect nest around one block, serial, not fused, not annotated, and of
    extents that are numbers.
    """

    loop: str

    def why_not(self, program: Program) -> str | None:
        if (reason := no_loop(program, self.loop)) is not None:
            return reason
        stmt: Stmt = loop_at(program, self.loop)[0]
        while isinstance(stmt, Loop):
            name = stmt.axes[0].var
            if stmt.kind != "serial":
                return f"loop {name} is {stmt.kind}: a unit is made of serial loops"
            if len(stmt.axes) != 1:
                return f"loop {name} is fused of {', '.join(a.var for a in stmt.axes)}: a unit has loops of one axis"
            if not stmt.axes[0].extent.is_constant:
                return f"the extent {stmt.axes[0].extent} of loop {name} is not a number: split by one"
            if (reason := settled(stmt, "part of another unit")) is not None:
                return reason
            stmt = stmt.body
        return None if isinstance(stmt, Block) else f"loop {self.loop} is not a perfect nest around one block"

    def apply(self, program: Program) -> Program:
        loop, _ = loop_at(program, self.loop)

        def marked(stmt: Stmt) -> Stmt:
            if not isinstance(stmt, Loop):
                return stmt
            notes = (*stmt.annotations, ("blockize", self.loop))
            return replace(stmt, body=marked(stmt.body), annotations=notes)

        return put(program, loop, marked(loop))
