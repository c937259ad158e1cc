"""One block of a Llama (Touvron et al., 2023) with random weights, with or without a cache of keys and values."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pipeline.errors import UserError
from pipeline.frontend.workloads.attention import mask_future
from pipeline.frontend.workloads.cases import require_positive
from pipeline.frontend.workloads.gated_mlp import gated
from pipeline.frontend.workloads.root_mean_square import refuse_negative, rms_norm
from pipeline.frontend.workloads.rotary import Rotary
from pipeline.frontend.workloads.weights import Weights
from pipeline.ir.graph import DType, Graph
from pipeline.ir.graph_builder import GraphBuilder


@dataclass(frozen=True, slots=True)
class LlamaBlock:
    """A layer of Llama-3.2-1B by default; input x (batch, sequence, hidden), output y of the same shape.

    heads     of queries; each `heads / kv_heads` of them share one head of keys and values
    dim       of a head
    inner     size between the products of the gated multi-layer perceptron
    past      tokens before these; then there are the inputs past_key and past_value (batch, past, kv_heads, dim)
    cache     also give present_key and present_value, which are the past of the next tokens
    theta     base of the rotary embedding
    """

    name: str = "llama_block"
    hidden: int = 2048
    heads: int = 32
    kv_heads: int = 8
    dim: int = 64
    inner: int = 8192
    batch: int = 1
    sequence: int = 128
    past: int = 0
    cache: bool = False
    theta: float = 500000.0
    eps: float = 1e-5
    dtype: DType = "float32"

    def build(self, seed: int) -> Graph:
        self._refuse()
        b = GraphBuilder()
        weights = Weights(b, seed, dtype=self.dtype)
        x = b.input("x", (self.batch, self.sequence, self.hidden), self.dtype)
        presents: list[tuple[str, int]] = []
        with b.scope("attention"):
            x = b.elementwise("add", x, self._attended(b, weights, self._normalized(b, weights, "norm1", x), presents))
        with b.scope("feed_forward"):
            inner = gated(b, weights, self._normalized(b, weights, "norm2", x), self.inner, "mlp.")
            down = weights.fan_in("mlp.weight3", (self.inner, self.hidden), self.inner)
            y = b.elementwise("add", x, b.matmul(inner, down))
        return b.finish([("y", y), *presents])

    def _normalized(self, b: GraphBuilder, weights: Weights, name: str, x: int) -> int:
        return rms_norm(b, x, gain=weights.normal(f"{name}.gain", (self.hidden,), 0.1, mean=1.0), eps=self.eps)

    def _attended(self, b: GraphBuilder, weights: Weights, x: int, presents: list[tuple[str, int]]) -> int:
        """Grouped-query attention with rotary embedding, and the product that leads back."""

        def projected(name: str, heads: int) -> int:
            w = weights.fan_in(f"attention.{name}", (self.hidden, heads * self.dim), self.hidden)
            return b.reshape(b.matmul(x, w), (self.batch, self.sequence, heads, self.dim))

        rotary = Rotary.at(b, self.past, self.sequence, self.dim, self.theta, self.dtype)
        q = rotary.turned(projected("query", self.heads))
        k = rotary.turned(projected("key", self.kv_heads))
        v = projected("value", self.kv_heads)
        if self.past:
            shape = (self.batch, self.past, self.kv_heads, self.dim)
            k = b.concat([b.input("past_key", shape, self.dtype), k], 1)
            v = b.concat([b.input("past_value", shape, self.dtype), v], 1)
        if self.cache:
            presents += [("present_key", k), ("present_value", v)]
        grouped = b.reshape(q, (self.batch, self.sequence, self.kv_heads, self.heads // self.kv_heads, self.dim))
        scores = b.einsum("bqhgd,bkhd->bhgqk", grouped, k)
        scores = mask_future(b, b.elementwise("mul", scores, b.scalar(1 / math.sqrt(self.dim), scores)))
        context = b.einsum("bhgqk,bkhd->bqhgd", b.softmax(scores), v)
        width = self.heads * self.dim
        back = weights.fan_in("attention.output", (width, self.hidden), width)
        return b.matmul(b.reshape(context, (self.batch, self.sequence, width)), back)

    def describe(self) -> str:
        before = f" after {self.past}" if self.past else ""
        return (f"{self.name}: hidden {self.hidden}, {self.heads} heads of {self.dim} on {self.kv_heads}, inner "
                f"{self.inner}, batch {self.batch}, sequence {self.sequence}{before}, {self.dtype}")  # fmt: skip

    def _refuse(self) -> None:
        require_positive(self.name, hidden=self.hidden, heads=self.heads, kv_heads=self.kv_heads, dim=self.dim,
                         inner=self.inner, batch=self.batch, sequence=self.sequence,
                         past_plus_one=self.past + 1)  # fmt: skip
        refuse_negative(self.name, eps=self.eps)
        where = f"workload {self.name}"
        if self.heads % self.kv_heads:
            raise UserError("the heads of queries do not share the heads of keys evenly", where=where,
                            why=f"heads {self.heads}, kv_heads {self.kv_heads}",
                            todo="Give a multiple of kv_heads")  # fmt: skip
        if self.dim % 2:
            raise UserError("the rotary embedding turns pairs", where=where, why=f"dim {self.dim} is odd",
                            todo="Give an even dim")  # fmt: skip
        if not 0 < self.theta < math.inf:
            raise UserError("the rotary embedding has a positive base", where=where, why=f"theta {self.theta}",
                            todo="Give a positive number")  # fmt: skip
