"""Jobs that go wrong, and jobs that tell about their worker. Workers import them by name."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time

_SETUP: dict[str, object] = {}


def double(value):
    return value * 2


def pid(_):
    return os.getpid()


def sleep(seconds):
    time.sleep(seconds)
    return "slept"


def segfault(_):
    ctypes.memset(0, 0, 1)


def spin(_):
    while True:
        pass


def spin_and_hold_the_lock(_):
    """A native wait that keeps Python's global lock: no Python code of the worker can run any more."""
    ctypes.PyDLL(None).sleep(1000)


def exhaust(_):
    chunks = []
    while True:
        chunks.append(bytearray(1 << 26))


def exhaust_natively(_):
    """malloc and touch until malloc gives null, then write to that, as an unchecked kernel would."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    while True:
        ctypes.memset(libc.malloc(1 << 24) or 0, 1, 1 << 24)


def keep(byte_count):
    _SETUP["kept"] = b"x" * byte_count
    return os.getpid()


def fail(text):
    raise ValueError(text)


def leave(code):
    sys.exit(code)


def die(code):
    os._exit(code)


def shout(text):
    print(text, flush=True)
    print(text, file=sys.stderr, flush=True)
    os.write(1, text.encode())
    return "quiet"


def shout_and_die(text):
    os.write(2, text.encode())
    os.kill(os.getpid(), signal.SIGABRT)


def unpicklable(_):
    return lambda: None


def initialize(value):
    _SETUP["value"] = value


def refuse_to_start(_):
    raise RuntimeError("no license")


def initialized(_):
    return _SETUP.get("value")


def environment(name):
    import ctypes

    libc = ctypes.CDLL(None)
    libc.getenv.restype = ctypes.c_char_p
    found = libc.getenv(name.encode())
    return (found and found.decode(), sys.flags.hash_randomization, sys.flags.ignore_environment)


def has_a_child_that_sleeps(path):
    child = subprocess.Popen(["sleep", "1000"])
    with open(path, "w") as stream:
        stream.write(str(child.pid))
    time.sleep(1000)
