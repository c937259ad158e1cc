"""A whole model before and after linking: which kernel runs on which buffers, in order.

The engine hands over a `ModulePlan`; `pipeline.codegen.llvm.link` turns it into a `LinkedModule`, which the runtime
stores and runs. Both are plain values: names, shapes, offsets and object code.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Literal

import numpy as np

from pipeline.codegen.built_kernel import AnyKernel, BuiltKernel
from pipeline.errors import CheckError
from pipeline.ir.graph import ITEM_BYTES, DType, Shape
from pipeline.ir.target import Target

BufferRole = Literal["input", "output", "constant", "packed", "intermediate"]
BOUND_ROLES = frozenset({"input", "constant", "output"})


@dataclass(frozen=True, slots=True)
class Buffer:
    """One tensor in memory: what the caller gives or gets, what the artifact holds, or an intermediate of the arena."""

    name: str
    shape: Shape
    dtype: DType
    role: BufferRole

    @property
    def nbytes(self) -> int:
        """Bytes of the elements, row-major and without gaps."""
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class Call:
    """One run of a kernel.

    kernel   position in `ModulePlan.kernels`
    buffers  one buffer or alias for each of the kernel's arguments whose role is input, constant or output, in order;
             packed arguments and workspaces get theirs when the module is linked
    label    what a trace and a table show
    task     the tuning task that the kernel was found by
    """

    kernel: int
    buffers: tuple[str, ...]
    label: str = ""
    task: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class ModulePlan(Generic[AnyKernel]):
    """A model as calls of kernels in order.

    buffers  every tensor that is not an alias; those of role packed are the linker's business and not listed
    aliases  another name for the bytes of a buffer or of a further alias, such as a reshaped view
    inputs   names of the buffers that the caller gives, in order
    outputs  names of what the caller gets, in order: output buffers, or names in `aliases` (of an intermediate, an
             input, a constant or another output: copied at run time where that is needed)
    shapes   shape of an aliased output where it differs from that of the buffer behind it
    """

    kernels: tuple[AnyKernel, ...]
    calls: tuple[Call, ...]
    buffers: tuple[Buffer, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    constants: Mapping[str, np.ndarray]
    threads: int
    target: Target
    aliases: Mapping[str, str] = field(default_factory=dict)
    shapes: Mapping[str, Shape] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def root(self, name: str) -> str:
        """The buffer whose bytes the name stands for."""
        seen = {name}
        while name in self.aliases:
            name = self.aliases[name]
            if name in seen:
                raise CheckError("aliases go round in a circle", where=name)
            seen.add(name)
        return name


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output as the caller sees it."""

    name: str
    shape: Shape
    dtype: DType

    @property
    def nbytes(self) -> int:
        """Bytes of the elements, row-major and without gaps."""
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class LinkedCall:
    """One line of a trace: a kernel's run, or the copy of an output."""

    label: str
    task: str
    symbol: str
    parallel: bool


@dataclass(frozen=True, slots=True)
class MemoryFigures:
    """Bytes of the arena, the least that any plan needs, and the sum of all buffers in it."""

    arena_bytes: int
    lower_bound: int
    unshared_bytes: int
    heuristic: str


@dataclass(frozen=True, slots=True)
class Weight:
    """One tensor of the constants area and its offset there, a multiple of 64 bytes."""

    name: str
    shape: Shape
    dtype: DType
    offset: int


@dataclass(frozen=True, slots=True, eq=False)
class LinkedModule:
    """A model as object code with one entry, and the data that it needs.

    objects    object files by name; together they define muschedule_main, its traced twin, muschedule_bind and the team
    weights    layout of the constants area, whose data is `data`, by name
    threads    the most threads that can work on one run; 1 when no kernel is parallel
    slots      pointers of the table that muschedule_bind fills
    barriers   barriers in one run
    """

    objects: Mapping[str, bytes]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    weights: tuple[Weight, ...]
    data: Mapping[str, np.ndarray]
    calls: tuple[LinkedCall, ...]
    threads: int
    slots: int
    barriers: int
    memory: MemoryFigures
    target: Target
    provenance: Mapping[str, Any] = field(default_factory=dict)


def check_plan(plan: ModulePlan[BuiltKernel]) -> None:
    """Raises a `CheckError` for the first thing about the plan that does not fit together."""
    by_name = {buffer.name: buffer for buffer in plan.buffers}
    if len(by_name) != len(plan.buffers):
        raise CheckError("two buffers share a name", where="module plan")
    symbols = [kernel.symbol for kernel in plan.kernels]
    if len(set(symbols)) != len(symbols):
        raise CheckError("two kernels share a symbol", where="module plan")
    for name in (*plan.inputs, *plan.outputs, *plan.aliases):
        if plan.root(name) not in by_name:
            raise CheckError("a name stands for no buffer", where=name, why=f"its root is {plan.root(name)!r}")
    for buffer in plan.buffers:
        if buffer.role == "constant" and buffer.name not in plan.constants:
            raise CheckError("a constant has no data", where=buffer.name)
        if buffer.role == "constant" and plan.constants[buffer.name].nbytes != buffer.nbytes:
            raise CheckError("a constant's data has another size than its buffer", where=buffer.name)
    written = {name for name in by_name if by_name[name].role in ("input", "constant")}
    for call in plan.calls:
        _check_call(plan, call, by_name, written)
    for name in plan.outputs:
        if plan.root(name) not in written:
            raise CheckError("no call writes an output", where=name)


def _check_call(plan: ModulePlan[BuiltKernel], call: Call, by_name: Mapping[str, Buffer], written: set[str]) -> None:
    if not 0 <= call.kernel < len(plan.kernels):
        raise CheckError("a call names no kernel", where=call.label, why=f"kernel {call.kernel} of {len(plan.kernels)}")
    kernel = plan.kernels[call.kernel]
    where = call.label or kernel.symbol
    arguments = [argument for argument in kernel.arguments if argument.role in BOUND_ROLES]
    if len(arguments) != len(call.buffers):
        raise CheckError(
            "a call has the wrong number of buffers",
            where=where,
            why=f"the kernel has {len(arguments)} bound arguments, the call {len(call.buffers)} buffers",
        )
    outputs = []
    for argument, name in zip(arguments, call.buffers, strict=True):
        root = plan.root(name)
        if root not in by_name:
            raise CheckError("a call names no buffer", where=where, why=f"{name!r} is not one")
        buffer = by_name[root]
        if argument.nbytes != buffer.nbytes or argument.dtype != buffer.dtype:
            raise CheckError(
                "a buffer does not fit its argument",
                where=f"{where}, argument {argument.name}",
                why=f"{name} is {buffer.dtype}{list(buffer.shape)}, it needs {argument.dtype}{list(argument.shape)}",
            )
        if argument.role == "output":
            if buffer.role in ("input", "constant"):
                raise CheckError("a call writes what is only read", where=where, why=f"{name} is {buffer.role}")
            outputs.append(root)
        elif root not in written:
            raise CheckError("a call reads what nothing wrote", where=where, why=f"buffer {name}")
        elif argument.role == "constant" and buffer.role != "constant":
            raise CheckError("a constant argument gets a buffer of run time", where=where, why=name)
    written.update(outputs)
