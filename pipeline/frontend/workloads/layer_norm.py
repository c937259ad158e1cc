"""Layer normalisation of the rows of a matrix."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.frontend.workloads.cases import require_positive
from pipeline.frontend.workloads.weights import Weights
from pipeline.ir.graph import DType, Graph
from pipeline.ir.graph_builder import GraphBuilder


@dataclass(frozen=True, slots=True)
class LayerNorm:
    """x (m, n), normalised along n, with gamma and beta."""

    name: str = "layer_norm"
    m: int = 128
    n: int = 768
    eps: float = 1e-5
    constant_weights: bool = True
    dtype: DType = "float32"

    def build(self, seed: int) -> Graph:
        require_positive(self.name, m=self.m, n=self.n)
        b = GraphBuilder()
        x = b.input("x", (self.m, self.n), self.dtype)
        weights = Weights(b, seed, constant=self.constant_weights, dtype=self.dtype)
        gamma = weights.normal("gamma", (self.n,), 0.1, mean=1.0)
        beta = weights.normal("beta", (self.n,), 0.1)
        return b.finish([("y", b.layer_norm(x, [-1], gamma, beta, self.eps))])

    def describe(self) -> str:
        return f"{self.name}: {self.m} x {self.n}, {self.dtype}"
