"""The steps of a schedule: pure functions from program to program, one file each."""

from __future__ import annotations

from pipeline.schedule.steps.cache_read import CacheRead
from pipeline.schedule.steps.cache_write import CacheWrite
from pipeline.schedule.steps.compute_at import ComputeAt
from pipeline.schedule.steps.decompose_reduction import DecomposeReduction
from pipeline.schedule.steps.fuse import Fuse
from pipeline.schedule.steps.inline import Inline
from pipeline.schedule.steps.pack import Pack
from pipeline.schedule.steps.parallel import Parallel
from pipeline.schedule.steps.reorder import Reorder
from pipeline.schedule.steps.reverse_inline import ReverseInline
from pipeline.schedule.steps.split import Split
from pipeline.schedule.steps.unroll import Unroll
from pipeline.schedule.steps.vectorize import Vectorize

Step = (
    CacheRead
    | CacheWrite
    | ComputeAt
    | DecomposeReduction
    | Fuse
    | Inline
    | Pack
    | Parallel
    | Reorder
    | ReverseInline
    | Split
    | Unroll
    | Vectorize
)

STEPS: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        CacheRead,
        CacheWrite,
        ComputeAt,
        DecomposeReduction,
        Fuse,
        Inline,
        Pack,
        Parallel,
        Reorder,
        ReverseInline,
        Split,
        Unroll,
        Vectorize,
    )
}

__all__ = [
    "STEPS",
    "CacheRead",
    "CacheWrite",
    "ComputeAt",
    "DecomposeReduction",
    "Fuse",
    "Inline",
    "Pack",
    "Parallel",
    "Reorder",
    "ReverseInline",
    "Split",
    "Step",
    "Unroll",
    "Vectorize",
]
