"""Attention over normalised queries and keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pipeline.frontend.workloads.gqa import Gqa
from pipeline.frontend.workloads.head_attention import HeadAttention
from pipeline.frontend.workloads.root_mean_square import refuse_negative, rms_norm
from pipeline.ir.graph_builder import GraphBuilder


@dataclass(frozen=True, slots=True)
class Qknorm(HeadAttention):
    """gqa, with Q and K divided by their root mean square along the head dimension, as in Chameleon-7B.

    eps  added to the mean square; the suite has none
    """

    CASES: ClassVar[tuple[tuple[int, ...], ...]] = Gqa.CASES

    name: str = "qknorm"
    eps: float = 0.0

    def prepared(self, b: GraphBuilder, x: int, axis: int) -> int:
        refuse_negative(self.name, eps=self.eps)
        return rms_norm(b, x, axis, eps=self.eps)
