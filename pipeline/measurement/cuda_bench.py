"""The runner's side of the pipe on a GPU: kernels are loaded, checked against the reference, and timed, here.

An illegal access leaves a context that refuses everything: the process that had it ends, and costs this candidate only.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pipeline.codegen.cuda.driver import Device, Function
from pipeline.codegen.cuda.kernel import CudaKernel
from pipeline.codegen.kernel import Argument
from pipeline.errors import MeasureError
from pipeline.ir.graph_types import numpy_dtype
from pipeline.measurement.bench_job import BenchJob, BenchResult
from pipeline.measurement.failure import Failure
from pipeline.measurement.protocol import Reference
from pipeline.measurement.reference_files import ReferenceFiles, read
from pipeline.measurement.sampling import Clock, SamplingPolicy
from pipeline.measurement.trial import Trial, checked_and_timed

_FLUSH_FACTOR = 2  # of L2, that is written over before a cold sample
_GUARD = 4096  # bytes on both sides of what a kernel writes
_GUARD_BYTE, _SPOILED = 0xA5, 0xFF


@dataclass(slots=True)
class _Bench:
    """What the process keeps between jobs: the device, and the inputs of the last task in its memory."""

    device: Device
    stream: Any
    reference: Reference | None = None
    inputs: dict[tuple[int, str], int] = field(default_factory=dict)
    flush: int = 0

    def use(self, files: ReferenceFiles) -> Reference:
        if self.reference is None or self.reference.task_id != files.task_id:
            for address in self.inputs.values():
                self.device.free(address)
            self.inputs = {}
            self.reference = read(files)
        return self.reference

    def upload(self, case: int, name: str, value: np.ndarray[Any, Any]) -> int:
        """The address of an input, -1 in the place of a case's number for a constant."""
        if (case, name) not in self.inputs:
            array = np.ascontiguousarray(value)
            address = self.device.allocate(max(1, array.nbytes))
            try:
                self.device.upload(address, array, self.stream)
                self.device.synchronize(self.stream)
            except BaseException:  # the next kernel must not find an input here that never arrived
                self.device.free(address)
                raise
            self.inputs[case, name] = address
        return self.inputs[case, name]

    def evict(self) -> None:
        """Queues writes over more memory than L2 holds."""
        size = _FLUSH_FACTOR * max(self.device.l2_bytes, 8 << 20)
        if not self.flush:
            self.flush = self.device.allocate(size)
        self.device.fill(self.flush, 0, size, self.stream)


_BENCH: list[_Bench] = []  # one process, one bench: made by `set_up`, which the pool calls first


def set_up(arch: str) -> None:
    """Prepare this process for kernels of the architecture."""
    device = Device()
    device.refuse_other(arch, "the GPU of this machine")
    _BENCH[:] = [_Bench(device, device.stream())]


def perform(job: BenchJob[CudaKernel]) -> tuple[BenchResult, ...]:
    """Check and time. A wrong kernel is a failure in its result; one that breaks the context ends the process."""
    bench = _BENCH[0]
    reference = bench.use(job.reference)
    try:
        return checked_and_timed(job, reference, lambda kernel: _Trial(bench, kernel, reference))
    except MeasureError as error:  # nothing that this context says from now on is to be believed
        print(error, flush=True)
        os._exit(70)


