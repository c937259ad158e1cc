"""The experts of a mixture, each with rows of its own: two products with an exponential between them."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.frontend.workloads.cases import choose
from pipeline.frontend.workloads.weights import Weights
from pipeline.ir.graph import DType, Graph
from pipeline.ir.graph_builder import GraphBuilder

COLUMNS = ("experts", "rows", "hidden", "inner")
CASES = ((8, 8, 4096, 4096),)


@dataclass(frozen=True, slots=True)
class Moe:
    """exp(X A) B with X (experts, rows, hidden), A (experts, hidden, inner) and B (experts, inner, hidden).

    A size that is given takes the place of the case's.
    constant_weights  of the suite's experts would be 1 GiB of constants, so they are inputs unless asked otherwise
    """

    name: str = "moe"
    case: int = 0
    experts: int | None = None
    rows: int | None = None
    hidden: int | None = None
    inner: int | None = None
    constant_weights: bool = False
    dtype: DType = "float32"

    def sizes(self) -> dict[str, int]:
        return choose(self, COLUMNS, CASES)

    def build(self, seed: int) -> Graph:
        z = self.sizes()
        b = GraphBuilder()
        x = b.input("x", (z["experts"], z["rows"], z["hidden"]), self.dtype)
        weights = Weights(b, seed, constant=self.constant_weights, dtype=self.dtype)
        first = weights.fan_in("weight_a", (z["experts"], z["hidden"], z["inner"]), z["hidden"])
        second = weights.fan_in("weight_b", (z["experts"], z["inner"], z["hidden"]), z["inner"])
        return b.finish([("y", b.matmul(b.elementwise("exp", b.matmul(x, first)), second))])

    def describe(self) -> str:
        z = self.sizes()
        return (f"{self.name}: {z['experts']} experts, {z['rows']} rows each, {z['hidden']} to {z['inner']} and back, "
                f"{self.dtype}")  # fmt: skip
