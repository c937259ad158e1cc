"""Root mean square normalisation, then a matrix product: the start of every block of a Llama."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.frontend.workloads.cases import choose
from pipeline.frontend.workloads.root_mean_square import refuse_negative, rms_norm
from pipeline.frontend.workloads.weights import Weights
from pipeline.ir.graph import DType, Graph
from pipeline.ir.graph_builder import GraphBuilder

COLUMNS = ("rows", "hidden", "outputs")
CASES = (
    (2, 4096, 6144),
    (16, 4096, 6144),
)


@dataclass(frozen=True, slots=True)
class RmsnormLinear:
    """rms_norm(X) W with X (rows, hidden) and W (hidden, outputs); there is no gain, a deployed model has it in W.

    A size that is given takes the place of the case's. eps is added to the mean square; the suite has none.
    """

    name: str = "rmsnorm_linear"
    case: int = 0
    rows: int | None = None
    hidden: int | None = None
    outputs: int | None = None
    eps: float = 0.0
    constant_weights: bool = True
    dtype: DType = "float32"

    def sizes(self) -> dict[str, int]:
        return choose(self, COLUMNS, CASES)

    def build(self, seed: int) -> Graph:
        z = self.sizes()
        refuse_negative(self.name, eps=self.eps)
        b = GraphBuilder()
        x = b.input("x", (z["rows"], z["hidden"]), self.dtype)
        weights = Weights(b, seed, constant=self.constant_weights, dtype=self.dtype)
        w = weights.fan_in("weight", (z["hidden"], z["outputs"]), z["hidden"])
        return b.finish([("y", b.matmul(rms_norm(b, x, eps=self.eps), w))])

    def describe(self) -> str:
        z = self.sizes()
        return f"{self.name}: {z['rows']} rows, {z['hidden']} to {z['outputs']}, {self.dtype}"
