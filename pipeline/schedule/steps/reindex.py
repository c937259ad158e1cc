"""The step that copies an operand into the order of a block's iterations, before any loop is split."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.ir.expr import variables
from pipeline.ir.program import Program
from pipeline.schedule.nest import block_at, loads_of, no_block, over_loops
from pipeline.schedule.steps.pack import Pack


@dataclass(frozen=True, slots=True)
class Reindex:
    """Copy an operand into a buffer with one dimension for each loop that its index depends on, in their order.

    block    name of the block
    buffer   that it reads once
    name     of the new buffer and of the block that fills it

    for h: for w: for c: for r: C[h, w] += X[2*h + r, w, c] * ...
      ->  for h: for w: for c: for r: R[h, w, c, r] = X[2*h + r, w, c]
          for h: for w: for c: for r: C[h, w] += R[h, w, c, r] * ...

    A window of a convolution becomes a plain operand (im2col). The loops of the copy are `<name>_<loop>`.

    Legal where `Pack` with that order is.
    """

    block: str
    buffer: str
    name: str

    def why_not(self, program: Program) -> str | None:
        if (reason := no_block(program, self.block)) is not None:
            return reason
        return self._pack(program).why_not(program)

    def apply(self, program: Program) -> Program:
        return self._pack(program).apply(program)

    def _pack(self, program: Program) -> Pack:
        block, place = block_at(program, self.block)
        indices = [index for load in loads_of(block) if load.buffer == self.buffer for index in load.indices]
        used = {name for index in indices for name in variables(over_loops(block, index))}
        order = tuple(axis.var for axis in place.axes if axis.var in used)
        return Pack(self.block, self.buffer, order, self.name)
