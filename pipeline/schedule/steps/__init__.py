"""The steps of a schedule: pure functions from program to program, one file each."""

from __future__ import annotations

from pipeline.schedule.steps.cache_write import CacheWrite
from pipeline.schedule.steps.decompose_reduction import DecomposeReduction
from pipeline.schedule.steps.fuse import Fuse
from pipeline.schedule.steps.parallel import Parallel
from pipeline.schedule.steps.reorder import Reorder
from pipeline.schedule.steps.split import Split
from pipeline.schedule.steps.unroll import Unroll
from pipeline.schedule.steps.vectorize import Vectorize

Step = (
    CacheWrite
    | DecomposeReduction
    | Fuse
    | Parallel
    | Reorder
    | Split
    | Unroll
    | Vectorize
)

STEPS: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        CacheWrite,
        DecomposeReduction,
        Fuse,
        Parallel,
        Reorder,
        Split,
        Unroll,
        Vectorize,
    )
}

__all__ = [
    "STEPS",
    "CacheWrite",
    "DecomposeReduction",
    "Fuse",
    "Parallel",
    "Reorder",
    "Split",
    "Step",
    "Unroll",
    "Vectorize",
]