class _Trial(Trial):
    """One kernel with its buffers."""

    def __init__(self, bench: _Bench, kernel: CudaKernel, reference: Reference) -> None:
        super().__init__()
        self._bench, self._kernel, self._device = bench, kernel, bench.device
        self._prologue, self._functions = bench.device.functions(kernel)
        self._graphs: dict[int, Any] = {}
        self._own: dict[str, tuple[Argument, int]] = {}
        try:
            self._allocate()
            self._tables = [self._table(number, reference) for number in range(len(reference.cases))]
            self._queue(self._prologue, self._tables[0])
            self._device.synchronize(bench.stream)
        except BaseException:
            self.close()
            raise

    def check(self, reference: Reference) -> None:
        for number, case in enumerate(reference.cases):
            for argument, base in self._own.values():
                if argument.role in ("output", "workspace"):
                    self._device.fill(base + _GUARD, _SPOILED, argument.nbytes, self._bench.stream)
            self._queue(self._functions, self._tables[number])
            self._device.synchronize(self._bench.stream)
            self.check_guards(f"in case {number}")
            outputs = (name for name, (argument, _) in self._own.items() if argument.role == "output")
            self.judge(number, case, {name: functools.partial(self._read, name) for name in outputs})
            self._check_inputs(number, case.inputs)
        self._check_inputs(-1, reference.constants)

    def _read(self, name: str) -> np.ndarray[Any, Any]:
        argument, base = self._own[name]
        got = np.empty(argument.shape, numpy_dtype(argument.dtype))
        self._device.download(got, base + _GUARD, self._bench.stream)
        self._device.synchronize(self._bench.stream)
        return got

    def check_guards(self, when: str) -> None:
        for name, (argument, base) in self._own.items():
            for place, where in ((base, "before"), (base + _GUARD + argument.nbytes, "behind")):
                guard = np.empty(_GUARD, np.uint8)
                self._device.download(guard, place, self._bench.stream)
                self._device.synchronize(self._bench.stream)
                if self.failure is None and (guard != _GUARD_BYTE).any():
                    self.failure = Failure("wrong", f"{name}: bytes {where} it were overwritten, {when}")

    def clock(self, policy: SamplingPolicy) -> Clock:
        """By events. Cold samples hold one run each, between an event after the flush and one behind the run; the runs
        of a warm sample are one graph, since the host queues launches no faster than short kernels end."""
        device, stream, table = self._device, self._bench.stream, self._tables[0]

        def work(inner: int) -> Callable[[], None]:
            def one() -> None:
                for _ in range(inner):
                    self._queue(self._functions, table)

            if inner == 1 or not self._functions:
                return one
            if inner not in self._graphs:
                self._graphs[inner] = device.captured(stream, one)
            return functools.partial(device.launch_graph, self._graphs[inner], stream)

        def run(repeats: int, inner: int) -> tuple[float, ...]:
            taken, queue = [], work(inner)
            for _ in range(repeats):
                if policy.flush_cache:
                    self._bench.evict()
                events = [device.event(), device.event()]
                device.record(events[0], stream)
                queue()
                device.record(events[1], stream)
                device.synchronize(stream)
                taken.append(device.spans_ms(events)[0] * 1e6 / inner)
            return tuple(taken)

        return run

    def close(self) -> None:
        for graph in self._graphs.values():
            self._device.discard_graph(graph)
        for _, base in self._own.values():
            self._device.free(base)
        self._device.unload((*self._prologue, *self._functions))

    def _allocate(self) -> None:
        """What it has to itself, between guards."""
        for argument in self._kernel.arguments:
            if argument.role in ("packed", "output", "workspace"):
                size = argument.nbytes + 2 * _GUARD
                base = self._device.allocate(size)
                self._own[argument.name] = (argument, base)
                self._device.fill(base, _GUARD_BYTE, size, self._bench.stream)

    def _queue(self, functions: tuple[Function, ...], table: Mapping[str, int]) -> None:
        for function in functions:
            self._device.launch(function, [table[name] for name in function.launch.arguments], self._bench.stream)

    def _table(self, case: int, reference: Reference) -> dict[str, int]:
        """The address of each argument in one case."""
        table = {}
        for argument in self._kernel.arguments:
            name = argument.name
            if name in self._own:
                table[name] = self._own[name][1] + _GUARD
                continue
            constant = argument.role == "constant"
            source = reference.constants if constant else reference.cases[case].inputs
            if name not in source:
                raise ValueError(f"the reference lacks {name}, an argument of the kernel: it has {', '.join(source)}")
            value = source[name]
            if value.shape != argument.shape or value.dtype != numpy_dtype(argument.dtype):
                raise ValueError(f"the reference gives {value.dtype}{list(value.shape)} for {name}, which is "
                                 f"{argument.dtype}{list(argument.shape)}")  # fmt: skip
            table[name] = self._bench.upload(-1 if constant else case, name, value)
        return table

    def _check_inputs(self, case: int, given: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """A kernel that writes to what it should read would spoil the next candidate's data too: upload them again."""
        for name, value in given.items():
            address = self._bench.inputs.get((case, name))
            if address is None:
                continue
            found = np.empty(value.shape, value.dtype)
            self._device.download(found, address, self._bench.stream)
            self._device.synchronize(self._bench.stream)
            if found.tobytes() != np.ascontiguousarray(value).tobytes():
                self._device.free(self._bench.inputs.pop((case, name)))
                self.failure = self.failure or Failure("wrong", f"{name}: an input was overwritten")
