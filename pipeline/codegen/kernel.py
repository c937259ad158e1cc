"""A compiled kernel: relocatable object code and what a caller must know to run it.

Every kernel has the signature `void symbol(ptr buffers, i64 thread, i64 threads, ptr barrier)`. It is SPMD: each of
`threads` threads calls it with the same buffers and barrier and its own number. `buffers` is an array of pointers, one
per argument, in order, 64-byte aligned. Regions inside one kernel are kept apart by calls of `muschedule_barrier`; the
iterations of a long parallel loop are shared out by `muschedule_take`, in memory behind the barrier.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from pipeline.ir.graph import ITEM_BYTES, DType, Shape
from pipeline.ir.program import Buffer

Role = Literal["input", "constant", "packed", "output", "workspace"]


@dataclass(frozen=True, slots=True)
class Argument:
    """One pointer of a kernel.

    role   input: given at run time · constant: known at compile time, read by the prologue or by the kernel ·
           packed: made once from constants by the prologue, read by the kernel · output: written ·
           workspace: scratch of the kernel, shared by its threads
    """

    name: str
    shape: Shape
    dtype: DType
    role: Role

    @property
    def nbytes(self) -> int:
        """Bytes of the elements, row-major and without gaps."""
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class Kernel:
    """Object code with the function `symbol` and, where there are packed arguments, the function `prologue`
    (same signature, called once by one thread of one) that fills them.

    prologue_only  names of the constant arguments that the function `symbol` never reads: they need not be kept
    """

    symbol: str
    prologue: str | None
    object_code: bytes
    arguments: tuple[Argument, ...]
    threads: int
    parallel: bool
    prologue_only: tuple[str, ...] = ()


def argument_of(buffer: Buffer) -> Argument:
    """A global buffer of a concrete program as the argument of its kernel."""
    shape = tuple(extent.value for extent in buffer.shape)
    return Argument(buffer.name, shape, buffer.dtype, "workspace" if buffer.role == "intermediate" else buffer.role)
