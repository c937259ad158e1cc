"""The normalised residual step of nGPT (Loshchilov et al., 2024)."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.frontend.workloads.cases import choose
from pipeline.frontend.workloads.root_mean_square import refuse_negative, rms_norm
from pipeline.ir.graph import DType, Graph
from pipeline.ir.graph_builder import GraphBuilder

COLUMNS = ("rows", "hidden")
CASES = (
    (8, 4096),
    (64, 4096),
)


@dataclass(frozen=True, slots=True)
class Ntrans:
    """rms(X + alpha * (rms(H) - X)) with H, X and alpha (rows, hidden); rms divides by the root mean square of a row.

    A size that is given takes the place of the case's. eps is added to the mean squares; the suite has none.
    """

    name: str = "ntrans"
    case: int = 0
    rows: int | None = None
    hidden: int | None = None
    eps: float = 0.0
    dtype: DType = "float32"

    def sizes(self) -> dict[str, int]:
        return choose(self, COLUMNS, CASES)

    def build(self, seed: int) -> Graph:
        """There are no weights, so the seed changes nothing."""
        del seed
        z = self.sizes()
        refuse_negative(self.name, eps=self.eps)
        b = GraphBuilder()
        h, x, alpha = (b.input(name, (z["rows"], z["hidden"]), self.dtype) for name in ("h", "x", "alpha"))
        step = b.elementwise("mul", alpha, b.elementwise("sub", rms_norm(b, h, eps=self.eps), x))
        return b.finish([("y", rms_norm(b, b.elementwise("add", x, step), eps=self.eps))])

    def describe(self) -> str:
        z = self.sizes()
        return f"{self.name}: {z['rows']} x {z['hidden']}, {self.dtype}"
