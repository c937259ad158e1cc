"""The step that lets pieces of the rows of a buffer change places."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pipeline.ir.graph import ITEM_BYTES
from pipeline.ir.program import Program
from pipeline.schedule.nest import find_buffer, map_allocs, no_buffer


@dataclass(frozen=True, slots=True)
class Swizzle:
    """Let the 16-byte pieces of a row change places by the row's number, so that eight rows have the same piece in
    different banks.

    buffer   its name

    alloc S: float16[64, 32] in shared  ->  alloc S: float16[64, 32] in shared swizzled

    Where an element lies is all that changes. A row that is no power of two of bytes, or shorter than two pieces, stays
    as it is: where the length of a row is a parameter, that is settled by its value.

    Legal when the buffer is allocated in shared memory, has two dimensions or more, is not padded, and an element is no
    longer than a piece and divides it.
    """

    buffer: str

    def why_not(self, program: Program) -> str | None:
        if (reason := no_buffer(program, self.buffer)) is not None:
            return reason
        found = find_buffer(program, self.buffer)
        assert found is not None
        if found.scope != "shared":
            return f"{self.buffer} is {found.scope}: only memory that is shared by threads has banks"
        if found.swizzled:
            return f"{self.buffer} is swizzled already"
        if found.pad.terms:
            return f"{self.buffer} is padded by {found.pad}: its rows begin in different banks already"
        if len(found.shape) < 2:
            return f"{self.buffer} has {len(found.shape)} dimensions: it takes rows for their pieces to change places"
        if 16 % ITEM_BYTES[found.dtype]:
            return f"an element of {self.buffer} does not fit into a piece of 16 bytes"
        return None

    def apply(self, program: Program) -> Program:
        return map_allocs(program, self.buffer, lambda buffer: replace(buffer, swizzled=True))
