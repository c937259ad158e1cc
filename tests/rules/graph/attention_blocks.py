"""Attention as exporters write it: products, reshapes and transposes one by one."""

from __future__ import annotations

import math

import numpy as np

from pipeline.ir.graph import Graph
from pipeline.ir.graph_builder import GraphBuilder

HIDDEN, HEADS, SEQUENCE = 64, 4, 6


def weights(b: GraphBuilder, name: str, *shape: int) -> int:
    """The same numbers for the same name and shape."""
    rng = np.random.default_rng([*name.encode()])
    return b.constant(rng.normal(size=shape).astype(np.float32) / math.sqrt(shape[0]), name)


def bert_block(batch: int = 1, mask: bool = True) -> Graph:
    """MatMul, Add, Reshape, Transpose for each of q, k, v; MatMul, Mul, Softmax, MatMul; Transpose, Reshape, MatMul."""
    b = GraphBuilder()
    x = b.input("x", (batch, SEQUENCE, HIDDEN), "float32")

    def heads(name: str, perm: tuple[int, ...]) -> int:
        dense = b.elementwise("add", b.matmul(x, weights(b, name, HIDDEN, HIDDEN)), weights(b, f"{name}.b", HIDDEN))
        return b.transpose(b.reshape(dense, (batch, SEQUENCE, HEADS, HIDDEN // HEADS)), perm)

    scores = b.matmul(heads("q", (0, 2, 1, 3)), heads("k", (0, 2, 3, 1)))
    scores = b.elementwise("div", scores, b.scalar(math.sqrt(HIDDEN // HEADS), scores))
    if mask:
        scores = b.elementwise("add", scores, b.input("mask", (batch, 1, 1, SEQUENCE), "float32"))
    context = b.transpose(b.matmul(b.softmax(scores), heads("v", (0, 2, 1, 3))), (0, 2, 1, 3))
    merged = b.reshape(context, (batch, SEQUENCE, HIDDEN))
    out = b.elementwise("add", b.matmul(merged, weights(b, "o", HIDDEN, HIDDEN)), weights(b, "o.b", HIDDEN))
    return b.finish([("y", b.elementwise("add", x, out))])


def gpt2_block(batch: int = 1, cache: bool = False) -> Graph:
    """One product for q, k and v on (batch * sequence, hidden), split; both scaled before their product."""
    b = GraphBuilder()
    x = b.input("x", (batch, SEQUENCE, HIDDEN), "float32")
    flat = b.reshape(x, (batch * SEQUENCE, HIDDEN))
    joint = b.elementwise("add", b.matmul(flat, weights(b, "qkv", HIDDEN, 3 * HIDDEN)), weights(b, "qkv.b", 3 * HIDDEN))
    joint = b.reshape(joint, (batch, SEQUENCE, 3 * HIDDEN))

    def heads(i: int, perm: tuple[int, ...]) -> int:
        part = b.slice(joint, [i * HIDDEN], [(i + 1) * HIDDEN], axes=[2])
        return b.transpose(b.reshape(part, (batch, SEQUENCE, HEADS, HIDDEN // HEADS)), perm)

    key = heads(1, (0, 2, 1, 3))
    scale = b.scalar((HIDDEN // HEADS) ** -0.25, x)
    q = b.elementwise("mul", heads(0, (0, 2, 1, 3)), scale)
    scores = b.matmul(q, b.elementwise("mul", b.transpose(key, (0, 1, 3, 2)), scale))
    future = b.constant(np.tril(np.ones((SEQUENCE, SEQUENCE), np.bool_)))
    scores = b.elementwise("where", future, scores, b.scalar(-1e4, scores))
    context = b.transpose(b.matmul(b.softmax(scores), heads(2, (0, 2, 1, 3))), (0, 2, 1, 3))
    merged = b.reshape(context, (batch * SEQUENCE, HIDDEN))
    out = b.elementwise("add", b.matmul(merged, weights(b, "o", HIDDEN, HIDDEN)), weights(b, "o.b", HIDDEN))
    return b.finish([("y", b.reshape(out, (batch, SEQUENCE, HIDDEN))), *([("key", key)] if cache else [])])
