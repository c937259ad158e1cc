"""Softmax along the rows of a matrix."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.frontend.workloads.cases import choose
from pipeline.ir.graph import DType, Graph
from pipeline.ir.graph_builder import GraphBuilder

COLUMNS = ("m", "n")
CASES = (
    (256, 256),
    (512, 512),
    (1024, 1024),
    (2048, 2048),
)


@dataclass(frozen=True, slots=True)
class Sfm:
    """A size that is given takes the place of the case's."""

    name: str = "sfm"
    case: int = 0
    m: int | None = None
    n: int | None = None
    dtype: DType = "float32"

    def sizes(self) -> dict[str, int]:
        return choose(self, COLUMNS, CASES)

    def build(self, seed: int) -> Graph:
        z = self.sizes()
        b = GraphBuilder()
        x = b.input("x", (z["m"], z["n"]), self.dtype)
        return b.finish([("y", b.softmax(x, -1))])

    def describe(self) -> str:
        z = self.sizes()
        return f"{self.name}: {z['m']} x {z['n']}, {self.dtype}"
