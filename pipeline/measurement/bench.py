"""The runner's side of the pipe: kernels are loaded, checked against the reference, and timed, in this process."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from pipeline.codegen.kernel import Kernel
from pipeline.codegen.llvm.compile import LoadedObject
from pipeline.codegen.llvm.team import Team, called_by_kernels, own_cores
from pipeline.codegen.llvm.team_ir import BARRIER_BYTES, LINE, team_object
from pipeline.errors import MeasureError
from pipeline.ir.graph_types import numpy_dtype
from pipeline.ir.target import Target
from pipeline.measurement.bench_job import BenchJob, BenchResult
from pipeline.measurement.failure import Failure
from pipeline.measurement.guarded import GuardedBuffer
from pipeline.measurement.protocol import Reference
from pipeline.measurement.reference_files import ReferenceFiles, read
from pipeline.measurement.sampling import Clock, SamplingPolicy
from pipeline.measurement.trial import Trial, checked_and_timed

FED_BEHIND = 16  # bytes: NumPy's large arrays begin there, and a vector of 32 or 64 bytes then crosses lines
_FLUSH_FACTOR = 2
_FLUSH_MOST = 320 << 20  # bytes: a guest is told all of a last level that it shares with others
_CONSTANTS = -1  # in the place of a case's number


@dataclass(slots=True)
class Bench:
    """What the process keeps between jobs: the thread teams, and the data of the last task."""

    target: Target
    team_code: LoadedObject
    teams: dict[int, Team] = field(default_factory=dict)
    reference: Reference | None = None
    inputs: dict[tuple[int, str], GuardedBuffer] = field(default_factory=dict)
    flush: np.ndarray | None = None

    def team(self, threads: int) -> Team:
        if threads not in self.teams:
            for other in self.teams.values():  # their idle threads would still spin for a while
                other.close()
            self.teams = {threads: Team(threads, self.team_code, cores=own_cores(threads))}
        return self.teams[threads]

    def use(self, files: ReferenceFiles) -> Reference:
        if self.reference is None or self.reference.task_id != files.task_id:
            self.inputs = {}
            self.reference = read(files)
        return self.reference

    def evictor(self) -> np.ndarray:
        """Memory to overwrite, larger than all caches together, as far as they are this machine's alone."""
        if self.flush is None:
            total = sum(cache.size * max(1, self.target.cores // cache.shared_by) for cache in self.target.caches)
            self.flush = np.zeros(min(_FLUSH_FACTOR * max(total, 8 << 20), _FLUSH_MOST), np.uint8)
        return self.flush


_BENCH: list[Bench] = []  # one process, one bench: made by `set_up`, which the pool calls first


def set_up(target: Target) -> None:
    """Prepare this process for kernels of the target."""
    _BENCH[:] = [Bench(target, LoadedObject(team_object(target), target=target))]


def perform(job: BenchJob[Kernel]) -> tuple[BenchResult, ...]:
    """Check and time. Raises only where the job itself makes no sense; a wrong kernel is a failure in its result."""
    bench = _BENCH[0]
    reference = bench.use(job.reference)
    return checked_and_timed(job, reference, lambda kernel: _Trial(bench, kernel, reference))


class _Trial(Trial):
    """One kernel with its buffers."""

    def __init__(self, bench: Bench, kernel: Kernel, reference: Reference) -> None:
        super().__init__()
        self._bench, self._kernel = bench, kernel
        self._team = bench.team(kernel.threads if kernel.parallel else 1)
        shared = called_by_kernels(bench.team_code)
        self._loaded = LoadedObject(kernel.object_code, symbols=shared, target=bench.target)
        self._entry = self._loaded.address(kernel.symbol)
        self._own = {
            argument.name: GuardedBuffer(argument.shape, argument.dtype, skew=number * 5 % 61)
            for number, argument in enumerate(kernel.arguments)
            if argument.role in ("packed", "output", "workspace")
        }
        self._tables = tuple(self._table(number, reference) for number in range(len(reference.cases)))
        self._run_prologue()

    def check(self, reference: Reference) -> None:
        for number, case in enumerate(reference.cases):
            for argument in self._kernel.arguments:
                if argument.role in ("output", "workspace"):
                    self._own[argument.name].spoil()
            self._team.run(self._entry, self._tables[number].ctypes.data)
            self.check_guards(f"in case {number}")
            self._check_inputs(number, reference.cases[number].inputs)
            outputs = (argument.name for argument in self._kernel.arguments if argument.role == "output")
            self.judge(number, case, {name: partial(getattr, self._own[name], "array") for name in outputs})
        self._check_inputs(_CONSTANTS, reference.constants)

    def check_guards(self, when: str) -> None:
        for name, buffer in self._own.items():
            if self.failure is None and (damage := buffer.damage()):
                self.failure = Failure("wrong", f"{name}: {damage}, {when}")

    def clock(self, policy: SamplingPolicy) -> Clock:
        table = self._tables[0].ctypes.data
        flush = self._bench.evictor() if policy.flush_cache else None

        def run(repeats: int, inner: int) -> tuple[float, ...]:
            taken = self._team.time(self._entry, table, repeats=repeats, inner=inner, flush=flush)
            return tuple(float(value) for value in taken)

        return run

    def _table(self, case: int, reference: Reference) -> np.ndarray:
        """The pointers of one case."""
        addresses = []
        for number, argument in enumerate(self._kernel.arguments):
            if argument.name in self._own:
                addresses.append(self._own[argument.name].address)
                continue
            constant = argument.role == "constant"
            source = reference.constants if constant else reference.cases[case].inputs
            key = (_CONSTANTS if constant else case, argument.name)
            if argument.name not in source:
                raise MeasureError(
                    "the reference lacks an argument of the kernel",
                    where=argument.name,
                    why=f"it has {', '.join(source) or 'none'} of that role",
                )
            if key not in self._bench.inputs:
                value = source[argument.name]
                if value.shape != argument.shape or value.dtype != numpy_dtype(argument.dtype):
                    raise MeasureError(
                        "the reference does not fit the kernel",
                        where=argument.name,
                        why=f"{value.dtype}{list(value.shape)} given, {argument.dtype}{list(argument.shape)} wanted",
                    )
                behind = FED_BEHIND if argument.name in reference.fed else 0
                buffer = GuardedBuffer(argument.shape, argument.dtype, poison=True, skew=number * 5 % 61, behind=behind)
                buffer.array[...] = value
                self._bench.inputs[key] = buffer
            addresses.append(self._bench.inputs[key].address)
        return np.array(addresses, np.uint64)

    def _run_prologue(self) -> None:
        if self._kernel.prologue is None:
            return
        pointer, i64 = ctypes.c_void_p, ctypes.c_int64
        prologue = ctypes.CFUNCTYPE(None, pointer, i64, i64, pointer)(self._loaded.address(self._kernel.prologue))
        memory = np.zeros(BARRIER_BYTES + LINE, np.uint8)
        barrier = memory.ctypes.data + -memory.ctypes.data % LINE
        prologue(self._tables[0].ctypes.data, 0, 1, barrier)
        self.check_guards("in the prologue")

    def _check_inputs(self, case: int, given: Mapping[str, np.ndarray]) -> None:
        """A kernel that writes to what it should read would spoil the next candidate's data too: put them back."""
        for name, value in given.items():
            buffer = self._bench.inputs.get((case, name))
            if buffer is None:
                continue
            damage = buffer.damage()
            if damage or not buffer.holds(value):
                del self._bench.inputs[case, name]
                self.failure = self.failure or Failure("wrong", f"{name}: {damage or 'an input was overwritten'}")
