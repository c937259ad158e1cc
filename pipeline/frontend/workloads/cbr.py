"""Convolution with bias, batch norm and ReLU."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.frontend.workloads.cases import choose
from pipeline.frontend.workloads.convolution import Convolution
from pipeline.ir.graph import DType, Graph

COLUMNS = ("h", "w", "ci", "co", "k", "s", "p")
CASES = (
    (224, 224, 3, 64, 7, 2, 3),
    (56, 56, 64, 128, 3, 2, 1),
    (28, 28, 128, 256, 1, 2, 0),
    (7, 7, 512, 512, 3, 1, 1),
)


@dataclass(frozen=True, slots=True)
class Cbr:
    """A size that is given takes the place of the case's."""

    name: str = "cbr"
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
            batch_norm_relu=True,
            constant_weights=self.constant_weights,
            dtype=self.dtype,
        )

    def build(self, seed: int) -> Graph:
        return self.convolution().build(seed)

    def describe(self) -> str:
        return self.convolution().describe()
