"""Multi-query attention: one head of keys for all query heads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pipeline.frontend.workloads.head_attention import HeadAttention


@dataclass(frozen=True, slots=True)
class Mqa(HeadAttention):
    """1024 rows of queries for the one head of keys of a sequence."""

    CASES: ClassVar[tuple[tuple[int, ...], ...]] = ((1, 1024, 4096, 64),)

    name: str = "mqa"
