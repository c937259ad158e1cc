"""Execution of emitted CUDA source on the CPU, which finds what CUDA leaves undefined and counts what it would cost.

The text of the kernel itself is compiled by a C++ compiler of this host under the host body of the header, and its
threads run on a machine (machine.cpp) that watches every access to global and shared memory.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np

from pipeline.codegen.cuda.execute_build import (
    adopt_machine,
    compile_for_host,
    find_compiler,
    granule,
    machine_library,
    why_no_compiler,
)
from pipeline.codegen.cuda.execute_machine import Machine, names_of, whole_grid
from pipeline.codegen.cuda.execution import Execution, Fault, LaunchCounts
from pipeline.codegen.cuda.kernel import CudaSource, Launch
from pipeline.codegen.kernel import Argument
from pipeline.errors import CodegenError, UserError
from pipeline.ir.graph_types import FLOATS, numpy_dtype

Block = tuple[int, int, int]
BlockChoice = Callable[[Launch], Sequence[Block] | None]
WorkspaceSource = Callable[[Launch], Mapping[str, np.ndarray] | None]

ALL_BLOCKS = 1 << 40
BUDGET = 2_000_000_000  # accesses and barriers of one execution, of all threads together
WHOLE_SECONDS = 2.0  # a launch that others need runs whole where that is not expected to take longer
# What a workspace may differ by, in its largest value. Measured over products, sums, norms and attention: at most 6e-5
# in float32 and 1e-13 in float64, of a softmax over products of 1024 terms, where exp magnifies what the order of terms
# makes of them (4e-7 of plain sums). Halves, rounded out of float32, were equal: they get two units in the last place.
ROUNDING = {"float64": 2e-13, "float32": 1e-4, "float16": 2e-3, "bfloat16": 1.6e-2}
_PATTERN = b"\xa5\x5a\xc3\x3c\x96\x69\xf0\x0f"
_LOCK = threading.Lock()  # the machine's library has one state


class Pool(Protocol):
    """Worker processes: `pipeline.measurement.pool.WorkerPool`."""

    def submit(self, function: Callable[..., object] | str, argument: object, timeout_s: float) -> Future[object]: ...


@dataclass(frozen=True, slots=True, eq=False)
class ExecuteJob:
    """What a worker is asked for; all of it can be pickled.

    blocks   of each launch, or None for all of them
    machine  the compiler and the path of the library that the parent has, which saves the worker a second
    """

    source: CudaSource
    arrays: Mapping[str, np.ndarray]
    blocks: tuple[tuple[Block, ...] | None, ...] | None = None
    count: bool | int = True
    check: bool = True
    whole_seconds: float = 0.0
    budget: int = BUDGET
    machine: tuple[str, Path] | None = None


def execute(
    source: CudaSource,
    arrays: Mapping[str, np.ndarray],
    *,
    blocks: BlockChoice | None = None,
    count: bool | int = True,
    check: bool = True,
    whole_seconds: float = 0.0,
    workspaces: WorkspaceSource | None = None,
    budget: int = BUDGET,
    compiler: str = "",
    pool: Pool | None = None,
    timeout_s: float = 60.0,
) -> Execution:
    """Run all launches of a kernel in order: the prologue first, then the others.

    arrays      inputs and constants by name; packed arguments too, which then need no prologue
    blocks      which blocks (x, y, z) of a launch run; None, or its answer None: all. The prologue always runs whole.
                A launch that writes a workspace for a later one runs whole where that takes no more than two seconds
                (by the time of the chosen blocks), or where there is no other source of its values
                Any launch runs whole, whatever was chosen, where that takes no more than `whole_seconds`
    workspaces  gives the values of the workspaces that a launch writes, for those that only ran in part
                (`execute_llvm.workspaces_by_llvm`); what did run has to agree with them. None: they are not known
    count       count accesses: in all blocks that run, in none, or in so many of each launch
    check       look for races, unwritten elements and copies in flight; without it, only bounds, alignment, barriers
                and collectives are checked
    budget      accesses and barriers of all threads, after which the kernel counts as endless
    compiler    name or path of a C++ compiler to try before c++, g++ and clang++
    pool        run in a worker process, in which a crash or an endless loop costs this call only: it becomes a fault.
                Values of workspaces must then come from whole launches

    Raises UserError where there is no C++ compiler, CodegenError where it refuses the source, or where an array is
    missing or does not fit.
    """
    check_bounds(source)
    found = find_compiler(compiler)
    if found is None:
        raise UserError("there is no C++ compiler to run emitted kernels with", where="codegen.cuda",
                        why=why_no_compiler(),
                        todo="Install g++ or clang++, or execute the program by LLVM (execute_by_llvm)")  # fmt: skip
    if pool is not None:
        chosen = None if blocks is None else tuple(_listed(blocks(launch)) for launch in source.launches)
        library = (found, machine_library(found))
        job = ExecuteJob(source, arrays, chosen, count, check, whole_seconds, budget, library)
        answer = pool.submit(perform, job, timeout_s).result()
        return answer if isinstance(answer, Execution) else _crashed(source, answer)
    libraries = compile_for_host(source, found)
    start = time.perf_counter()
    with _LOCK:
        machine = Machine(libraries, checked=check, budget=budget)
        try:
            run = _Run(source, arrays, machine, count)
            run.prologue()
            for number in range(len(source.launches)):
                if run.sound:
                    run.launch(number, blocks, whole_seconds, workspaces)
            return replace(run.result(), seconds=time.perf_counter() - start)
        finally:
            machine.close()


def perform(job: ExecuteJob) -> Execution:
    """What a worker process does."""
    if job.machine is not None:
        adopt_machine(*job.machine)
    choice: BlockChoice | None = None
    if job.blocks is not None:
        by_launch = dict(zip(job.source.launches, job.blocks, strict=True))
        choice = by_launch.__getitem__
    return execute(
        job.source, job.arrays, blocks=choice, count=job.count, check=job.check, whole_seconds=job.whole_seconds,
        budget=job.budget, compiler=job.machine[0] if job.machine else "",
    )  # fmt: skip


class _Run:
    """The arrays of one execution, and what it found so far."""

    def __init__(
        self, source: CudaSource, arrays: Mapping[str, np.ndarray], machine: Machine, count: bool | int
    ) -> None:
        self._source, self._machine = source, machine
        self._count = ALL_BLOCKS if count is True else int(count)
        self._lines = source.source.splitlines()
        self._granule = granule(source)
        self._faults: list[Fault] = []
        self._counts: list[LaunchCounts] = []
        self._given = {a.name for a in source.arguments if a.role == "packed" and a.name in arrays}
        self.sound = self._whole = True
        self._arrays: dict[str, np.ndarray] = {}
        launches = (*source.prologue, *source.launches)
        changed = {name for launch in launches for name in written_arguments(source, launch)}
        for argument in source.arguments:
            given = argument.role in ("input", "constant") or argument.name in self._given
            array = _given(argument, arrays, argument.name in changed) if given else spoiled(argument)
            self._arrays[argument.name] = array
            machine.argument(argument.name, array, tracked=argument.role not in ("input", "constant"), written=given)

    def prologue(self) -> None:
        packed = {a.name for a in self._source.arguments if a.role == "packed"}
        if packed <= self._given and packed:
            return
        for launch in self._source.prologue:
            if self.sound:
                self._perform(launch, whole_grid(launch))
                self._note(launch, int(np.prod(launch.grid)))

    def launch(
        self, number: int, blocks: BlockChoice | None, whole_seconds: float, workspaces: WorkspaceSource | None
    ) -> None:
        launch = self._source.launches[number]
        every = whole_grid(launch)
        chosen = None if blocks is None else blocks(launch)
        if chosen is None or len(chosen) >= len(every):
            self._perform(launch, every)
            self._note(launch, len(every))
            return
        some = _checked_blocks(launch, chosen)
        start = time.perf_counter()
        self._perform(launch, some)
        self._note(launch, len(some))
        expected = (time.perf_counter() - start) / max(1, len(some)) * len(every)
        needed = self._needed_later(number)
        allowed = max(whole_seconds, WHOLE_SECONDS) if needed else whole_seconds
        values = None
        if self.sound and needed and expected > allowed and workspaces is not None:
            values = workspaces(launch)
        if self.sound and (expected <= allowed or (needed and values is None)):
            done = set(map(tuple, some.tolist()))
            rest = np.array([block for block in every.tolist() if tuple(block) not in done], np.int32).reshape(-1, 3)
            self._perform(launch, rest, continued=True)
            self._note(launch, len(rest), continued=True)
            return
        self._whole = False
        if values is not None:
            for name in needed:
                self._take(launch, name, _fitting(self._argument(name), values))

    def _take(self, launch: Launch, name: str, values: np.ndarray) -> None:
        """Let later launches find these values, from which what the blocks that ran have written may differ by
        rounding only."""
        array, mask = self._arrays[name], self._machine.written(name)
        got, want = array[mask].astype(np.float64), values[mask].astype(np.float64)
        largest = float(np.abs(want[np.isfinite(want)]).max(initial=0.0))
        near = np.isclose(got, want, rtol=0.0, atol=largest * ROUNDING.get(str(array.dtype), 0.0), equal_nan=True)
        if not near.all():
            worst = int(np.flatnonzero(~near)[0])
            told = f"{got[worst]:g} where {want[worst]:g} is right, and {int((~near).sum())} elements in all"
            self._faults.append(
                Fault("workspace", launch.symbol, buffer=name, element=int(np.flatnonzero(mask)[worst]), text=told)
            )
        array[...] = values
        self._machine.fill(name)

    def result(self) -> Execution:
        outputs = {a.name: self._arrays[a.name] for a in self._source.arguments if a.role == "output"}
        others = {a.name: self._arrays[a.name] for a in self._source.arguments if a.role in ("packed", "workspace")}
        written = {name: self._machine.written(name) for name in outputs}
        return Execution(
            outputs, written, tuple(self._faults), tuple(self._counts), others, whole=self._whole and self.sound
        )

    def _perform(self, launch: Launch, blocks: np.ndarray, *, continued: bool = False) -> None:
        """continued: the rest of a launch, of which enough has been counted unless all is to be."""
        counted = self._count if not continued or self._count == ALL_BLOCKS else 0
        self.sound = self._machine.launch(launch, blocks, self._granule, counted, continued) and self.sound

    def _note(self, launch: Launch, blocks: int, *, continued: bool = False) -> None:
        self._faults += self._machine.faults(launch, self._lines)
        if self._count and not (continued and self._count < ALL_BLOCKS):
            self._counts.append(self._machine.counts(launch, min(blocks, self._count)))

    def _argument(self, name: str) -> Argument:
        return next(argument for argument in self._source.arguments if argument.name == name)

    def _needed_later(self, number: int) -> tuple[str, ...]:
        """Workspaces that this launch writes and a later one takes."""
        launch, later = self._source.launches[number], self._source.launches[number + 1 :]
        roles = {argument.name: argument.role for argument in self._source.arguments}
        taken = {name for other in later for name in other.arguments}
        return tuple(
            name for name in written_arguments(self._source, launch) if roles[name] == "workspace" and name in taken
        )


def check_bounds(source: CudaSource) -> None:
    """CodegenError where a launch has more threads than its function allows: a GPU would refuse it."""
    for launch in (*source.prologue, *source.launches):
        found = re.search(rf"\bMS_KERNEL\((\d+)\)\s+{re.escape(launch.symbol)}\b", source.source)
        if found is None or int(found.group(1)) < launch.threads:
            allowed = "no function of that name" if found is None else f"{found.group(1)} allowed"
            raise CodegenError("a launch does not fit its function", where=launch.symbol,
                               why=f"{launch.threads} threads, {allowed}")  # fmt: skip


def written_arguments(source: CudaSource, launch: Launch) -> tuple[str, ...]:
    """The arguments that a launch may write, by how its function declares them."""
    head = re.search(rf"\b{re.escape(launch.symbol)}\s*\(((?:[^()]|\([^()]*\))*)\)", source.source)
    if head is None:
        raise CodegenError("the source lacks a function", where=launch.symbol)
    kinds = re.findall(r"\b(MS_IN|MS_OUT|MS_INOUT)\s*\(", head.group(1))
    return tuple(name for name, kind in zip(launch.arguments, kinds, strict=True) if kind != "MS_IN")


def spoiled(argument: Argument) -> np.ndarray:
    """An array of what no kernel should leave: NaN, or a pattern for integers."""
    kind = numpy_dtype(argument.dtype)
    size = int(np.prod(argument.shape, dtype=np.int64))
    if argument.dtype == "bool":
        return np.resize(np.array([True, False, False]), argument.shape)
    if argument.dtype in FLOATS:
        return np.full(size * kind.itemsize, 0xFF, np.uint8).view(kind).reshape(argument.shape)
    return np.resize(np.frombuffer(_PATTERN, np.uint8), size * kind.itemsize).view(kind).reshape(argument.shape)


def _given(argument: Argument, arrays: Mapping[str, np.ndarray], written: bool) -> np.ndarray:
    """The caller's array, or a copy of it where a kernel may write there."""
    return np.array(_fitting(argument, arrays), order="C", copy=True if written else None)


