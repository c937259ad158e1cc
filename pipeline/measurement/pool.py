"""A pool of persistent worker processes in which a crash, a hang or a flood of memory costs one job and one worker.

A worker is a fresh interpreter that does not run the parent's main module again, so that the pool works from a script
without a guard, from `python -m`, from a test and from an interactive session alike.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from pipeline.measurement.failure import Failure
from pipeline.measurement.wire import Died, Finished, Job, Setup, Started, dotted, receive, send

_ROOT = str(Path(__file__).resolve().parents[2])
# Libraries that start a thread per core of their own would disturb what the worker measures.
_ONE_THREAD = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
_BOOT = (
    "import json, os, sys\n"
    "sys.path[:] = json.loads(sys.argv[1])\n"
    f"for name in {_ONE_THREAD!r}: os.putenv(name, '1')\n"
    "from pipeline.measurement.worker import serve\n"
    "serve(int(sys.argv[2]))\n"
)
_START_SECONDS = 120.0
_TAIL_BYTES = 4000


@dataclass(frozen=True, slots=True)
class _Task:
    job: Job
    timeout_s: float
    future: Future[object]


class WorkerPool:
    """`count` worker processes that run importable functions.

    memory_bytes   how much a worker may grow during one job (enforced where the system has RLIMIT_AS)
    recycle_bytes  a worker that holds more than this after a job is replaced; by default `memory_bytes` more than at
                   its start
    initializer    called once in every new worker with `initializer_argument`
    """

    def __init__(
        self,
        count: int,
        *,
        memory_bytes: int,
        recycle_bytes: int | None = None,
        initializer: Callable[..., object] | str | None = None,
        initializer_argument: object = None,
    ) -> None:
        setup = Setup(
            memory_bytes=memory_bytes,
            initializer=None if initializer is None else dotted(initializer),
            initializer_argument=initializer_argument,
        )
        self.count = count
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._slots = tuple(_Slot(self._tasks, setup, recycle_bytes) for _ in range(count))
        self._finalizer = weakref.finalize(self, _close, self._tasks, self._slots)
        for slot in self._slots:
            slot.thread.start()

    def submit(self, function: Callable[..., object] | str, argument: object, timeout_s: float) -> Future[object]:
        """Queue one call. The future gives the function's result, or a `Failure`; it never raises for the job's sake.

        The clock starts when the job does, not while it waits or while a worker starts."""
        future: Future[object] = Future()
        if not self._finalizer.alive:
            future.set_result(Failure("error", "the pool is closed"))
            return future
        name = dotted(function)
        try:
            payload = pickle.dumps(argument, protocol=pickle.HIGHEST_PROTOCOL)
        except Exception as error:
            future.set_result(Failure("error", f"the argument of {name} cannot be pickled: {error}"))
            return future
        self._tasks.put(_Task(Job(name, payload), timeout_s, future))
        return future

    def close(self) -> None:
        """Kill every worker. Jobs that have not ended get a failure."""
        self._finalizer()

    def worker_pids(self) -> tuple[int, ...]:
        """Process numbers of the workers that live now."""
        return tuple(pid for slot in self._slots if (pid := slot.pid()) is not None)

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _close(tasks: queue.SimpleQueue[_Task | None], slots: tuple[_Slot, ...]) -> None:
    for slot in slots:
        slot.closing = True
        slot.kill()
        tasks.put(None)
    for slot in slots:
        if slot.thread.is_alive():
            slot.thread.join(timeout=10)
    with contextlib.suppress(queue.Empty):
        while True:
            task = tasks.get_nowait()
            if task is not None and task.future.set_running_or_notify_cancel():
                task.future.set_result(Failure("error", "the pool was closed before the job ran"))


class _Slot:
    """One place in the pool: a thread that keeps one worker alive and feeds it.

    This thread starts the worker and outlives it: Linux kills a worker when the thread that started it ends.
    """

    def __init__(self, tasks: queue.SimpleQueue[_Task | None], setup: Setup, recycle_bytes: int | None) -> None:
        self.closing = False
        self.thread = threading.Thread(target=self._serve, name="measurement worker", daemon=True)
        self._tasks, self._setup, self._recycle_bytes = tasks, setup, recycle_bytes
        self._worker: _Worker | None = None

    def pid(self) -> int | None:
        worker = self._worker
        return None if worker is None else worker.process.pid

    def kill(self) -> None:
        worker = self._worker
        if worker is not None:
            worker.kill()

    def _serve(self) -> None:
        startup = self._start()
        while (task := self._tasks.get()) is not None and not self.closing:
            if not task.future.set_running_or_notify_cancel():
                continue
            if startup is not None:  # the last start failed: this job pays for the next try
                startup = self._start()
            task.future.set_result(self._run(task) if startup is None else startup)
            if startup is None and self._worker is None and not self.closing:
                startup = self._start()
        if task is not None:
            self._tasks.put(task)
        self._stop()

    def _start(self) -> Failure | None:
        """A new worker, ready for jobs; or why there is none."""
        try:
            self._worker = worker = _Worker()
        except OSError as error:
            return Failure("error", f"a worker process could not be started: {error}")
        if self.closing:  # close() may have looked before the worker was there
            self._stop()
            return Failure("error", "the pool is closed")
        with worker.limit(_START_SECONDS) as expired:
            worker.send(self._setup)
            reply = worker.receive()
        if not isinstance(reply, Finished):
            failure = worker.post_mortem(reply, expired.is_set(), _START_SECONDS, None, self._setup.memory_bytes)
            self._stop()
            return Failure(failure.reason, f"while a worker started: {failure.detail}")
        if reply.reason is not None:
            self._stop()
            return Failure(reply.reason, f"in the initializer of a worker: {reply.detail}")
        worker.recycle_bytes = self._recycle_bytes or reply.resident + self._setup.memory_bytes
        return None

    def _run(self, task: _Task) -> object:
        worker = self._worker
        assert worker is not None
        worker.forget_output()
        started, seconds = None, _START_SECONDS
        with worker.limit(seconds) as expired:
            worker.send(task.job)
            reply = worker.receive()
        if isinstance(reply, Started):
            started, seconds = reply, task.timeout_s
            with worker.limit(seconds) as clock:
                reply = worker.receive()
            expired = clock if clock.is_set() else expired
        if not isinstance(reply, Finished):
            failure = worker.post_mortem(reply, expired.is_set(), seconds, started, self._setup.memory_bytes)
            self._stop()
            return Failure("error", "the pool was closed while the job ran") if self.closing else failure
        if expired.is_set() or reply.reason == "memory" or reply.resident > worker.recycle_bytes:
            self._stop()
        if reply.reason is not None:
            return Failure(reply.reason, reply.detail)
        try:
            result: object = pickle.loads(reply.payload)
        except Exception as error:
            return Failure("error", f"the result of {task.job.function} cannot be read: {error}")
        return result

    def _stop(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.kill()
            worker.bury()


class _Worker:
    """One process, its pipes, and what it printed. Used by the thread of its slot; `kill` by any thread."""

    def __init__(self) -> None:
        self.recycle_bytes = 0
        self._lock = threading.Lock()
        self._reaped = False
        self._output: IO[bytes] = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - closed by bury()
        windows = sys.platform == "win32"
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-E", "-c", _BOOT, json.dumps(_import_path()), str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._output,
                start_new_session=not windows,  # Ctrl-C on the terminal is the parent's business
                creationflags=subprocess.CREATE_NEW_PROCESS_GROUP if windows else 0,  # type: ignore[attr-defined,unused-ignore]
            )
        except OSError:
            self._output.close()
            raise

    def send(self, message: Setup | Job) -> None:
        """Nothing where the worker is gone: the next `receive` tells."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError, ValueError):
            send(self.process.stdin, message)

    def receive(self) -> object:
        """The next message, or None when the worker has died."""
        assert self.process.stdout is not None
        try:
            return receive(self.process.stdout)
        except Exception:  # a worker that died in the middle of a message, or wrote rubbish over its own memory
            return None

    @contextlib.contextmanager
    def limit(self, seconds: float) -> Iterator[threading.Event]:
        """Kill the worker after so many seconds; gives the event that says so."""
        expired = threading.Event()

        def expire() -> None:
            expired.set()
            self.kill()

        timer = threading.Timer(seconds, expire)
        timer.daemon = True
        timer.start()
        try:
            yield expired
        finally:
            timer.cancel()
            timer.join()  # a kill that is under way must not hit the next job

    def kill(self) -> None:
        """End the worker and what it started, now."""
        with self._lock:
            if self._reaped:  # the number may belong to another process by now
                return
            with contextlib.suppress(OSError):
                if sys.platform == "win32":
                    self.process.kill()
                else:
                    os.killpg(self.process.pid, signal.SIGKILL)

    def forget_output(self) -> None:
        with contextlib.suppress(OSError):
            self._output.seek(0)  # the worker shares this offset
            self._output.truncate(0)

    def post_mortem(
        self, last: object, expired: bool, limit_s: float, started: Started | None, memory_bytes: int
    ) -> Failure:
        """What became of a worker that stopped answering; `last` is what came from it last."""
        code = self._reap()
        said = self._said()
        if expired:
            return Failure("timeout", f"not finished after {limit_s:g} s{said}")
        how = _cause_of_death(last.code if isinstance(last, Died) else code)
        # An allocation that native code does not check ends in a null pointer: a crash near the limit is the limit's.
        if started is not None and isinstance(last, Died):
            grown = last.peak - started.resident
            if grown > 0.75 * memory_bytes:
                return Failure("memory", f"{how} after growing by {grown:,} bytes; the limit is {memory_bytes:,}{said}")
        return Failure("crash", how + said)

    def _said(self) -> str:
        with contextlib.suppress(OSError):
            end = self._output.seek(0, os.SEEK_END)
            self._output.seek(max(0, end - _TAIL_BYTES))
            text = self._output.read().decode("utf-8", "replace").strip()
            return f"; its output: {text}" if text else ""
        return ""

    def _reap(self) -> int:
        """Exit code of the process, negative for a signal."""
        self.kill()
        with self._lock:
            self._reaped = True
            return self.process.wait()

    def bury(self) -> None:
        """Collect the process and close its pipes."""
        self._reap()
        for stream in (self.process.stdin, self.process.stdout, self._output):
            with contextlib.suppress(OSError):
                if stream is not None:
                    stream.close()


def _import_path() -> list[str]:
    """Where this process imports from. The worker ignores the environment, so it is told."""
    path = [str(entry) for entry in sys.path]
    return path if _ROOT in path else [_ROOT, *path]


def _cause_of_death(code: int) -> str:
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"killed by {signal.Signals(-code).name}"
        return f"killed by signal {-code}"
    return f"exited with code {code}"
