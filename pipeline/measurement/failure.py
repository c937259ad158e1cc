"""The reason why a candidate has no measured time, as a value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Reason = Literal["crash", "timeout", "memory", "error", "wrong", "build"]


@dataclass(frozen=True, slots=True)
class Failure:
    """What became of a job or a candidate instead of a result.

    reason   crash: the process died, `detail` names the signal · timeout: it ran past its limit · memory: it asked for
             more than it may have · error: it raised, `detail` is the traceback · wrong: its values are not the
             reference's, or it wrote outside its buffers · build: it could not be lowered or compiled
    """

    reason: Reason
    detail: str
