"""A kernel for NVIDIA GPUs: its readable source, its machine code, and how it is launched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pipeline.codegen.kernel import Argument


@dataclass(frozen=True, slots=True)
class Launch:
    """One `__global__` function: a region of the program.

    symbol          name of the function
    grid            blocks along x, y and z
    threads         of a block, which is one-dimensional: x, or 32 lanes times warps
    shared_bytes    of dynamic shared memory
    arguments       names of the kernel's arguments that the function takes, as pointers, in order
    """

    symbol: str
    grid: tuple[int, int, int]
    threads: int
    shared_bytes: int
    arguments: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Resources:
    """What the assembler says of one function: registers per thread, and bytes per thread or (`static_shared`) per
    block. A spill is a register that went to memory."""

    registers: int
    spill_stores: int
    spill_loads: int
    stack: int
    static_shared: int


@dataclass(frozen=True, slots=True)
class CudaSource:
    """A program as CUDA C++.

    source     one file, which includes only "muschedule.cuh"
    launches   in order; each has finished before the next begins
    prologue   the same, run once, when the module is loaded: it fills the packed arguments
    arguments  of all launches, with workspaces (buffers of role intermediate that more than one launch sees)
    """

    symbol: str
    source: str
    launches: tuple[Launch, ...]
    prologue: tuple[Launch, ...]
    arguments: tuple[Argument, ...]
    arch: str


@dataclass(frozen=True, slots=True)
class CudaKernel:
    """A compiled program: its source, the cubin of all its functions, and what each of them takes of the machine."""

    program: CudaSource
    cubin: bytes
    resources: Mapping[str, Resources] = field(default_factory=dict)

    @property
    def symbol(self) -> str:
        return self.program.symbol

    @property
    def arguments(self) -> tuple[Argument, ...]:
        return self.program.arguments
