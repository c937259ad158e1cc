"""The step that makes a dimension of an intermediate buffer longer than its contents."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pipeline.ir.program import Program
from pipeline.schedule.nest import find_buffer, no_buffer


@dataclass(frozen=True, slots=True)
class Pad:
    """Add elements that nobody uses at the end of one dimension of an intermediate buffer.

    buffer     its name
    dimension  number of the dimension
    multiple   of which its extent becomes a multiple, so that rows start at aligned addresses

    T[10, 13]  ->  T[10, 16]      with dimension 1 and multiple 16

    Legal when the buffer is global and an intermediate or packed, and the extent is a number.
    """

    buffer: str
    dimension: int
    multiple: int

    def why_not(self, program: Program) -> str | None:
        found = find_buffer(program, self.buffer)
        if found is None:
            return no_buffer(program, self.buffer)
        if found.scope != "global" or found.role not in ("intermediate", "packed"):
            return f"{self.buffer} is {found.scope} and {found.role}: its layout is not ours to choose"
        if not 0 <= self.dimension < len(found.shape):
            return f"{self.buffer} has the dimensions 0 to {len(found.shape) - 1}, not {self.dimension}"
        if self.multiple < 1:
            return f"the multiple is {self.multiple}: it must be at least 1"
        extent = found.shape[self.dimension]
        return None if extent.is_constant else f"the extent {extent} is not a number: tile by a multiple instead"

    def apply(self, program: Program) -> Program:
        found = find_buffer(program, self.buffer)
        assert found is not None
        extent = found.shape[self.dimension].value
        longer = found.shape[self.dimension] + (-extent % self.multiple)
        shape = (*found.shape[: self.dimension], longer, *found.shape[self.dimension + 1 :])
        target = replace(found, shape=shape)
        return replace(program, buffers=tuple(target if b.name == self.buffer else b for b in program.buffers))
