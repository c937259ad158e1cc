"""Transpose and batched matrix product: the scores of an attention."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.frontend.workloads.cases import choose, require_positive
from pipeline.frontend.workloads.weights import Weights
from pipeline.ir.graph import DType, Graph
from pipeline.ir.graph_builder import GraphBuilder

COLUMNS = ("seq", "head", "dim")
CASES = (
    (128, 12, 64),
    (128, 16, 64),
    (64, 12, 128),
    (128, 12, 128),
)


@dataclass(frozen=True, slots=True)
class Tbg:
    """query and key (batch, sequence, head, dim) to scores (batch, head, sequence, sequence)."""

    name: str = "tbg"
    case: int = 0
    seq: int | None = None
    head: int | None = None
    dim: int | None = None
    batch: int = 1
    constant_weights: bool = False
    dtype: DType = "float32"

    def sizes(self) -> dict[str, int]:
        return choose(self, COLUMNS, CASES)

    def build(self, seed: int) -> Graph:
        z = self.sizes()
        require_positive(self.name, batch=self.batch)
        b = GraphBuilder()
        shape = (self.batch, z["seq"], z["head"], z["dim"])
        query = b.input("query", shape, self.dtype)
        weights = Weights(b, seed, constant=self.constant_weights, dtype=self.dtype)
        key = weights.fan_in("key", shape, 1)
        scores = b.matmul(b.transpose(query, (0, 2, 1, 3)), b.transpose(key, (0, 2, 3, 1)))
        return b.finish([("scores", scores)])

    def describe(self) -> str:
        z = self.sizes()
        return f"{self.name}: batch {self.batch}, sequence {z['seq']}, {z['head']} heads of {z['dim']}, {self.dtype}"
