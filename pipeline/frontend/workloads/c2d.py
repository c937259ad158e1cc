"""Convolution in two dimensions."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.frontend.workloads.cases import choose
from pipeline.frontend.workloads.convolution import Convolution
from pipeline.ir.graph import DType, Graph

COLUMNS = ("h", "w", "ci", "co", "k", "s", "p")
CASES = (
    (224, 224, 3, 64, 7, 2, 3),
    (56, 56, 64, 64, 1, 1, 0),
    (14, 14, 256, 256, 3, 1, 1),
    (7, 7, 512, 512, 3, 1, 1),
)


@dataclass(frozen=True, slots=True)
class C2d:
    """A size that is given takes the place of the case's."""

    name: str = "c2d"
    case: int = 0
    h: int | None = None
    w: int | None = None
    ci: int | None = None
    co: int | None = None
    k: int | None = None
    s: int | None = None
    p: int | None = None
    batch: int = 1
    constant_weights: bool = True
    dtype: DType = "float32"

    def convolution(self) -> Convolution:
        z = choose(self, COLUMNS, CASES)
        return Convolution(
            self.name,
            self.batch,
            (z["h"], z["w"]),
            z["ci"],
            z["co"],
            z["k"],
            z["s"],
            z["p"],
            constant_weights=self.constant_weights,
            dtype=self.dtype,
        )

    def build(self, seed: int) -> Graph:
        return self.convolution().build(seed)

    def describe(self) -> str:
        return self.convolution().describe()
