"""Grouped-query attention of one new token: eight query heads for each head of keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pipeline.frontend.workloads.head_attention import HeadAttention


@dataclass(frozen=True, slots=True)
class GqaDecode(HeadAttention):
    """As gqa, with the 8 query heads of one token as the rows of a head of keys."""

    CASES: ClassVar[tuple[tuple[int, ...], ...]] = ((2, 8, 4096, 64), (16, 8, 4096, 64))

    name: str = "gqa_decode"
