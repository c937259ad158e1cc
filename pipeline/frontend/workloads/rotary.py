"""Rotary position embedding (Su et al., 2021) in the half-and-half layout of Llama."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipeline.ir.graph import DType
from pipeline.ir.graph_builder import GraphBuilder
from pipeline.ir.graph_types import numpy_dtype


@dataclass(frozen=True, slots=True)
class Rotary:
    """Turns the pair (x[i], x[i + dim/2]) of every head by position * theta^(-2i/dim).

    cos, sin  values (positions, 1, dim)
    """

    builder: GraphBuilder
    cos: int
    sin: int

    @classmethod
    def at(cls, builder: GraphBuilder, first: int, count: int, dim: int, theta: float, dtype: DType) -> Rotary:
        """For the positions from `first` on; cosines and sines are constants of the graph."""
        slow = theta ** (-np.arange(0, dim, 2) / dim)
        angle = np.tile(np.arange(first, first + count)[:, None] * slow, 2)[:, None, :]
        cos, sin = (builder.constant(table.astype(numpy_dtype(dtype))) for table in (np.cos(angle), np.sin(angle)))
        return cls(builder, cos, sin)

    def turned(self, x: int) -> int:
        """x (batch, positions, heads, dim)."""
        b, half = self.builder, self.builder.shape(x)[-1] // 2
        low, high = b.slice(x, [0], [half], axes=[-1]), b.slice(x, [half], [None], axes=[-1])
        across = b.concat([b.elementwise("neg", high), low], -1)
        return b.elementwise("add", b.elementwise("mul", x, self.cos), b.elementwise("mul", across, self.sin))
