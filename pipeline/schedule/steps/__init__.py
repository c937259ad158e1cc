"""The steps of a schedule: pure functions from program to program, one file each."""

from __future__ import annotations

from pipeline.schedule.steps.annotate import Annotate
from pipeline.schedule.steps.bind import Bind
from pipeline.schedule.steps.blockize import Blockize
from pipeline.schedule.steps.cache_read import CacheRead
from pipeline.schedule.steps.cache_write import CacheWrite
from pipeline.schedule.steps.compute_at import ComputeAt
from pipeline.schedule.steps.decompose_reduction import DecomposeReduction
from pipeline.schedule.steps.flatten import Flatten
from pipeline.schedule.steps.frame import Frame
from pipeline.schedule.steps.fuse import Fuse
from pipeline.schedule.steps.inline import Inline
from pipeline.schedule.steps.pack import Pack
from pipeline.schedule.steps.pad import Pad
from pipeline.schedule.steps.parallel import Parallel
from pipeline.schedule.steps.privatize import Privatize
from pipeline.schedule.steps.reindex import Reindex
from pipeline.schedule.steps.reorder import Reorder
from pipeline.schedule.steps.reverse_compute_at import ReverseComputeAt
from pipeline.schedule.steps.reverse_inline import ReverseInline
from pipeline.schedule.steps.rfactor import Rfactor
from pipeline.schedule.steps.set_scope import SetScope
from pipeline.schedule.steps.software_pipeline import SoftwarePipeline
from pipeline.schedule.steps.split import Split
from pipeline.schedule.steps.storage_align import StorageAlign
from pipeline.schedule.steps.swizzle import Swizzle
from pipeline.schedule.steps.tensorize import Tensorize
from pipeline.schedule.steps.transform_layout import TransformLayout
from pipeline.schedule.steps.unroll import Unroll
from pipeline.schedule.steps.vectorize import Vectorize

Step = (
    Annotate
    | Bind
    | Blockize
    | CacheRead
    | CacheWrite
    | ComputeAt
    | DecomposeReduction
    | Flatten
    | Frame
    | Fuse
    | Inline
    | Pack
    | Pad
    | Parallel
    | Privatize
    | Reindex
    | Reorder
    | ReverseComputeAt
    | ReverseInline
    | Rfactor
    | SetScope
    | SoftwarePipeline
    | Split
    | StorageAlign
    | Swizzle
    | Tensorize
    | TransformLayout
    | Unroll
    | Vectorize
)

STEPS: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        Annotate,
        Bind,
        Blockize,
        CacheRead,
        CacheWrite,
        ComputeAt,
        DecomposeReduction,
        Flatten,
        Frame,
        Fuse,
        Inline,
        Pack,
        Pad,
        Parallel,
        Privatize,
        Reindex,
        Reorder,
        ReverseComputeAt,
        ReverseInline,
        Rfactor,
        SetScope,
        SoftwarePipeline,
        Split,
        StorageAlign,
        Swizzle,
        Tensorize,
        TransformLayout,
        Unroll,
        Vectorize,
    )
}

__all__ = [
    "STEPS",
    "Annotate",
    "Bind",
    "Blockize",
    "CacheRead",
    "CacheWrite",
    "ComputeAt",
    "DecomposeReduction",
    "Flatten",
    "Frame",
    "Fuse",
    "Inline",
    "Pack",
    "Pad",
    "Parallel",
    "Privatize",
    "Reindex",
    "Reorder",
    "ReverseComputeAt",
    "ReverseInline",
    "Rfactor",
    "SetScope",
    "SoftwarePipeline",
    "Split",
    "Step",
    "StorageAlign",
    "Swizzle",
    "Tensorize",
    "TransformLayout",
    "Unroll",
    "Vectorize",
]
