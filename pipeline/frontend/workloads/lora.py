"""Low-rank adaptation (Hu et al., 2022): a matrix product and its correction of low rank."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.frontend.workloads.cases import choose
from pipeline.frontend.workloads.weights import Weights
from pipeline.ir.graph import DType, Graph
from pipeline.ir.graph_builder import GraphBuilder

COLUMNS = ("rows", "hidden", "outputs", "rank")
CASES = ((16, 256, 4096, 16),)


@dataclass(frozen=True, slots=True)
class Lora:
    """X W + (X A) B with X (rows, hidden), W (hidden, outputs), A (hidden, rank) and B (rank, outputs).

    A size that is given takes the place of the case's.
    """

    name: str = "lora"
    case: int = 0
    rows: int | None = None
    hidden: int | None = None
    outputs: int | None = None
    rank: int | None = None
    constant_weights: bool = True
    dtype: DType = "float32"

    def sizes(self) -> dict[str, int]:
        return choose(self, COLUMNS, CASES)

    def build(self, seed: int) -> Graph:
        z = self.sizes()
        b = GraphBuilder()
        x = b.input("x", (z["rows"], z["hidden"]), self.dtype)
        weights = Weights(b, seed, constant=self.constant_weights, dtype=self.dtype)
        w = weights.fan_in("weight", (z["hidden"], z["outputs"]), z["hidden"])
        down = weights.fan_in("weight_a", (z["hidden"], z["rank"]), z["hidden"])
        up = weights.fan_in("weight_b", (z["rank"], z["outputs"]), z["rank"])
        return b.finish([("y", b.elementwise("add", b.matmul(x, w), b.matmul(b.matmul(x, down), up)))])

    def describe(self) -> str:
        z = self.sizes()
        return (f"{self.name}: {z['rows']} rows, {z['hidden']} to {z['outputs']}, rank {z['rank']}, "
                f"{self.dtype}")  # fmt: skip