def _fitting(argument: Argument, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    if argument.name not in arrays:
        raise CodegenError(
            "an argument of the kernel is missing", where=argument.name, why=f"given: {names_of(arrays)}"
        )
    array = np.asarray(arrays[argument.name])
    if array.shape != argument.shape or array.dtype != numpy_dtype(argument.dtype):
        wanted = f"{argument.dtype}{list(argument.shape)}"
        raise CodegenError("an array does not fit the kernel", where=argument.name,
                           why=f"{array.dtype}{list(array.shape)} given, {wanted} wanted")  # fmt: skip
    return array


def _checked_blocks(launch: Launch, chosen: Sequence[Block]) -> np.ndarray:
    blocks = np.array(sorted(set(map(tuple, chosen))), np.int32).reshape(-1, 3)
    if ((blocks < 0) | (blocks >= launch.grid)).any():
        raise CodegenError(
            "a chosen block lies outside of the grid", where=launch.symbol, why=f"the grid is {launch.grid}"
        )
    return blocks


def _listed(chosen: Sequence[Block] | None) -> tuple[Block, ...] | None:
    return None if chosen is None else tuple(chosen)


def _crashed(source: CudaSource, answer: object) -> Execution:
    """A worker's failure as a fault."""
    reason = f"{getattr(answer, 'reason', 'error')}: {getattr(answer, 'detail', answer)}"
    outputs = {a.name: spoiled(a) for a in source.arguments if a.role == "output"}
    nothing = {name: np.zeros(array.shape, np.bool_) for name, array in outputs.items()}
    return Execution(outputs, nothing, (Fault("crash", source.symbol, text=reason, line=0),), whole=False)
