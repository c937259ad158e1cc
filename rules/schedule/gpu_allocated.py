"""What a kernel allocates on a GPU by its own declarations, as the limits of a rule count it."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.ir.graph import ITEM_BYTES
from pipeline.ir.poly import Poly, product
from pipeline.ir.program import Alloc, Stmt, walk

ADDRESSING = 40  # registers of a thread for indices, pointers and what the compiler keeps besides
ALIGNMENT = 16  # bytes: shared buffers begin where a vector may, so that less than these stay free before one


@dataclass(frozen=True, slots=True)
class GpuAllocated:
    """Bytes of shared memory that a block of the grid has, and bytes of registers that a thread has for buffers."""

    shared: Poly
    held: Poly

    @classmethod
    def of(cls, stmt: Stmt) -> GpuAllocated:
        shared = held = Poly.of(0)
        for found in walk(stmt):
            if isinstance(found, Alloc):
                *outer, row = found.buffer.shape or (Poly.of(1),)
                size = product(outer) * (row + found.buffer.pad) * ITEM_BYTES[found.buffer.dtype]
                if found.buffer.scope == "shared":
                    shared = shared + size + ALIGNMENT
                else:
                    held = held + size
        return cls(shared, held)
