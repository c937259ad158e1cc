"""The machine's library as Python sees it: arguments, launches, faults and counts (machine_control.h)."""

from __future__ import annotations

import ctypes
import signal
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np

from pipeline.codegen.cuda.execute_build import HostLibraries
from pipeline.codegen.cuda.execution import Fault, FaultKind, LaunchCounts, Traffic
from pipeline.codegen.cuda.kernel import Launch
from pipeline.errors import CodegenError

KINDS: tuple[FaultKind, ...] = get_args(FaultKind)
STACK_BYTES = 1 << 17
CRASHES = "an index outside of a thread's own array, a division by zero, or too large a stack"
_FAULTS = 64
_NAME = 48
_ACCESSES = ("ld", "st", "ldmatrix", "", "cp.async")  # as the enumeration Access in machine.h
_I64 = ctypes.c_int64
_FAULT = np.dtype([
    ("kind", "i4"), ("line", "i4"), ("other_line", "i4"), ("thread", "i4"), ("other", "i4"), ("block", "i4", 3),
    ("region", "i4"), ("bytes", "i4"), ("element", "i8"), ("times", "i8"),
])  # fmt: skip


class Machine:
    """One set of arguments, and launches one after another. One at a time in a process: the library has one state."""

    def __init__(self, libraries: HostLibraries, *, checked: bool, budget: int) -> None:
        self._library = _load(libraries.machine)
        self._kernel = ctypes.CDLL(str(libraries.kernel))
        self._numbers: dict[str, int] = {}
        self._arrays: list[np.ndarray] = []  # kept alive while the library has their addresses
        self._library.ms_open(int(checked), _I64(budget))

    def argument(self, name: str, array: np.ndarray, *, tracked: bool, written: bool) -> None:
        """Make an array known. tracked: kernels write it; its elements are taken as `written`, or as not yet."""
        number = len(self._arrays)
        code = self._library.ms_argument(name.encode(), ctypes.c_void_p(array.ctypes.data), _I64(array.nbytes),
                                         array.itemsize, int(tracked), int(written))  # fmt: skip
        if code:
            raise MemoryError(f"no memory to follow the {array.size:,} elements of {name}")
        self._numbers[name] = number
        self._arrays.append(array)

    def close(self) -> None:
        """Give back what the library keeps of the arguments."""
        self._library.ms_open(0, _I64(0))

    def _name(self, region: int) -> str:
        names = list(self._numbers)
        return names[region] if region < len(names) else self._library.ms_region_name(region).decode()

    def fill(self, name: str) -> None:
        """Take all elements of an argument as written from now on."""
        self._library.ms_fill(self._numbers[name])

    def launch(self, launch: Launch, blocks: np.ndarray, granule: int, counted: int, continued: bool = False) -> bool:
        """Run these blocks (int32, rows of x, y, z), and count in the first ones. False where a fault stopped them.

        continued  other blocks of the same launch ran just before"""
        numbers = (ctypes.c_int * len(launch.arguments))(*(self._numbers[name] for name in launch.arguments))
        blocks = np.ascontiguousarray(blocks, np.int32)
        call = ctypes.cast(getattr(self._kernel, f"ms_call_{launch.symbol}"), ctypes.c_void_p)
        code = self._library.ms_launch(
            call, numbers, len(launch.arguments), launch.threads, _I64(launch.shared_bytes), granule.bit_length() - 1,
            ctypes.c_long(STACK_BYTES), ctypes.c_void_p(blocks.ctypes.data), _I64(len(blocks)), _I64(counted),
            int(continued),
        )  # fmt: skip
        if code == 2:
            raise MemoryError(f"no memory for the {launch.threads} threads of {launch.symbol}")
        return code == 0

    def written(self, name: str) -> np.ndarray:
        """Which elements of a tracked argument have been written; of its shape."""
        number = self._numbers[name]
        mask = np.zeros(self._arrays[number].shape, np.bool_)
        if mask.size:
            self._library.ms_written(number, ctypes.c_void_p(mask.ctypes.data))
        return mask

    def faults(self, launch: Launch, lines: Sequence[str]) -> tuple[Fault, ...]:
        """What was found since the last call, of which this launch was the only one."""
        found = np.zeros(_FAULTS, _FAULT)
        count = self._library.ms_faults(ctypes.c_void_p(found.ctypes.data))
        return tuple(self._fault(row, launch, lines) for row in found[:count])

    def _fault(self, row: Any, launch: Launch, lines: Sequence[str]) -> Fault:
        line, region = int(row["line"]), int(row["region"])
        x, y, z = (int(i) for i in row["block"])
        kind = KINDS[int(row["kind"])]
        text = lines[line - 1].strip() if 0 < line <= len(lines) else ""
        if kind == "crash":  # the number of the signal stands in the place of the element
            text = f"{signal.Signals(int(row['element'])).name}: {CRASHES}"
        return Fault(
            kind, launch.symbol, (x, y, z), int(row["thread"]), int(row["other"]),
            self._name(region) if region >= 0 else "",
            int(row["element"]) if region >= 0 else -1,
            line, int(row["other_line"]), text, _heading(lines, line), int(row["times"]),
        )  # fmt: skip

    def counts(self, launch: Launch, blocks: int) -> LaunchCounts:
        """Of the launch that ran last, in which so many blocks were counted."""
        loads: dict[str, Traffic] = {}
        stores: dict[str, Traffic] = {}
        for number in range(self._library.ms_region_count()):
            name = self._name(number)
            pair = np.zeros((2, 5), np.int64)
            self._library.ms_traffic(number, ctypes.c_void_p(pair.ctypes.data))
            for into, row in ((loads, pair[0]), (stores, pair[1])):
                if row[0]:
                    into[name] = _sum(into.get(name, Traffic()), row)
        rows = np.zeros((self._library.ms_line_count(), 5), np.int64)
        self._library.ms_line_traffic(ctypes.c_void_p(rows.ctypes.data))
        lines = {int(line): Traffic(*rows[line].tolist()) for line in np.flatnonzero(rows[:, 0])}
        table = np.zeros(12, np.int64)
        self._library.ms_instructions(ctypes.c_void_p(table.ctypes.data))
        instructions = {name: times for name, times in _instructions(table) if times}
        for name, times in self._collectives():
            instructions[name] = max(times, instructions.get(name, 0))  # "ldmatrix" is counted as both
        return LaunchCounts(launch.symbol, blocks, loads, stores, instructions, int(table[10]), lines)

    def _collectives(self) -> Iterable[tuple[str, int]]:
        name, times = ctypes.create_string_buffer(_NAME), _I64()
        number = 0
        while self._library.ms_collective(number, name, ctypes.byref(times)):
            yield name.value.decode(), times.value
            number += 1


