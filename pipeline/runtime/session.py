"""A session: a loaded model that runs, with the habits of ONNX Runtime's InferenceSession."""

from __future__ import annotations

import ctypes
import json
import math
import os
import queue
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from pipeline.codegen.llvm.compile import LoadedObject
from pipeline.codegen.llvm.link import aligned_zeros
from pipeline.codegen.llvm.team import Team, own_cores
from pipeline.codegen.memory import ALIGNMENT
from pipeline.codegen.module import MemoryFigures
from pipeline.errors import PipelineError, UserError, listed
from pipeline.ir.graph import Shape
from pipeline.ir.graph_types import numpy_dtype
from pipeline.runtime.artifact import Artifact, load_artifact
from pipeline.runtime.node_arg import NodeArg, admitted, no_names

MOST_SPIN_US = 1e9
_ALIGN_FROM = 1 << 14  # bytes; below, aligning costs more than it saves
_BYTE = ctypes.c_char
_JOB = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)
_BIND = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_SESSIONS: weakref.WeakSet[Session] = weakref.WeakSet()


class _Context:
    """What one run at a time owns: the arena, the table of pointers, and the array that the main function is given."""

    __slots__ = ("_kept", "address", "pointers")

    def __init__(
        self, artifact: Artifact, bind: Callable[[int], None], trace: np.ndarray[Any, Any] | None = None
    ) -> None:
        arena = aligned_zeros(artifact.memory.arena_bytes)
        table = np.zeros(artifact.slots + 1, np.int64)
        ports = len(artifact.inputs) + len(artifact.outputs)
        self.pointers = (ctypes.c_int64 * (ports + 4))()
        self.pointers[ports : ports + 3] = [artifact.constants.ctypes.data, arena.ctypes.data, table.ctypes.data]
        if trace is not None:
            self.pointers[ports + 3] = trace.ctypes.data
        self.address = ctypes.addressof(self.pointers)
        self._kept = (arena, table, trace, artifact.constants)
        bind(self.address)


class _Reborn:
    """The team of a forked child: it starts when it is first used."""

    def __init__(self, session: Session) -> None:
        self._session = weakref.ref(session)

    def run(self, job: int, buffers: int) -> None:
        session = self._session()
        assert session is not None
        team = session._new_team()
        assert team is not None
        session._team = team
        team.run(job, buffers)

    def close(self) -> None:
        """Nothing was started."""


