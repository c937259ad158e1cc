"""Multi-head attention of a few tokens: every query head has keys of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pipeline.frontend.workloads.head_attention import HeadAttention


@dataclass(frozen=True, slots=True)
class Mha(HeadAttention):
    """32 heads a sequence, 16 tokens."""

    CASES: ClassVar[tuple[tuple[int, ...], ...]] = ((32, 16, 4096, 64), (256, 16, 4096, 64))

    name: str = "mha"
