"""The thread team: native threads that run compiled jobs together, owned by a Python object.

A job is a function `void(ptr buffers, i64 thread, i64 threads, ptr barrier)`. All threads of the team run it at once,
each with its own number; thread 0 is the caller. Workers spin for the next job for a short while, because a hand-off
between spinning threads costs a tenth of a microsecond and a wake-up tens of them, and then park in the kernel.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import weakref
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from pipeline.codegen.llvm.team_ir import LINE, SHARING, team_bytes
from pipeline.errors import PipelineError

_EXIT_SECONDS = 10.0


def own_cores(threads: int) -> list[int] | None:
    """A core of this process for each thread; None (no pinning) where there are too few, or the system does not say.

    Threads that wait for each other must not share a core: each hand-over would cost a time slice.
    """
    if not hasattr(os, "sched_getaffinity"):
        return None
    cores = sorted(os.sched_getaffinity(0))
    return cores[:threads] if len(cores) >= threads else None


class Symbols(Protocol):
    """Loaded code that knows where its functions are, and keeps them there as long as it lives."""

    def address(self, symbol: str) -> int: ...


def called_by_kernels(code: Symbols) -> dict[str, int]:
    """The addresses of the functions of the loaded `team_ir` that a kernel calls, by name."""
    return {symbol: code.address(symbol) for symbol in SHARING}


class Team:
    """Threads that run compiled jobs together. Thread 0 is whoever calls `run`; the others are daemons of this object.

    threads  how many, the caller included
    code     the loaded `team_ir`
    cores    the core that each thread is pinned to, thread 0 (the one that makes the team) included; None pins none
    spin_us  how long an idle worker spins before it parks

    Several Python threads may call one team: their jobs run one after the other. `close`, garbage collection and the
    interpreter's exit stop the workers. A team does not survive a fork.
    """

    __slots__ = (
        "__weakref__",
        "_finalizer",
        "_lock",
        "_pid",
        "_run",
        "_state",
        "_state_address",
        "_time",
        "_time_cold",
        "threads",
    )

    def __init__(
        self, threads: int, code: Symbols, *, cores: Sequence[int] | None = None, spin_us: float = 100.0
    ) -> None:
        if threads < 1:
            raise PipelineError("a team needs a thread", why=f"threads is {threads}", todo="Ask for 1 or more")
        if cores is not None and len(cores) != threads:
            raise PipelineError(
                "every thread of a team needs a core",
                why=f"{threads} threads and {len(cores)} cores were given",
                todo="List one core for each thread, or none at all",
            )
        self.threads = threads
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._state = ctypes.create_string_buffer(team_bytes(threads) + LINE)
        self._state_address = -(-ctypes.addressof(self._state) // LINE) * LINE
        (ctypes.c_int64 * 2).from_address(self._state_address)[:] = [threads, int(spin_us * 1000)]
        address, i64 = ctypes.c_void_p, ctypes.c_int64
        self._run = ctypes.CFUNCTYPE(None, address, address, address)(code.address("muschedule_run"))
        self._time = ctypes.CFUNCTYPE(None, address, address, address, i64, i64, address)(
            code.address("muschedule_time")
        )
        self._time_cold = ctypes.CFUNCTYPE(None, address, address, address, i64, i64, address, address, i64)(
            code.address("muschedule_time_cold")
        )
        worker = ctypes.CFUNCTYPE(None, address, i64)(code.address("muschedule_worker"))
        stop = ctypes.CFUNCTYPE(None, address)(code.address("muschedule_stop"))
        caller = None if cores is None else _pin_caller(cores[0])
        workers = tuple(
            threading.Thread(
                target=_work,
                args=(worker, self._state_address, self._state, code, thread, None if cores is None else cores[thread]),
                name=f"muschedule-{thread}",
                daemon=True,
            )
            for thread in range(1, threads)
        )
        for thread in workers:
            thread.start()
        # A function, not a method, so that it does not keep the team alive. It keeps the code and the state until then.
        self._finalizer = weakref.finalize(
            self, _stop, self._lock, stop, self._state_address, (self._state, code), workers, caller, self._pid
        )

    def run(self, job: int, buffers: int) -> None:
        """All threads run the job at that address with those buffers; returns when the last one has ended."""
        self._refuse_fork()
        with self._lock:
            self._refuse_closed()
            self._run(self._state_address, job, buffers)

    def time(
        self,
        job: int,
        buffers: int,
        *,
        repeats: int = 1,
        inner: int = 1,
        flush: np.ndarray[tuple[int, ...], np.dtype[np.generic]] | None = None,
    ) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """Nanoseconds of one run: `repeats` samples, each the mean of `inner` runs in a row.

        flush  memory that the threads overwrite before each sample, outside the timed part, so that the job finds
               cold caches; it has to be larger than all of them together. None leaves them as the last run did.
        """
        samples = np.zeros(max(0, repeats), np.int64)
        self._refuse_fork()
        with self._lock:
            self._refuse_closed()
            if flush is None:
                self._time(self._state_address, job, buffers, repeats, inner, samples.ctypes.data)
            else:
                out, memory, size = samples.ctypes.data, flush.ctypes.data, flush.nbytes
                self._time_cold(self._state_address, job, buffers, repeats, inner, out, memory, size)
        return samples / max(1, inner)

    def close(self) -> None:
        """Waits for the running job, ends the workers, gives the caller its old cores back. Closing twice is fine."""
        if os.getpid() == self._pid:
            with self._lock:
                self._finalizer()

    def __enter__(self) -> Team:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _refuse_closed(self) -> None:
        if not self._finalizer.alive:
            raise PipelineError("the team is closed", todo="Make a new one")

    def _refuse_fork(self) -> None:
        # Asked before the lock is taken: in the child nobody may be left to release it.
        if os.getpid() != self._pid:
            raise PipelineError(
                "a team does not survive a fork",
                why=f"it was made in process {self._pid} and its workers are not in process {os.getpid()}",
                todo="Make the team after the fork, or start processes with `spawn`",
            )


def _work(worker: object, state: int, memory: object, code: object, thread: int, core: int | None) -> None:
    """The body of a worker; `memory` and `code` are held here so that they outlive it."""
    if core is not None and hasattr(os, "sched_setaffinity"):
        with contextlib.suppress(OSError):  # A core outside the container's set: the thread then floats.
            os.sched_setaffinity(0, {core})
    assert callable(worker)
    worker(state, thread)


def _pin_caller(core: int) -> tuple[int, frozenset[int]] | None:
    """Pins the calling thread; returns its id and its old cores."""
    if not hasattr(os, "sched_setaffinity"):
        return None
    thread, before = threading.get_native_id(), frozenset(os.sched_getaffinity(0))
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, {core})
    return thread, before


def _stop(
    lock: threading.RLock,
    stop: object,
    state: int,
    held: object,
    workers: Sequence[threading.Thread],
    caller: tuple[int, frozenset[int]] | None,
    pid: int,
) -> None:
    if os.getpid() != pid:
        return
    # At exit another thread may be inside a job that never ends. Then the workers are left to die with the process.
    if not lock.acquire(timeout=_EXIT_SECONDS):
        return
    try:
        assert callable(stop)
        stop(state)
    finally:
        lock.release()
    for thread in workers:
        if thread is not threading.current_thread():
            thread.join()
    if caller is not None:
        with contextlib.suppress(OSError):  # The thread that made the team has ended.
            os.sched_setaffinity(caller[0], caller[1])
