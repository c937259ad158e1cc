"""The worker process: a loop that takes jobs from its standard input and answers on its standard output.

Where there is fork, the process that the pool starts only watches the worker proper. The system begins to count the
peak of a process at what its parent held, so the peak of a worker that a large program started would say nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import queue
import signal
import sys
import threading
import traceback
from typing import BinaryIO, NoReturn

from pipeline.measurement.wire import Died, Finished, Job, Message, Setup, Started, receive, resolve, send

if sys.platform != "win32":
    import resource

_PR_SET_PDEATHSIG = 1


def serve(parent: int) -> None:
    """Run jobs until the parent closes the pipe. The parent calls this in a fresh interpreter."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _die_with(parent)
    requests, replies = _take_over_the_pipes()
    if sys.platform != "win32":
        watcher, child = os.getpid(), os.fork()
        if child:
            requests.close()
            _watch(child, replies)
        _die_with(watcher)
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    setup = receive(requests)
    if not isinstance(setup, Setup):
        return
    inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(requests, inbox), daemon=True).start()
    send(replies, _initialize(setup))
    while True:
        job = inbox.get()
        assert isinstance(job, Job)
        send(replies, _perform(job, setup.memory_bytes, replies))


def _watch(child: int, replies: BinaryIO) -> NoReturn:
    """Wait for the end of the worker proper and tell how it came."""
    _, status, usage = os.wait4(child, 0)
    peak = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    with contextlib.suppress(OSError):
        send(replies, Died(os.waitstatus_to_exitcode(status), peak))
    os._exit(0)


def _take_over_the_pipes() -> tuple[BinaryIO, BinaryIO]:
    """Keep the pipes for ourselves: what a job prints goes to standard error, and what it reads is empty."""
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    return requests, replies


def _die_with(parent: int) -> None:
    """Where the kernel offers it, be killed when the parent dies, even in the middle of a job that holds the lock."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the request was in force
            os._exit(1)


def _listen(requests: BinaryIO, inbox: queue.SimpleQueue[Message]) -> None:
    """Hand on jobs, and leave at once when the parent is gone, whatever the main thread is doing."""
    while (message := receive(requests)) is not None:
        inbox.put(message)
    os._exit(0)


def _initialize(setup: Setup) -> Finished:
    try:
        if setup.initializer is not None:
            resolve(setup.initializer)(setup.initializer_argument)
    except BaseException:
        return Finished(b"", "error", traceback.format_exc(), _resident_bytes())
    return Finished(b"", None, "", _resident_bytes())


def _perform(job: Job, memory_bytes: int, replies: BinaryIO) -> Finished:
    """The only place that may catch everything: an exception of a job becomes its recorded failure."""
    try:
        function = resolve(job.function)
        argument = pickle.loads(job.payload)
        send(replies, Started(_resident_bytes()))
        _limit_memory(memory_bytes)
        payload = pickle.dumps(function(argument), protocol=pickle.HIGHEST_PROTOCOL)
    except MemoryError:
        _limit_memory(None)
        return Finished(b"", "memory", traceback.format_exc(), _resident_bytes())
    except BaseException:
        _limit_memory(None)
        return Finished(b"", "error", traceback.format_exc(), _resident_bytes())
    _limit_memory(None)
    return Finished(payload, None, "", _resident_bytes())


def _limit_memory(extra: int | None) -> None:
    """Let the address space grow by `extra` bytes from where it is now; None takes the limit away."""
    if sys.platform == "win32":
        return
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    soft = hard
    if extra is not None and (size := _address_space_bytes()) is not None:
        soft = size + extra if hard == resource.RLIM_INFINITY else min(size + extra, hard)
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _address_space_bytes() -> int | None:
    """Size of the address space; None where the system does not say (there the limit is not set)."""
    try:
        with open("/proc/self/statm", "rb") as stream:
            return int(stream.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None


def _resident_bytes() -> int:
    """Resident memory now; where the system does not say, its peak."""
    try:
        with open("/proc/self/statm", "rb") as stream:
            return int(stream.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        if sys.platform == "win32":
            return 0
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
