"""Scaled dot-product attention: written out where the call is plain, by ONNX's definition where it is not."""

from __future__ import annotations

import numpy as np

from pipeline.frontend.onnx.call import Call
from pipeline.frontend.onnx.operators import operator
from pipeline.frontend.onnx.ops_linear import product
from pipeline.frontend.onnx.tensor import Tensor, Value
from pipeline.ir.graph_types import HALVES

PLAIN = frozenset({"is_causal", "scale", "q_num_heads", "kv_num_heads"})


@operator("Attention", 23, 24, 25)
def attention(call: Call) -> Tensor | tuple[Value | None, ...]:
    """softmax(Q K^T * scale [+ causal mask]) V, with one product by the scale.

    A mask may hide a whole row, a cache may be appended to, windows and caps bend the scores, halves may name their
    precision: such a call, and one with an attribute that is not known here, goes by the definition.
    """
    q, k, v = call.operand(0), call.operand(1), call.operand(2)
    plain = len(call.given()) == 3 and call.attributes.keys() <= PLAIN and not any(call.wants(i) for i in (1, 2, 3))
    if not plain or q.dtype in HALVES or 0 in k.shape:
        return call.definition()
    packed = q.rank == 3
    if packed:
        heads, shared = int(call.need("q_num_heads")), int(call.need("kv_num_heads"))
        q, k, v = unpacked(q, heads), unpacked(k, shared), unpacked(v, shared)
    batch, heads, rows, width = q.shape
    shared, columns = k.shape[1], k.shape[2]
    group = heads // shared
    if heads % shared:
        call.refuse(f"{heads} heads of queries do not share {shared} heads of keys")

    # the queries that share a head of keys are rows of one product
    scores = product(q.reshape((batch, shared, group * rows, width)), k.transpose((0, 1, 3, 2)))
    scores = scores * call.number("scale", width**-0.5)
    if call.get("is_causal", 0):
        hidden = np.arange(columns)[None, :] > np.arange(rows)[:, None]
        bias = np.tile(np.where(hidden, -np.inf, 0.0), (group, 1))
        scores = scores + scores.like(bias)
    shares = scores.of(scores.builder.softmax(scores.value, 3))
    out = product(shares, v).reshape((batch, heads, rows, v.shape[3]))
    return out.transpose((0, 2, 1, 3)).reshape((batch, rows, heads * v.shape[3])) if packed else out


def unpacked(x: Tensor, heads: int) -> Tensor:
    """(batch, rows, heads * width) as (batch, heads, rows, width)."""
    batch, rows, width = x.shape
    return x.reshape((batch, rows, heads, width // heads)).transpose((0, 2, 1, 3))
