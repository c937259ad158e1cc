"""The command: python -m pipeline workload=bert."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType


def _leave(number: int, frame: FrameType | None) -> None:
    os.write(2, b"interrupted before there was anything to keep\n")
    os._exit(130)


# Importing takes a second, and an exception in it would show as a traceback, or as some library's own error.
_heeded = signal.getsignal(signal.SIGINT) is signal.default_int_handler
if _heeded:
    signal.signal(signal.SIGINT, _leave)

from pipeline.cli import main  # noqa: E402 - an interrupt may come meanwhile

if _heeded:
    signal.signal(signal.SIGINT, signal.default_int_handler)

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
