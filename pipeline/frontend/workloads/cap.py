"""Capsule convolution: every channel is a 4x4 matrix, every product a matrix product."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.errors import UserError
from pipeline.frontend.workloads.cases import choose, require_positive
from pipeline.frontend.workloads.weights import Weights
from pipeline.ir.graph import AffineDim, DType, Graph
from pipeline.ir.graph_builder import GraphBuilder
from pipeline.ir.graph_primitives import axis_map

COLUMNS = ("h", "w", "ci", "co", "k", "s", "p")
CASES = (
    (16, 16, 32, 32, 3, 2, 1),
    (8, 8, 32, 32, 3, 1, 1),
    (16, 16, 8, 16, 3, 2, 1),
    (8, 8, 16, 16, 3, 1, 1),
)


@dataclass(frozen=True, slots=True)
class Cap:
    """x (N, H, W, CI, 4, 4) with w (k, k, CI, CO, 4, 4)."""

    name: str = "cap"
    case: int = 0
    h: int | None = None
    w: int | None = None
    ci: int | None = None
    co: int | None = None
    k: int | None = None
    s: int | None = None
    p: int | None = None
    capsule: int = 4
    batch: int = 1
    constant_weights: bool = False
    dtype: DType = "float32"

    def sizes(self) -> dict[str, int]:
        return choose(self, COLUMNS, CASES)

    def build(self, seed: int) -> Graph:
        z = self.sizes()
        require_positive(self.name, batch=self.batch, capsule=self.capsule)
        b = GraphBuilder()
        side, k, s, p = self.capsule, z["k"], z["s"], z["p"]
        x = b.input("x", (self.batch, z["h"], z["w"], z["ci"], side, side), self.dtype)
        weights = Weights(b, seed, constant=self.constant_weights, dtype=self.dtype)
        w = weights.fan_in("w", (k, k, z["ci"], z["co"], side, side), k * k * z["ci"] * side)
        padded = b.pad(x, [0, p, p, 0, 0, 0], [0, p, p, 0, 0, 0])
        space = [(size - k) // s + 1 for size in b.shape(padded)[1:3]]
        if min(space) < 1 or k > min(b.shape(padded)[1:3]):
            raise UserError(
                "the window is larger than the padded input",
                where=f"workload {self.name}",
                why=f"window {k}, padded input {b.shape(padded)[1:3]}",
                todo="Give a smaller k",
            )
        # variables: n 0, h 1, w 2, co 3, row 4, column 5; kh 6, kw 7, ci 8, inner 9
        windows = tuple(AffineDim(((v, s), (v + 5, 1))) for v in (1, 2))
        lhs = (*axis_map(0), *windows, *axis_map(8, 4, 9))
        y = b.contract(padded, w, [self.batch, *space, z["co"], side, side], [k, k, z["ci"], side], lhs,
                       axis_map(6, 7, 8, 3, 9, 5))  # fmt: skip
        return b.finish([("y", y)])

    def describe(self) -> str:
        z = self.sizes()
        return (
            f"{self.name}: batch {self.batch}, {z['h']}x{z['w']}, {z['ci']} to {z['co']} capsules, "
            f"window {z['k']}, stride {z['s']}, padding {z['p']}, {self.dtype}"
        )