def _sum(traffic: Traffic, row: np.ndarray) -> Traffic:
    return Traffic(*(int(a) + int(b) for a, b in zip(_fields(traffic), row, strict=True)))


def _fields(traffic: Traffic) -> tuple[int, ...]:
    return traffic.requests, traffic.sectors, traffic.bytes, traffic.wavefronts, traffic.ideal


def _instructions(table: np.ndarray) -> Iterable[tuple[str, int]]:
    for access, name in enumerate(_ACCESSES):
        for shared in range(2):
            if name in ("ld", "st"):
                yield f"{name}.{('global', 'shared')[shared]}", int(table[2 * access + shared])
            elif name and shared:
                yield name, int(table[2 * access + shared])
    yield "math", int(table[11])


def _heading(lines: Sequence[str], line: int) -> str:
    """The nearest line above that is a comment: the code generator writes there what the text below does."""
    for above in reversed(lines[: max(0, line - 1)]):
        if above.strip().startswith("//"):
            return above.strip().removeprefix("//").strip()
        if above.startswith("}"):  # the end of another function
            break
    return ""


_LOADED: dict[Path, ctypes.CDLL] = {}


def _load(path: Path) -> ctypes.CDLL:
    """The machine, whose symbols kernels find by name: global, and loaded once."""
    if path not in _LOADED:
        try:
            library = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            raise CodegenError("the machine that runs kernels on this host cannot be loaded", where=str(path),
                               why=str(error)) from error  # fmt: skip
        library.ms_region_name.restype = ctypes.c_char_p
        _LOADED[path] = library
    return _LOADED[path]


def whole_grid(launch: Launch) -> np.ndarray:
    """All blocks of a launch, x fastest: int32, rows of x, y, z."""
    x, y, z = launch.grid
    blocks = np.indices((z, y, x), np.int32).reshape(3, -1).T[:, ::-1]
    return np.ascontiguousarray(blocks)


def names_of(arrays: Mapping[str, np.ndarray]) -> str:
    return ", ".join(sorted(arrays)) or "none"
