"""Depthwise convolution."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.frontend.workloads.cases import choose
from pipeline.frontend.workloads.convolution import Convolution
from pipeline.ir.graph import DType, Graph

COLUMNS = ("h", "w", "c", "k", "s", "p")
CASES = (
    (112, 112, 32, 3, 1, 1),
    (112, 112, 64, 3, 2, 1),
    (14, 14, 512, 3, 2, 1),
    (7, 7, 1024, 3, 1, 1),
)


@dataclass(frozen=True, slots=True)
class Dep:
    """A size that is given takes the place of the case's."""

    name: str = "dep"
    case: int = 0
    h: int | None = None
    w: int | None = None
    c: int | None = None
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
            z["c"],
            z["c"],
            z["k"],
            z["s"],
            z["p"],
            groups=z["c"],
            constant_weights=self.constant_weights,
            dtype=self.dtype,
        )

    def build(self, seed: int) -> Graph:
        return self.convolution().build(seed)

    def describe(self) -> str:
        return self.convolution().describe()
