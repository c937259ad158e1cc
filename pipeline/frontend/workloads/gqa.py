"""Grouped-query attention: many rows of queries for each head of keys, which are stored transposed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pipeline.frontend.workloads.head_attention import HeadAttention


@dataclass(frozen=True, slots=True)
class Gqa(HeadAttention):
    """Of LLaMA-3-70B on four devices: two heads of keys a sequence, for 256 rows of queries each."""

    CASES: ClassVar[tuple[tuple[int, ...], ...]] = ((2, 256, 4096, 64), (16, 256, 4096, 64))

    name: str = "gqa"
