"""The main function of a module as LLVM IR: calls of kernels, and barriers between those that depend on each other.

Calls of serial kernels run on thread 0, one after the other, and need no barrier among themselves. Two calls depend on
each other when they touch the same bytes and one of them writes; bytes of the arena that buffers share by turns count.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pipeline.codegen.llvm.compile import function_attributes
from pipeline.codegen.module import LinkedCall
from pipeline.ir.target import Target


class Region(enum.Enum):
    """What a pointer is relative to: one of the caller's pointers, the constants area, the arena, or nothing."""

    PORT = "port"
    CONSTANTS = "constants"
    ARENA = "arena"
    NULL = "null"


@dataclass(frozen=True, slots=True)
class Pointer:
    """A place in memory: the number of the port, or an offset in bytes."""

    region: Region
    offset: int


@dataclass(frozen=True, slots=True)
class Access:
    """Bytes that a call reads or writes."""

    pointer: Pointer
    nbytes: int
    writes: bool


@dataclass(frozen=True, slots=True)
class KernelStep:
    """A call of a kernel with its pointers in order."""

    trace: LinkedCall
    pointers: tuple[Pointer, ...]
    accesses: tuple[Access, ...]


@dataclass(frozen=True, slots=True)
class CopyStep:
    """A copy of bytes by thread 0."""

    trace: LinkedCall
    target: Pointer
    source: Pointer
    nbytes: int

    @property
    def accesses(self) -> tuple[Access, ...]:
        return (Access(self.target, self.nbytes, True), Access(self.source, self.nbytes, False))


Step = KernelStep | CopyStep


def barriers_before(steps: Sequence[Step]) -> tuple[bool, ...]:
    """For each step, whether the threads have to meet before it."""
    result = []
    since: list[Step] = []
    for step in steps:
        meet = any((step.trace.parallel or other.trace.parallel) and _conflict(step, other) for other in since)
        result.append(meet)
        since = [step] if meet else [*since, step]
    return tuple(result)


def _conflict(one: Step, other: Step) -> bool:
    return any((a.writes or b.writes) and _overlap(a, b) for a in one.accesses for b in other.accesses)


def _overlap(a: Access, b: Access) -> bool:
    if a.pointer.region is not b.pointer.region or a.pointer.region is Region.NULL:
        return False
    if a.pointer.region is Region.PORT:
        return a.pointer.offset == b.pointer.offset
    low, high = max(a.pointer.offset, b.pointer.offset), min(a.pointer.offset + a.nbytes, b.pointer.offset + b.nbytes)
    return low < high


def main_ir(steps: Sequence[Step], ports: int, target: Target) -> tuple[str, int]:
    """The module with `muschedule_main`, its traced twin and `muschedule_bind`; and the slots of the pointer table."""
    slots: dict[int, int] = {}
    count = 0
    for index, step in enumerate(steps):
        if isinstance(step, KernelStep) and step.pointers and all(p.region is not Region.PORT for p in step.pointers):
            slots[index] = count
            count += len(step.pointers)
    functions = [_Main(steps, slots, ports, target, traced).text() for traced in (False, True)]
    functions.append(_bind(steps, slots, ports, target))
    symbols = sorted({step.trace.symbol for step in steps if isinstance(step, KernelStep)})
    declarations = [f"declare void @{symbol}(ptr, i64, i64, ptr)" for symbol in symbols]
    declarations += [
        "declare void @muschedule_barrier(ptr, i64)",
        "declare i32 @clock_gettime(i32, ptr)",
        "declare void @llvm.memcpy.p0.p0.i64(ptr noalias, ptr noalias, i64, i1)",
    ]
    return "\n".join([*declarations, *functions]) + "\n", count


def _bind(steps: Sequence[Step], slots: dict[int, int], ports: int, target: Target) -> str:
    lines = Lines(ports)
    lines.bases()
    for index, first in slots.items():
        step = steps[index]
        assert isinstance(step, KernelStep)
        for position, pointer in enumerate(step.pointers):
            value = lines.pointer(pointer)
            place = lines.value(f"getelementptr inbounds ptr, ptr %tables, i64 {first + position}")
            lines.add(f"store ptr {value}, ptr {place}")
    lines.add("ret void")
    return lines.function("muschedule_bind(ptr %buffers)", target)


class Lines:
    """The body of a function while it is written."""

    def __init__(self, ports: int) -> None:
        self._ports, self._lines, self._count = ports, ["entry:"], 0

    def add(self, line: str) -> None:
        self._lines.append(line if line.endswith(":") else f"  {line}")

    def value(self, instruction: str) -> str:
        """Adds the instruction and gives the name of its result."""
        name = f"%v{self._count}"
        self._count += 1
        self.add(f"{name} = {instruction}")
        return name

    def bases(self, *more: str) -> None:
        """Loads what follows the ports in the caller's array."""
        for position, name in enumerate(("constants", "arena", "tables", *more)):
            place = self.value(f"getelementptr inbounds ptr, ptr %buffers, i64 {self._ports + position}")
            self.add(f"%{name} = load ptr, ptr {place}")

    def pointer(self, pointer: Pointer) -> str:
        match pointer.region:
            case Region.NULL:
                return "null"
            case Region.PORT:
                place = self.value(f"getelementptr inbounds ptr, ptr %buffers, i64 {pointer.offset}")
                return self.value(f"load ptr, ptr {place}")
            case Region.CONSTANTS:
                return self.value(f"getelementptr inbounds i8, ptr %constants, i64 {pointer.offset}")
            case Region.ARENA:
                return self.value(f"getelementptr inbounds i8, ptr %arena, i64 {pointer.offset}")

    def function(self, signature: str, target: Target) -> str:
        return "\n".join([f"define void @{signature} {function_attributes(target)} {{", *self._lines, "}"])


