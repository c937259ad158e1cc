"""Sizes that break tiling: primes, single rows, a product with itself, a half-precision convolution with K = 147."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.errors import UserError
from pipeline.frontend.workloads.c2d import C2d
from pipeline.frontend.workloads.gmm import Gmm
from pipeline.frontend.workloads.gram import Gram
from pipeline.frontend.workloads.workload import Workload
from pipeline.ir.graph import Graph

CASES: tuple[Workload, ...] = (
    Gmm("odd", n=197, m=197, k=64),
    Gmm("odd", n=1021, m=1021, k=1021),
    Gmm("odd", n=2043, m=2043, k=2043),
    Gmm("odd", n=1, m=1000, k=512),
    Gmm("odd", n=4, m=768, k=2048),
    Gram("odd", n=256, k=256),
    C2d("odd", h=224, w=224, ci=3, co=64, k=7, s=2, p=3, dtype="float16"),
)


@dataclass(frozen=True, slots=True)
class Odd:
    """The cases are of several families, so their sizes cannot be changed here: use gmm, gram and c2d for that."""

    name: str = "odd"
    case: int = 0

    def chosen(self) -> Workload:
        if not 0 <= self.case < len(CASES):
            options = " · ".join(f"{i}: {workload.describe()}" for i, workload in enumerate(CASES))
            raise UserError(
                f"there is no case {self.case}", where="workload.case of odd", todo=f"The cases are {options}"
            )
        return CASES[self.case]

    def build(self, seed: int) -> Graph:
        return self.chosen().build(seed)

    def describe(self) -> str:
        return self.chosen().describe()