class Session:
    """A model that is ready to run; any number of Python threads may call it.

    threads   how many threads work on one run; when None, as many as the model was made for, but no more than this
              process may use cores: threads that wait for each other must not share one
    pin       pin each of them, the caller included, to a core of its own
    spin_us   how long idle workers spin before they park: longer answers faster, shorter leaves the cores to others
    verify    check the hash of the weights too
    copy      read the weights into memory of this process, in huge pages where the system has them, instead of mapping
              the file, which all processes that load it share: fewer page faults and TLB misses when running, by which
              products that stream their weights are up to a tenth faster. None: where they take a sixteenth of the
              memory at most

    A run of one thread holds nobody up: callers run side by side, each in its own memory. Runs of several threads
    follow one another. After a fork the child makes workers of its own.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        threads: int | None = None,
        pin: bool = False,
        spin_us: float = 100.0,
        verify: bool = False,
        copy: bool | None = None,
    ) -> None:
        if not isinstance(spin_us, int | float | np.number) or not 0 <= spin_us <= MOST_SPIN_US:
            raise UserError(
                "spin_us is no time to spin", where=str(path), why=f"it is {spin_us!r:.80}",
                todo=f"Give microseconds, from 0 to {MOST_SPIN_US:.0f}",
            )  # fmt: skip
        if copy is not None and not isinstance(copy, bool | np.bool_):
            raise UserError("copy is neither true nor false", where=str(path), why=f"it is {copy!r:.80}")
        artifact = load_artifact(path, verify=verify, copy=copy)
        if threads is not None and not isinstance(threads, Integral):
            raise UserError(
                "threads is no number", where=str(path), why=f"threads is {threads!r}",
                todo=f"Ask for 1 to {artifact.threads}",
            )  # fmt: skip
        if threads is not None and not 1 <= threads <= artifact.threads and threads != 1:
            raise UserError(
                "the model does not run on so many threads",
                where=str(path),
                why=f"threads is {threads}",
                todo=f"Ask for 1 to {artifact.threads}, or make the model again for more",
            )
        self._artifact: Artifact = artifact
        self._code = LoadedObject(tuple(artifact.objects.values()))
        self._bind: Callable[[int], None] = _BIND(self._code.address("muschedule_bind"))
        self._main = self._code.address("muschedule_main")
        self._direct = _JOB(self._main)
        self._threads = min(artifact.threads, _cores_here()) if threads is None else threads
        self._pin, self._spin_us = pin, spin_us
        self._inputs = tuple((i, p.name, p.shape, numpy_dtype(p.dtype)) for i, p in enumerate(artifact.inputs))
        first = len(self._inputs)
        self._outputs = tuple(
            (first + i, p.shape, dtype := numpy_dtype(p.dtype), math.prod(p.shape) * dtype.itemsize)
            for i, p in enumerate(artifact.outputs)
        )
        self._positions = {port.name: i for i, port in enumerate(artifact.outputs)}
        self._closed = False
        self._make_contexts()
        self._team: Team | _Reborn | None = self._new_team()
        _SESSIONS.add(self)

    def get_inputs(self) -> list[NodeArg]:
        """What `run` has to be fed, in order."""
        return [NodeArg(port) for port in self._artifact.inputs]

    def get_outputs(self) -> list[NodeArg]:
        """What `run` gives, in order."""
        return [NodeArg(port) for port in self._artifact.outputs]

    @property
    def artifact(self) -> Artifact:
        """The loaded folder: memory figures, provenance, target."""
        return self._artifact

    @property
    def memory(self) -> MemoryFigures:
        """What it takes for intermediates."""
        return self._artifact.memory

    @property
    def threads(self) -> int:
        """How many threads work on one run."""
        return self._threads

    def run(
        self, output_names: Sequence[str] | None, feeds: Mapping[str, np.ndarray[Any, Any]]
    ) -> list[np.ndarray[Any, Any]]:
        """The outputs of that name (all when None), in new arrays.

        feeds  an array for each input, of exactly its shape and dtype; one that is not contiguous is copied
        """
        if self._closed:
            raise self._refusal()
        chosen = None if output_names is None else self._choose(output_names)
        if self._team is None:
            try:
                context = self._contexts.get_nowait()
            except queue.Empty:
                context = _Context(self._artifact, self._bind)
            try:
                outputs = self._run_in(context, feeds)
            finally:
                self._contexts.put(context)
        else:
            # A lock, as `with` gives it back whenever an interrupt comes: a context taken out of a queue could be lost.
            with self._turn:
                outputs = self._run_in(self._context, feeds)
        return outputs if chosen is None else [outputs[position] for position in chosen]

    def _run_in(self, context: _Context, feeds: Mapping[str, np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
        held, outputs = self._fill(context.pointers, feeds)
        if self._team is None:
            self._direct(context.address, 0, 1, None)
        else:
            self._run_together(self._main, context)
        del held
        return outputs

    def _run_together(self, job: int, context: _Context) -> None:
        assert self._team is not None
        try:
            self._team.run(job, context.address)
        except PipelineError as error:
            if not self._closed:  # while this caller waited
                raise
            raise self._refusal() from error

    def profile(self, feeds: Mapping[str, np.ndarray[Any, Any]], *, repeats: int = 10) -> dict[str, Any]:
        """Where the time of a run goes: {total_ms, calls: [{label, task, parallel, ms, share}]}, medians of some runs.

        The time of a call is thread 0's; waiting at a barrier is in none of them, so they sum to less than the total.
        """
        times = (
            np.stack([self._traced(feeds)[0] for _ in range(max(1, repeats))])
            if self._artifact.calls
            else np.zeros((1, 0, 2))
        )
        spans = np.median(times[..., 1] - times[..., 0], axis=0) / 1e6
        total = float(np.median(times[..., 1].max(-1) - times[..., 0].min(-1)) / 1e6) if spans.size else 0.0
        calls = [
            {
                "label": call.label,
                "task": call.task,
                "parallel": call.parallel,
                "ms": float(span),
                "share": float(span) / total if total else 0.0,
            }
            for call, span in zip(self._artifact.calls, spans, strict=True)
        ]
        return {"total_ms": total, "calls": calls}

    def chrome_trace(self, path: Path | str, feeds: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """Writes one run, a row per thread and a bar per call, for chrome://tracing or Perfetto."""
        self._traced(feeds)  # the first run finds cold caches and parked workers
        times = self._traced(feeds)
        start = times[times > 0].min(initial=np.iinfo(np.int64).max)
        events: list[dict[str, Any]] = [
            {"name": "thread_name", "ph": "M", "pid": 1, "tid": thread, "args": {"name": f"thread {thread}"}}
            for thread in range(self._threads)
        ]
        for thread, row in enumerate(times):
            for call, (begin, end) in zip(self._artifact.calls, row, strict=True):
                if begin > 0:
                    span = {"ts": (begin - start) / 1e3, "dur": (end - begin) / 1e3, "pid": 1, "tid": thread}
                    category = call.task or "call"
                    events.append(
                        {"name": call.label, "cat": category, "ph": "X", **span, "args": {"kernel": call.symbol}}
                    )
        try:
            Path(path).write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))
        except OSError as error:
            raise UserError(
                "the trace cannot be written", where=str(path), why=str(error), todo="Name another path"
            ) from error

    def close(self) -> None:
        """Ends the worker threads. A closed session does not run again."""
        self._closed = True
        if self._team is not None:
            self._team.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _new_team(self) -> Team | None:
        cores = own_cores(self._threads) if self._pin else None
        return Team(self._threads, self._code, cores=cores, spin_us=self._spin_us) if self._threads > 1 else None

    def _make_contexts(self) -> None:
        """That of runs on several threads, which follow one another, and those of runs on one."""
        self._turn = threading.Lock()
        self._context = _Context(self._artifact, self._bind)
        self._contexts: queue.SimpleQueue[_Context] = queue.SimpleQueue()
        self._contexts.put(self._context)

    def _after_fork(self) -> None:
        """The workers, and whoever held the memory, are in the parent; most children never run the model."""
        if self._team is not None and not self._closed:
            self._team = _Reborn(self)
        self._make_contexts()

    def _fill(
        self, pointers: Any, feeds: Mapping[str, np.ndarray[Any, Any]]
    ) -> tuple[list[Any], list[np.ndarray[Any, Any]]]:
        """Writes the addresses of checked inputs and of new outputs; gives both, to be kept through the run."""
        held = []
        if not hasattr(feeds, "__len__") or len(feeds) != len(self._inputs):
            self._refuse_names(feeds)
        for index, name, shape, dtype in self._inputs:
            try:
                array = feeds[name]
            except (LookupError, TypeError):
                self._refuse_names(feeds)
            if (
                type(array) is not np.ndarray
                or array.dtype != dtype
                or array.shape != shape
                or not array.flags.c_contiguous
            ):
                array = admitted(name, array, shape, dtype)
            elif not array.flags.aligned:
                array = array.copy()
            held.append(array)
            pointers[index] = _address(array)
        outputs = []
        for index, shape, dtype, nbytes in self._outputs:
            array, pointers[index] = _aligned_empty(shape, dtype, nbytes)
            outputs.append(array)
        return held, outputs

    def _refuse_names(self, feeds: Mapping[str, Any]) -> NoReturn:
        names = [name for _, name, _, _ in self._inputs]
        if not isinstance(feeds, Mapping):
            raise UserError(
                "the feeds are no mapping", why=f"a {type(feeds).__name__} was given", todo="Give {name: array}"
            )
        unknown = [name for name in feeds if name not in names]
        if unknown:
            raise UserError(
                "the model has no such input", where=listed(unknown), todo=f"Its inputs are {listed(names)}"
            )
        missing = [name for name in names if name not in feeds]
        raise UserError("an input is missing", where=listed(missing), todo=f"The model's inputs are {listed(names)}")

    def _choose(self, names: Sequence[str]) -> list[int]:
        if isinstance(names, str):
            names = [names]
        if not isinstance(names, Iterable):
            raise no_names(names)
        names = list(names)  # an iterator gives them once
        if not all(isinstance(name, str) for name in names):
            raise no_names(names)
        unknown = [name for name in names if name not in self._positions]
        if unknown:
            raise UserError(
                "the model has no such output", where=listed(unknown), todo=f"Its outputs are {listed(self._positions)}"
            )
        return [self._positions[name] for name in names]

    def _refusal(self) -> UserError:
        return UserError("the session is closed", where=str(self._artifact.path), todo="Load the artifact again")

    def _traced(self, feeds: Mapping[str, np.ndarray[Any, Any]]) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Nanoseconds (thread, call, begin and end); 0 where a thread had no part in a call."""
        if self._closed:
            raise self._refusal()
        times = np.zeros((self._threads, len(self._artifact.calls), 2), np.int64)
        job = self._code.address("muschedule_main_traced")
        context = _Context(self._artifact, self._bind, times)
        held, outputs = self._fill(context.pointers, feeds)
        if self._team is None:
            _JOB(job)(context.address, 0, 1, None)
        else:
            self._run_together(job, context)
        del held, outputs
        return times


def _address(array: np.ndarray[Any, Any]) -> int:
    """Where its data begins. The buffer protocol says so in a third of the microsecond that NumPy's own ways take, but
    only of memory that can be written and is not empty."""
    try:
        return ctypes.addressof(_BYTE.from_buffer(array))  # type: ignore[arg-type]  # an array is a buffer
    except (TypeError, ValueError, BufferError):
        address: int = array.__array_interface__["data"][0]
        return address


def _aligned_empty(shape: Shape, dtype: np.dtype[Any], nbytes: int) -> tuple[np.ndarray[Any, Any], int]:
    """An array, and where its data begins. NumPy aligns to 16 bytes, so that every store of a wide vector would touch
    two cache lines."""
    if nbytes < _ALIGN_FROM:
        array = np.empty(shape, dtype)
        return array, _address(array)
    raw = np.empty(nbytes + ALIGNMENT, np.uint8)
    address = _address(raw)
    start = -address % ALIGNMENT
    return np.ndarray(shape, dtype, raw, start), address + start


def _cores_here() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _after_fork() -> None:
    for session in list(_SESSIONS):
        session._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
