"""Matrix product: A (n, k) times B (k, m)."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.frontend.workloads.cases import choose
from pipeline.frontend.workloads.weights import Weights
from pipeline.ir.graph import DType, Graph
from pipeline.ir.graph_builder import GraphBuilder

COLUMNS = ("n", "m", "k")
CASES = (
    (128, 128, 128),
    (512, 32, 512),
    (512, 512, 512),
    (1024, 1024, 1024),
)


@dataclass(frozen=True, slots=True)
class Gmm:
    """n, m, k instead of the case's; `constant_weights` makes B known ahead of time."""

    name: str = "gmm"
    case: int = 0
    n: int | None = None
    m: int | None = None
    k: int | None = None
    constant_weights: bool = False
    dtype: DType = "float32"

    def sizes(self) -> dict[str, int]:
        return choose(self, COLUMNS, CASES)

    def build(self, seed: int) -> Graph:
        z = self.sizes()
        b = GraphBuilder()
        a = b.input("a", (z["n"], z["k"]), self.dtype)
        weights = Weights(b, seed, constant=self.constant_weights, dtype=self.dtype)
        c = b.matmul(a, weights.fan_in("b", (z["k"], z["m"]), z["k"]))
        return b.finish([("c", c)])

    def describe(self) -> str:
        z = self.sizes()
        return f"{self.name}: {z['n']} x {z['m']} x {z['k']}, {self.dtype}"
