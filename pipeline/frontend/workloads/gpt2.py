"""GPT-2 (Radford et al., 2019) with random weights: ids to logits, with or without a cache of keys and values."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pipeline.frontend.workloads.attention import mask_future
from pipeline.frontend.workloads.transformer import INITIAL, Transformer, refuse_bad_sizes
from pipeline.frontend.workloads.weights import Weights
from pipeline.ir.graph import Graph
from pipeline.ir.graph_builder import GraphBuilder


@dataclass(frozen=True, slots=True)
class Gpt2:
    """GPT-2 small by default.

    Input input_ids (batch, sequence), int64; output logits.

    past   tokens before these; each layer has the inputs past_key_i and past_value_i (batch, past, heads, dim)
    cache  also give present_key_i and present_value_i, which are the past of the next tokens
    """

    name: str = "gpt2"
    layers: int = 12
    hidden: int = 768
    heads: int = 12
    vocabulary: int = 50257
    positions: int = 1024
    batch: int = 1
    sequence: int = 128
    past: int = 0
    cache: bool = False

    def build(self, seed: int) -> Graph:
        refuse_bad_sizes(self.name, hidden=self.hidden, heads=self.heads, sequence=self.sequence + max(0, self.past),
                         positions=self.positions, layers=self.layers, vocabulary=self.vocabulary, batch=self.batch,
                         tokens=self.sequence, past_plus_one=self.past + 1)  # fmt: skip
        b = GraphBuilder()
        weights = Weights(b, seed)
        t = Transformer(b, weights, self.heads, eps=1e-5)
        ids = b.input("input_ids", (self.batch, self.sequence), "int64")
        presents: list[tuple[str, int]] = []
        with b.scope("embeddings"):
            words = weights.normal("word", (self.vocabulary, self.hidden), INITIAL)
            places = weights.normal("position", (self.positions, self.hidden), INITIAL / 2)
            here = b.slice(places, [self.past], [self.past + self.sequence], axes=[0])
            x = b.elementwise("add", b.gather(words, ids, 0), here)
        for number in range(self.layers):
            with b.scope(f"layer{number}"):
                x = self._layer(t, number, x, presents)
        with b.scope("head"):
            logits = b.einsum("bsh,vh->bsv", t.norm("norm", x), words)
        return b.finish([("logits", logits), *presents])

    def _layer(self, t: Transformer, number: int, x: int, presents: list[tuple[str, int]]) -> int:
        b, name = t.builder, f"layer{number}"
        residual = INITIAL / math.sqrt(2 * self.layers)  # so that the sum over the layers keeps its size
        with b.scope("attention"):
            joint = t.dense(f"{name}.qkv", t.norm(f"{name}.attention.norm", x), 3 * self.hidden)
            q, k, v = (
                t.split_heads(b.slice(joint, [i * self.hidden], [(i + 1) * self.hidden], axes=[2])) for i in range(3)
            )
            if self.past:
                shape = (self.batch, self.past, self.heads, self.hidden // self.heads)
                k = b.concat([b.input(f"past_key_{number}", shape, "float32"), k], 1)
                v = b.concat([b.input(f"past_value_{number}", shape, "float32"), v], 1)
            if self.cache:
                presents += [(f"present_key_{number}", k), (f"present_value_{number}", v)]
            context = t.attend(q, k, v, lambda scores: mask_future(b, scores))
            x = b.elementwise("add", x, t.dense(f"{name}.projection", context, self.hidden, residual))
        with b.scope("feed_forward"):
            inner = t.dense(f"{name}.inner", t.norm(f"{name}.norm", x), 4 * self.hidden)
            return b.elementwise("add", x, t.dense(f"{name}.outer", b.gelu(inner, "tanh"), self.hidden, residual))

    def describe(self) -> str:
        before = f" after {self.past}" if self.past else ""
        return (f"{self.name}: {self.layers} layers, hidden {self.hidden}, {self.heads} heads, batch {self.batch}, "
                f"sequence {self.sequence}{before}, float32")  # fmt: skip
