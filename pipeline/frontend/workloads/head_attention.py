"""Attention of many heads with the keys stored transposed: what the attentions of the µGraph suite share.

The shapes are those of Mirage's evaluation (Wu et al., OSDI 2025).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from pipeline.errors import UserError
from pipeline.frontend.workloads.cases import choose
from pipeline.ir.graph import DType, Graph
from pipeline.ir.graph_builder import GraphBuilder

COLUMNS = ("heads", "queries", "keys", "dim")


@dataclass(frozen=True, slots=True)
class HeadAttention:
    """softmax(Q K * scale) V with Q (heads, queries, dim), K (heads, dim, keys) and V (heads, keys, dim).

    case   sizes of the suite; those that are given take the place of the case's
    heads  of keys, in all sequences of a batch together; the query heads that share one are rows of Q
    scale  null: none, as in the suite; models have 1 / sqrt(dim)
    A subclass has the cases: one row of `COLUMNS` each.
    """

    CASES: ClassVar[tuple[tuple[int, ...], ...]] = ()

    name: str
    case: int = 0
    heads: int | None = None
    queries: int | None = None
    keys: int | None = None
    dim: int | None = None
    scale: float | None = None
    dtype: DType = "float32"

    def sizes(self) -> dict[str, int]:
        return choose(self, COLUMNS, self.CASES)

    def build(self, seed: int) -> Graph:
        """There are no weights, so the seed changes nothing."""
        del seed
        z = self.sizes()
        if self.scale is not None and not 0 < abs(self.scale) < math.inf:
            raise UserError("the scores cannot be scaled so", where=f"workload.scale of {self.name}",
                            why=f"scale {self.scale}", todo="Give a number, or null for none")  # fmt: skip
        b = GraphBuilder()
        q = b.input("q", (z["heads"], z["queries"], z["dim"]), self.dtype)
        k = b.input("k", (z["heads"], z["dim"], z["keys"]), self.dtype)
        v = b.input("v", (z["heads"], z["keys"], z["dim"]), self.dtype)
        scores = b.matmul(self.prepared(b, q, -1), self.prepared(b, k, -2))
        if self.scale is not None:
            scores = b.elementwise("mul", scores, b.scalar(self.scale, scores))
        return b.finish([("y", b.matmul(b.softmax(scores), v))])

    def prepared(self, b: GraphBuilder, x: int, axis: int) -> int:
        """Queries or keys, whose head dimension is `axis`, as the product takes them."""
        del b, axis
        return x

    def describe(self) -> str:
        z = self.sizes()
        scale = "" if self.scale is None else f", scale {self.scale:.4g}"
        return (f"{self.name}: {z['heads']} heads of {z['dim']}, {z['queries']} queries, {z['keys']} keys{scale}, "
                f"{self.dtype}")  # fmt: skip
