"""The step that leaves room after each row of a buffer."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pipeline.ir.poly import Poly
from pipeline.ir.program import Program
from pipeline.ir.region import at_least
from pipeline.schedule.nest import find_buffer, map_allocs, no_buffer, unknown_symbols


@dataclass(frozen=True, slots=True)
class StorageAlign:
    """Leave some elements free after each row of a buffer in shared memory, so that rows begin in different banks.

    buffer   its name
    pad      elements after each row (of the last dimension): a number, a parameter, or a polynomial in parameters

    alloc S: float16[64, 32] in shared  ->  alloc S: float16[64, 32] in shared padded(8)      with pad 8

    Where an element lies is all that changes. The shape of the buffer stays, and with it every index.

    Legal when the buffer is allocated in shared memory and not swizzled, which does the same without room.
    """

    buffer: str
    pad: Poly | int

    def why_not(self, program: Program) -> str | None:
        if (reason := no_buffer(program, self.buffer)) is not None:
            return reason
        found = find_buffer(program, self.buffer)
        assert found is not None
        if found.scope != "shared":
            return f"{self.buffer} is {found.scope}: only memory that is shared by threads has banks"
        if found.swizzled:
            return f"{self.buffer} is swizzled: its rows begin in different banks already"
        if not at_least(Poly.of(self.pad), Poly.of(0)):
            return f"the padding {Poly.of(self.pad)} is not known to be 0 or more"
        return unknown_symbols(program, Poly.of(self.pad).symbols())

    def apply(self, program: Program) -> Program:
        return map_allocs(program, self.buffer, lambda buffer: replace(buffer, pad=Poly.of(self.pad)))
