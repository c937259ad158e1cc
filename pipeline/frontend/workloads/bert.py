"""BERT's encoder (Devlin et al., 2019) with random weights: ids to hidden states and the pooled first token."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipeline.frontend.workloads.attention import MASKED
from pipeline.frontend.workloads.transformer import INITIAL, Transformer, refuse_bad_sizes
from pipeline.frontend.workloads.weights import Weights
from pipeline.ir.graph import Graph
from pipeline.ir.graph_builder import GraphBuilder


@dataclass(frozen=True, slots=True)
class Bert:
    """BERT-base by default.

    Inputs input_ids, attention_mask and token_type_ids (batch, sequence), int64; outputs last_hidden_state and
    pooler_output.
    """

    name: str = "bert"
    layers: int = 12
    hidden: int = 768
    heads: int = 12
    intermediate: int = 3072
    vocabulary: int = 30522
    positions: int = 512
    types: int = 2
    batch: int = 1
    sequence: int = 128

    def build(self, seed: int) -> Graph:
        refuse_bad_sizes(self.name, hidden=self.hidden, heads=self.heads, sequence=self.sequence,
                         positions=self.positions, layers=self.layers, intermediate=self.intermediate,
                         vocabulary=self.vocabulary, types=self.types, batch=self.batch)  # fmt: skip
        b = GraphBuilder()
        weights = Weights(b, seed)
        t = Transformer(b, weights, self.heads, eps=1e-12)
        shape = (self.batch, self.sequence)
        ids, given, kinds = (b.input(n, shape, "int64") for n in ("input_ids", "attention_mask", "token_type_ids"))
        with b.scope("mask"):
            absent = b.elementwise("sub", b.constant(np.float32(1)), b.cast(given, "float32"))
            penalty = b.elementwise("mul", absent, b.scalar(MASKED, absent))
            penalty = b.reshape(penalty, (self.batch, 1, 1, self.sequence))
        with b.scope("embeddings"):
            x = b.gather(weights.normal("word", (self.vocabulary, self.hidden), INITIAL), ids, 0)
            x = b.elementwise("add", x, b.gather(weights.normal("type", (self.types, self.hidden), INITIAL), kinds, 0))
            places = b.slice(
                weights.normal("position", (self.positions, self.hidden), INITIAL), [0], [self.sequence], axes=[0]
            )
            x = t.norm("embeddings.norm", b.elementwise("add", x, places))
        for number in range(self.layers):
            with b.scope(f"layer{number}"):
                x = self._layer(t, f"layer{number}", x, penalty)
        with b.scope("pooler"):
            first = b.reshape(b.slice(x, [0], [1], axes=[1]), (self.batch, self.hidden))
            pooled = b.elementwise("tanh", t.dense("pooler", first, self.hidden))
        return b.finish([("last_hidden_state", x), ("pooler_output", pooled)])

    def _layer(self, t: Transformer, name: str, x: int, penalty: int) -> int:
        b = t.builder
        with b.scope("attention"):
            q, k, v = (t.split_heads(t.dense(f"{name}.{part}", x, self.hidden)) for part in ("query", "key", "value"))
            context = t.attend(q, k, v, lambda scores: b.elementwise("add", scores, penalty))
            attended = b.elementwise("add", x, t.dense(f"{name}.projection", context, self.hidden))
            x = t.norm(f"{name}.attention.norm", attended)
        with b.scope("feed_forward"):
            inner = b.gelu(t.dense(f"{name}.inner", x, self.intermediate))
            return t.norm(f"{name}.norm", b.elementwise("add", x, t.dense(f"{name}.outer", inner, self.hidden)))

    def describe(self) -> str:
        return (f"{self.name}: {self.layers} layers, hidden {self.hidden}, {self.heads} heads, batch {self.batch}, "
                f"sequence {self.sequence}, float32")  # fmt: skip
