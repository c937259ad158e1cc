"""The layers that BERT and GPT-2 are made of: dense, layer norm, multi-head attention."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from pipeline.errors import UserError
from pipeline.frontend.workloads.cases import require_positive
from pipeline.frontend.workloads.weights import Weights
from pipeline.ir.graph_builder import GraphBuilder

INITIAL = 0.02  # standard deviation of weights, as both models are initialised


@dataclass(frozen=True, slots=True)
class Transformer:
    """Adds layers to a graph; activations are (batch, sequence, hidden)."""

    builder: GraphBuilder
    weights: Weights
    heads: int
    eps: float

    def dense(self, name: str, x: int, outputs: int, scale: float = INITIAL) -> int:
        """x W + b, with W (inputs, outputs)."""
        inputs = self.builder.shape(x)[-1]
        product = self.builder.matmul(x, self.weights.normal(f"{name}.weight", (inputs, outputs), scale))
        return self.builder.elementwise("add", product, self.weights.normal(f"{name}.bias", (outputs,), INITIAL))

    def norm(self, name: str, x: int) -> int:
        size = self.builder.shape(x)[-1]
        gamma = self.weights.normal(f"{name}.gamma", (size,), 0.1, mean=1.0)
        return self.builder.layer_norm(x, [-1], gamma, self.weights.normal(f"{name}.beta", (size,), INITIAL), self.eps)

    def split_heads(self, x: int) -> int:
        """(batch, sequence, hidden) to (batch, sequence, heads, dim)."""
        batch, sequence, hidden = self.builder.shape(x)
        return self.builder.reshape(x, (batch, sequence, self.heads, hidden // self.heads))

    def attend(self, q: int, k: int, v: int, mask: Callable[[int], int]) -> int:
        """Attention of split heads, merged again; `mask` is applied to the scaled scores (batch, head, query, key)."""
        b = self.builder
        batch, sequence, heads, dim = b.shape(q)
        scores = b.einsum("bqhd,bkhd->bhqk", q, k)
        scores = mask(b.elementwise("mul", scores, b.scalar(1 / math.sqrt(dim), scores)))
        context = b.einsum("bhqk,bkhd->bqhd", b.softmax(scores), v)
        return b.reshape(context, (batch, sequence, heads * dim))


def refuse_bad_sizes(family: str, *, hidden: int, heads: int, sequence: int, positions: int, **others: int) -> None:
    """A UserError where the sizes of a transformer do not fit together."""
    require_positive(family, hidden=hidden, heads=heads, sequence=sequence, positions=positions, **others)
    if hidden % heads:
        raise UserError("the hidden size does not divide into heads", where=f"workload {family}",
                        why=f"hidden {hidden}, heads {heads}", todo="Give a multiple of heads")  # fmt: skip
    if sequence > positions:
        raise UserError("the sequence is longer than the table of positions", where=f"workload {family}",
                        why=f"sequence {sequence}, positions {positions}", todo="Give more positions")  # fmt: skip
