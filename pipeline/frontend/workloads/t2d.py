"""Transposed convolution in two dimensions."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.frontend.workloads.cases import choose
from pipeline.frontend.workloads.convolution import Convolution
from pipeline.ir.graph import DType, Graph

COLUMNS = ("h", "w", "ci", "co", "k", "s", "p")
CASES = (
    (4, 4, 512, 256, 4, 2, 1),
    (8, 8, 256, 128, 4, 2, 1),
    (16, 16, 128, 64, 4, 2, 1),
    (32, 32, 64, 3, 4, 2, 1),
)


@dataclass(frozen=True, slots=True)
class T2d:
    """A size that is given takes the place of the case's."""

    name: str = "t2d"
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
            transposed=True,
            constant_weights=self.constant_weights,
            dtype=self.dtype,
        )

    def build(self, seed: int) -> Graph:
        return self.convolution().build(seed)

    def describe(self) -> str:
        return self.convolution().describe()
