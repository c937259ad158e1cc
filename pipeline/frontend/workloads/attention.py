"""Scaled dot-product attention: softmax(Q K^T / sqrt(dim)) V."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from pipeline.errors import UserError
from pipeline.frontend.workloads.cases import require_positive
from pipeline.ir.graph import DType, Graph
from pipeline.ir.graph_builder import GraphBuilder

MASKED = -10000.0  # added to a score that is not to count; exp of it is 0 in float32


@dataclass(frozen=True, slots=True)
class Attention:
    """Q (batch, heads, queries, dim); K and V (batch, heads, keys, dim).

    keys    null: as many as queries
    causal  query i sees the keys up to i + keys - queries
    """

    name: str = "attention"
    batch: int = 1
    heads: int = 12
    queries: int = 128
    keys: int | None = None
    dim: int = 64
    causal: bool = False
    dtype: DType = "float32"

    def build(self, seed: int) -> Graph:
        keys = self.queries if self.keys is None else self.keys
        require_positive(self.name, batch=self.batch, heads=self.heads, queries=self.queries, keys=keys, dim=self.dim)
        if self.causal and keys < self.queries:
            raise UserError("a query sees no key", where=f"workload {self.name}",
                            why=f"{self.queries} queries and {keys} keys with causal=true",
                            todo="Give at least as many keys as queries")  # fmt: skip
        b = GraphBuilder()
        q = b.input("q", (self.batch, self.heads, self.queries, self.dim), self.dtype)
        k = b.input("k", (self.batch, self.heads, keys, self.dim), self.dtype)
        v = b.input("v", (self.batch, self.heads, keys, self.dim), self.dtype)
        scores = b.einsum("bhqd,bhkd->bhqk", q, k)
        scores = b.elementwise("mul", scores, b.scalar(1 / math.sqrt(self.dim), scores))
        if self.causal:
            scores = mask_future(b, scores)
        return b.finish([("y", b.einsum("bhqk,bhkd->bhqd", b.softmax(scores), v))])

    def describe(self) -> str:
        keys = self.queries if self.keys is None else self.keys
        order = ", causal" if self.causal else ""
        return (f"{self.name}: batch {self.batch}, {self.heads} heads of {self.dim}, {self.queries} queries, "
                f"{keys} keys{order}, {self.dtype}")  # fmt: skip


def mask_future(b: GraphBuilder, scores: int) -> int:
    """Scores (…, queries, keys) with those of later keys at `MASKED`."""
    queries, keys = b.shape(scores)[-2:]
    visible = np.tril(np.ones((queries, keys), np.bool_), keys - queries)
    return scores if visible.all() else b.elementwise("where", b.constant(visible), scores, b.scalar(MASKED, scores))