class _Main:
    """The emitter of one of the two main functions."""

    def __init__(self, steps: Sequence[Step], slots: dict[int, int], ports: int, target: Target, traced: bool) -> None:
        self._steps, self._slots, self._target, self._traced = steps, slots, target, traced
        self._lines = Lines(ports)
        self._clock = 6 if any(name in target.triple for name in ("darwin", "macos")) else 1

    def text(self) -> str:
        lines = self._lines
        kernels = {index: step for index, step in enumerate(self._steps) if isinstance(step, KernelStep)}
        dynamic = [len(step.pointers) for index, step in kernels.items() if index not in self._slots]
        lines.add(f"%list = alloca [{max([1, *dynamic])} x ptr], align 16")
        lines.bases(*(["trace"] if self._traced else []))
        if self._traced:
            lines.add("%clock = alloca [2 x i64], align 16")
            row = lines.value(f"mul i64 %thread, {2 * len(self._steps)}")
            lines.add(f"%row = getelementptr inbounds i64, ptr %trace, i64 {row}")
        lines.add("%first = icmp eq i64 %thread, 0")
        for number, (parallel, barrier, members) in enumerate(self._segments()):
            if barrier:
                lines.add("call void @muschedule_barrier(ptr %barrier, i64 %threads)")
            if not parallel:
                lines.add(f"br i1 %first, label %serial{number}, label %after{number}")
                lines.add(f"serial{number}:")
            for index in members:
                self._step(index)
            if not parallel:
                lines.add(f"br label %after{number}")
                lines.add(f"after{number}:")
        lines.add("ret void")
        name = "muschedule_main_traced" if self._traced else "muschedule_main"
        return lines.function(f"{name}(ptr %buffers, i64 %thread, i64 %threads, ptr %barrier)", self._target)

    def _segments(self) -> Iterator[tuple[bool, bool, list[int]]]:
        """Steps that all threads, or thread 0 alone, go through together: (parallel, barrier before, steps)."""
        barriers = barriers_before(self._steps)
        members: list[int] = []
        for index, step in enumerate(self._steps):
            if members and (barriers[index] or step.trace.parallel != self._steps[members[0]].trace.parallel):
                yield self._steps[members[0]].trace.parallel, barriers[members[0]], members
                members = []
            members.append(index)
        if members:
            yield self._steps[members[0]].trace.parallel, barriers[members[0]], members

    def _step(self, index: int) -> None:
        if self._traced:
            self._stamp(2 * index)
        match self._steps[index]:
            case KernelStep(trace, pointers):
                place = self._list(index, pointers)
                # A serial kernel is a team of one: it must not touch the barrier where the others may be waiting.
                team = "i64 %thread, i64 %threads, ptr %barrier" if trace.parallel else "i64 0, i64 1, ptr null"
                self._lines.add(f"call void @{trace.symbol}(ptr {place}, {team})")
            case CopyStep(_, target, source, nbytes):
                to, start = self._lines.pointer(target), self._lines.pointer(source)
                self._lines.add(f"call void @llvm.memcpy.p0.p0.i64(ptr {to}, ptr {start}, i64 {nbytes}, i1 false)")
        if self._traced:
            self._stamp(2 * index + 1)

    def _list(self, index: int, pointers: Sequence[Pointer]) -> str:
        if index in self._slots:
            return self._lines.value(f"getelementptr inbounds ptr, ptr %tables, i64 {self._slots[index]}")
        for position, pointer in enumerate(pointers):
            value = self._lines.pointer(pointer)
            place = self._lines.value(f"getelementptr inbounds ptr, ptr %list, i64 {position}")
            self._lines.add(f"store ptr {value}, ptr {place}")
        return "%list"

    def _stamp(self, position: int) -> None:
        """Writes the time in nanoseconds into this thread's row of the trace."""
        lines = self._lines
        lines.value(f"call i32 @clock_gettime(i32 {self._clock}, ptr %clock)")
        seconds = lines.value("load i64, ptr %clock")
        place = lines.value("getelementptr inbounds i64, ptr %clock, i64 1")
        rest = lines.value(f"load i64, ptr {place}")
        whole = lines.value(f"mul i64 {seconds}, 1000000000")
        time = lines.value(f"add i64 {whole}, {rest}")
        place = lines.value(f"getelementptr inbounds i64, ptr %row, i64 {position}")
        lines.add(f"store i64 {time}, ptr {place}")
