"""Frobenius norm of each matrix in a batch."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.frontend.workloads.cases import choose, require_positive
from pipeline.ir.graph import DType, Graph
from pipeline.ir.graph_builder import GraphBuilder

COLUMNS = ("m", "n")
CASES = (
    (256, 256),
    (512, 512),
    (1024, 1024),
    (4096, 1024),
)


@dataclass(frozen=True, slots=True)
class Nrm:
    """A size that is given takes the place of the case's."""

    name: str = "nrm"
    case: int = 0
    m: int | None = None
    n: int | None = None
    batch: int = 1
    dtype: DType = "float32"

    def sizes(self) -> dict[str, int]:
        return choose(self, COLUMNS, CASES)

    def build(self, seed: int) -> Graph:
        z = self.sizes()
        require_positive(self.name, batch=self.batch)
        b = GraphBuilder()
        x = b.input("x", (self.batch, z["m"], z["n"]), self.dtype)
        y = b.elementwise("sqrt", b.reduce("sum", b.elementwise("mul", x, x), [1, 2]))
        return b.finish([("y", y)])

    def describe(self) -> str:
        z = self.sizes()
        return f"{self.name}: batch {self.batch}, {z['m']} x {z['n']}, {self.dtype}"
