"""Gram matrix: X times its transpose, one operand read in two ways."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.frontend.workloads.cases import require_positive
from pipeline.ir.graph import DType, Graph
from pipeline.ir.graph_builder import GraphBuilder


@dataclass(frozen=True, slots=True)
class Gram:
    """X (n, k) to (n, n)."""

    name: str = "gram"
    n: int = 256
    k: int = 256
    dtype: DType = "float32"

    def build(self, seed: int) -> Graph:
        require_positive(self.name, n=self.n, k=self.k)
        b = GraphBuilder()
        x = b.input("x", (self.n, self.k), self.dtype)
        return b.finish([("y", b.einsum("ik,jk->ij", x, x))])

    def describe(self) -> str:
        return f"{self.name}: Gram matrix of {self.n} x {self.k}, {self.dtype}"
