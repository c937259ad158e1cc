"""The gated half of a multi-layer perceptron (Shazeer, 2020): two products of one input, one of them a gate."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.frontend.workloads.cases import choose
from pipeline.frontend.workloads.weights import Weights
from pipeline.ir.graph import DType, Graph
from pipeline.ir.graph_builder import GraphBuilder

COLUMNS = ("rows", "hidden", "inner")
CASES = (
    (1, 4096, 4096),
    (8, 4096, 4096),
)


@dataclass(frozen=True, slots=True)
class GatedMlp:
    """silu(X W1) * (X W2) with X (rows, hidden), W1 and W2 (hidden, inner).

    A size that is given takes the place of the case's.
    """

    name: str = "gated_mlp"
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
        return b.finish([("y", gated(b, weights, x, z["inner"]))])

    def describe(self) -> str:
        z = self.sizes()
        return f"{self.name}: {z['rows']} rows, {z['hidden']} to {z['inner']}, {self.dtype}"


def gated(b: GraphBuilder, weights: Weights, x: int, inner: int, prefix: str = "") -> int:
    """silu(x W1) * (x W2), the weights named after the prefix."""
    hidden = b.shape(x)[-1]
    gate, up = (weights.fan_in(f"{prefix}weight{i}", (hidden, inner), hidden) for i in (1, 2))
    return b.elementwise("mul", b.silu(b.matmul(x, gate)), b.matmul(x, up))
