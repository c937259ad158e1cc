"""Where a process keeps what it compiled for this host; gone when the process is, however that came."""

from __future__ import annotations

import functools
import importlib
import shutil
import sys
import tempfile
from pathlib import Path
from typing import IO, Any

PREFIX = "muschedule-host-"
LOCK = "lock"
_kept: list[tuple[tempfile.TemporaryDirectory[str], IO[str]]] = []


@functools.cache
def scratch_folder() -> Path:
    """This process' own; those that processes left behind when they were killed are removed on the way."""
    sweep()
    made = tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True)
    folder = Path(made.name)
    held = open(folder / f"{LOCK}.new", "w", encoding="utf-8")  # noqa: SIM115 - as long as we live
    _lock(held)
    (folder / f"{LOCK}.new").rename(folder / LOCK)  # nobody sees it before it is locked
    _kept.append((made, held))
    return folder


def sweep() -> None:
    """Removes the folders whose processes are gone: a lock goes with its process."""
    for lock in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{LOCK}"):
        try:
            with open(lock, "r+", encoding="utf-8") as stream:
                abandoned = _lock(stream)
        except OSError:
            continue  # of another user, or gone already
        if abandoned:
            shutil.rmtree(lock.parent, ignore_errors=True)


def _lock(stream: IO[str]) -> bool:
    """Whether the lock is ours now."""
    if sys.platform == "win32":
        return False
    fcntl: Any = importlib.import_module("fcntl")
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
