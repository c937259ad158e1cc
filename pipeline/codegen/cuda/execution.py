"""What an execution on the CPU gave: outputs, which elements were written, faults, and counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

FaultKind = Literal[
    "out of bounds", "misaligned", "race", "race between blocks", "unwritten", "copy in flight read",
    "copy in flight overwritten", "barrier", "warp", "shared size", "endless", "crash",
    "workspace",
]  # fmt: skip
Executor = Literal["source", "llvm", "interpreter"]


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that CUDA does not define, at one line of the source, as it was met first.

    kind     out of bounds · misaligned: the address of a vector is no multiple of its size · race: two threads of a
             block touched one element without a barrier between, one of them writing (`other` is the one before) ·
             race between blocks: the same in two blocks · unwritten: read before anything was written there · copy in
             flight read, overwritten: touched before the wait that covers the copy · barrier: not all threads reach the
             same one · warp: not all lanes reach the same collective operation · shared size: an array lies outside of
             what the launch asks for · endless: too many accesses · crash: the process died, or did not end ·
             workspace: blocks that stand for all of a launch wrote something else than the values given for it
    block    x, y, z
    element  of the buffer, counted from its start; -1 where it concerns none
    line     of the source, from 1, with its text; 0: unknown
    heading  the nearest comment above it, which names blocks of the program
    times    how often it was met at that line
    """

    kind: FaultKind
    launch: str
    block: tuple[int, int, int] = (0, 0, 0)
    thread: int = -1
    other: int = -1
    buffer: str = ""
    element: int = -1
    line: int = 0
    other_line: int = 0
    text: str = ""
    heading: str = ""
    times: int = 1

    def __str__(self) -> str:
        place = f"{self.buffer}[{self.element}]" if self.buffer else ""
        where = f"{self.launch}, block {self.block}, thread {self.thread}"
        parts = [f"{self.kind}: {place} in {where}" if place else f"{self.kind} in {where}"]
        if self.other >= 0:
            other = f"other thread {self.other}" if self.other != self.thread else "for all lanes of its warp"
            parts.append(other + (f" at line {self.other_line}" if self.other_line > 0 else ""))
        if self.line > 0:
            parts.append(f"line {self.line}{f' ({self.heading})' if self.heading else ''}: {self.text}")
        elif self.text:
            parts.append(self.text)
        if self.times > 1:
            parts.append(f"{self.times} times")
        return "; ".join(parts)


@dataclass(frozen=True, slots=True)
class Traffic:
    """Accesses of one kind.

    requests    instructions of a warp
    sectors     of 32 bytes that they touch in global memory
    bytes       that their lanes ask for together, with what several ask for counted once for each
    wavefronts  turns that shared memory takes for them; `ideal` is that number without bank conflicts
    """

    requests: int = 0
    sectors: int = 0
    bytes: int = 0
    wavefronts: int = 0
    ideal: int = 0

    @property
    def conflicts(self) -> int:
        return self.wavefronts - self.ideal

    @property
    def sector_use(self) -> float:
        """Part of the bytes of the sectors that the lanes ask for; above 1 where lanes share."""
        return self.bytes / (32 * self.sectors) if self.sectors else 1.0


@dataclass(frozen=True, slots=True)
class LaunchCounts:
    """What blocks of one launch did: `blocks` of them, where not all were counted.

    loads, stores  by buffer, global and shared
    instructions   of a warp, by kind: "ld.global", "st.shared", "ldmatrix", "cp.async", each collective by its name;
                   "math": calls of functions such as exp, in threads
    barriers       of a block
    lines          traffic by line of the source
    """

    symbol: str
    blocks: int
    loads: Mapping[str, Traffic] = field(default_factory=dict)
    stores: Mapping[str, Traffic] = field(default_factory=dict)
    instructions: Mapping[str, int] = field(default_factory=dict)
    barriers: int = 0
    lines: Mapping[int, Traffic] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Execution:
    """One run of all launches of a kernel.

    outputs   arrays of the arguments of role output; what was not written holds NaN, or for integers a pattern
    written   for each of them, which elements were
    others    the same arrays for workspaces and packed arguments
    counts    one for each launch, prologue first; empty where nothing was counted
    by        what was executed: the emitted source, or the same program through the CPU code generator or interpreter
    whole     all blocks of all launches ran
    """

    outputs: Mapping[str, np.ndarray]
    written: Mapping[str, np.ndarray]
    faults: tuple[Fault, ...] = ()
    counts: tuple[LaunchCounts, ...] = ()
    others: Mapping[str, np.ndarray] = field(default_factory=dict)
    by: Executor = "source"
    whole: bool = True
    seconds: float = 0.0
