"""The memory that this process may use."""

from __future__ import annotations

import os
from pathlib import Path

# What a container may use: of version 2 and of version 1 of Linux's control groups.
LIMITS = ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes")


def main_memory(root: Path = Path("/")) -> int:
    """Bytes of main memory, or of the container's share where that is less.

    root   where the file system of the system begins
    """
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for name in LIMITS:
        try:
            found.append(int((root / name).read_text(encoding="ascii")))
        except (OSError, ValueError):  # not there, or "max"
            continue
    return min(one for one in found if one > 0)
