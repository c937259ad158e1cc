"""How the parent and a worker process talk: pickled messages with a length in front, on two pipes."""

from __future__ import annotations

import importlib
import pickle
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO

from pipeline.errors import MeasureError
from pipeline.measurement.failure import Reason

_LENGTH = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class Setup:
    """The first message to a worker: its limit, and what to call first."""

    memory_bytes: int
    initializer: str | None
    initializer_argument: object


@dataclass(frozen=True, slots=True)
class Job:
    """One call: `function` is "package.module:name"; `payload` is the pickled argument."""

    function: str
    payload: bytes


@dataclass(frozen=True, slots=True)
class Started:
    """The worker has imported the function and read its argument: the clock of the job starts.

    resident  bytes that the worker holds now
    """

    resident: int


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of a job: the pickled result, or a reason and its detail."""

    payload: bytes
    reason: Reason | None
    detail: str
    resident: int


@dataclass(frozen=True, slots=True)
class Died:
    """What the watcher of a worker saw: exit code, negative for a signal, and the most bytes that were resident."""

    code: int
    peak: int


Message = Setup | Job | Started | Finished | Died


def send(stream: IO[bytes], message: Message) -> None:
    """Write one message. Raises OSError where the other end is gone."""
    data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    stream.write(_LENGTH.pack(len(data)))
    stream.write(data)
    stream.flush()


def receive(stream: IO[bytes]) -> Message | None:
    """Read one message; None where the other end is gone."""
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    data = stream.read(length)
    if len(data) < length:
        return None
    message: Message = pickle.loads(data)
    return message


def dotted(function: Callable[..., object] | str) -> str:
    """The name under which another process can import the function."""
    if isinstance(function, str):
        return function
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    if module is None or module == "__main__" or "." in name or "<" in name:
        raise MeasureError(
            "a worker cannot import this function",
            where=f"{module}:{name or function!r}",
            why="workers import their jobs by name, and do not run the main script again",
            todo="Move it to the top level of a module that can be imported",
        )
    return f"{module}:{name}"


def resolve(name: str) -> Callable[..., object]:
    """The function of a dotted name "package.module:name"."""
    module, _, attribute = name.partition(":")
    function: Callable[..., object] = getattr(importlib.import_module(module), attribute)
    return function
