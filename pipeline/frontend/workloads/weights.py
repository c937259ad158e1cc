"""Random weights of a model: by name, so that a layer has the same weights whatever is around it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from pipeline.frontend.workloads.stream import stream
from pipeline.ir.graph import DType
from pipeline.ir.graph_builder import GraphBuilder
from pipeline.ir.graph_types import numpy_dtype


class Weights:
    """Adds constants, or run-time inputs, to a graph.

    seed      of all weights together
    constant  False makes each an input of the graph instead
    """

    def __init__(self, builder: GraphBuilder, seed: int, *, constant: bool = True, dtype: DType = "float32") -> None:
        self.builder, self.seed, self.is_constant, self.dtype = builder, seed, constant, dtype

    def normal(self, name: str, shape: Sequence[int], scale: float, mean: float = 0.0) -> int:
        """Normally distributed around `mean`."""
        if not self.is_constant:
            return self.builder.input(name, shape, self.dtype)
        return self.constant(name, mean + scale * self._draw(name, shape))

    def fan_in(self, name: str, shape: Sequence[int], inputs: int, gain: float = 1.0) -> int:
        """Scaled by the number of summands, so that a product keeps the variance (times `gain` squared)."""
        return self.normal(name, shape, gain / math.sqrt(max(1, inputs)))

    def batch_norm(self, name: str, channels: int, rank: int, gain: float = 1.0) -> tuple[int, int]:
        """Scale and shift of an inference-mode batch norm with random statistics, ready to broadcast over NC…

        scale = gamma / sqrt(variance + eps), shift = beta - mean * scale.
        """
        shape = (channels, *[1] * rank)
        if not self.is_constant:
            scale_input = self.builder.input(f"{name}.scale", shape, self.dtype)
            return scale_input, self.builder.input(f"{name}.shift", shape, self.dtype)
        gamma = gain * (1 + 0.1 * self._draw(f"{name}.gamma", shape))
        beta, mean = 0.1 * self._draw(f"{name}.beta", shape), 0.1 * self._draw(f"{name}.mean", shape)
        variance = np.exp(0.2 * self._draw(f"{name}.variance", shape))
        scale = gamma / np.sqrt(variance + 1e-5)
        return self.constant(f"{name}.scale", scale), self.constant(f"{name}.shift", beta - mean * scale)

    def constant(self, name: str, data: np.ndarray) -> int:
        return self.builder.constant(data.astype(numpy_dtype(self.dtype), copy=False), name)

    def _draw(self, name: str, shape: Sequence[int]) -> np.ndarray:
        return stream(self.seed, f"weights/{name}").standard_normal(tuple(shape), dtype=np.float32)
