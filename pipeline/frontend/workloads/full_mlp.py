"""A whole gated multi-layer perceptron: the gated half and the product that leads back."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.frontend.workloads.cases import choose
from pipeline.frontend.workloads.gated_mlp import gated
from pipeline.frontend.workloads.weights import Weights
from pipeline.ir.graph import DType, Graph
from pipeline.ir.graph_builder import GraphBuilder

COLUMNS = ("rows", "hidden", "inner")
CASES = ((8, 4096, 4096),)


@dataclass(frozen=True, slots=True)
class FullMlp:
    """(silu(X W1) * (X W2)) W3 with X (rows, hidden), W1 and W2 (hidden, inner) and W3 (inner, hidden).

    A size that is given takes the place of the case's.
    """

    name: str = "full_mlp"
    case: int = 0
    rows: int | None = None
    hidden: int | None = None
    inner: int | None = None
    constant_weights: bool = True
    dtype: DType = "float32"

    def sizes(self) -> dict[str, int]:
        return choose(self, COLUMNS, CASES)

    def build(self, seed: int) -> Graph:
        z = self.sizes()
        b = GraphBuilder()
        x = b.input("x", (z["rows"], z["hidden"]), self.dtype)
        weights = Weights(b, seed, constant=self.constant_weights, dtype=self.dtype)
        inner = gated(b, weights, x, z["inner"])
        down = weights.fan_in("weight3", (z["inner"], z["hidden"]), z["inner"])
        return b.finish([("y", b.matmul(inner, down))])

    def describe(self) -> str:
        z = self.sizes()
        return f"{self.name}: {z['rows']} rows, {z['hidden']} to {z['inner']} and back, {self.dtype}"
