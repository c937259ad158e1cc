"""Operators that read or write elements at positions given by other tensors."""

from __future__ import annotations

import math

import numpy as np

from pipeline.frontend.onnx.call import Call
from pipeline.frontend.onnx.operators import operator
from pipeline.frontend.onnx.tensor import Tensor


@operator("Gather", 1, 11, 13)
def gather(call: Call) -> Tensor:
    x, indices = call.operand(0), call.operand(1)
    return x.of(x.builder.gather(x.value, indices.value, call.axis(x.rank, 0)))


@operator("GatherElements", 11, 13)
def gather_elements(call: Call) -> Tensor:
    x, indices = call.operand(0), call.operand(1)
    return x.of(x.builder.gather_elements(x.value, indices.value, call.axis(x.rank, 0)))


@operator("GatherND", 11, 12, 13)
def gather_nd(call: Call) -> Tensor:
    x, indices = call.operand(0), call.operand(1)
    return x.of(x.builder.gather_nd(x.value, indices.value, int(call.get("batch_dims", 0))))


@operator("Scatter", 9, 11)
@operator("ScatterElements", 11, 13, 16, 18)
def scatter_elements(call: Call) -> Tensor:
    x, indices, updates = call.operand(0), call.operand(1), call.operand(2)
    axis, how = call.axis(x.rank, 0), call.get("reduction", "none")
    return x.of(x.builder.scatter_elements(x.value, indices.value, updates.value, axis, how))


@operator("ScatterND", 11, 13, 16, 18)
def scatter_nd(call: Call) -> Tensor:
    x, indices, updates = call.operand(0), call.operand(1), call.operand(2)
    return x.of(x.builder.scatter_nd(x.value, indices.value, updates.value, call.get("reduction", "none")))


@operator("TensorScatter", 24)
def tensor_scatter(call: Call) -> Tensor:
    """Writes a run of positions along `axis`, with its own start in each batch: a cache, linear or circular."""
    past, update, starts = call.operand(0), call.operand(1), call.optional(2)
    axis = call.axis(past.rank, -2)
    steps = call.constant(np.arange(update.shape[axis]), "int64").along(axis, past.rank)
    start = steps.like(np.zeros(past.shape[0], np.int64)) if starts is None else starts.cast("int64")
    at = steps + start.along(0, past.rank)
    if call.get("mode", "linear") == "circular":
        at = at.fn("mod", past.shape[axis])
    at = at.broadcast(update.shape)
    return past.of(past.builder.scatter_elements(past.value, at.value, update.value, axis, "none"))


@operator("OneHot", 9, 11, 28)
def one_hot(call: Call) -> Tensor:
    """A comparison with the positions along a new axis; an index out of range gives only off-values."""
    indices, values = call.operand(0), call.operand(2)
    depth = int(call.known(1, "depth").reshape(-1)[0])
    rank = indices.rank + 1
    axis = call.axis(rank, -1)
    at = indices.cast("int64")
    at = at.fn("lt", 0).where(at + depth, at).unsqueeze(axis)
    hit = at.fn("eq", call.constant(np.arange(depth), "int64").along(axis, rank))
    off, on = values.part(0, 0, 1).reshape(()), values.part(0, 1, 2).reshape(())
    return hit.where(on, off)


@operator("Compress", 9, 11, 28)
def compress(call: Call) -> Tensor:
    """With a known condition: the number of elements depends on it."""
    x, condition = call.operand(0), call.known(1, "selected positions")
    if "axis" not in call.attributes:
        x = x.reshape((math.prod(x.shape),))
    return x.take(np.flatnonzero(condition), call.axis(x.rank, 0))


@operator("ReverseSequence", 10, 28)
def reverse_sequence(call: Call) -> Tensor:
    """The first `length` steps backwards, the others as they are: a gather at length - 1 - step."""
    x, lengths = call.operand(0), call.operand(1)
    batch, time = call.axis(x.rank, 1, "batch_axis"), call.axis(x.rank, 0, "time_axis")
    steps = call.constant(np.arange(x.shape[time]), "int64").along(time, x.rank)
    last = lengths.cast("int64").along(batch, x.rank)
    at = steps.fn("lt", last).where(last - 1 - steps, steps).broadcast(x.shape)
    return x.of(x.builder.gather_elements(x.value, at.value, time))


@operator("Col2Im", 18)
def columns_to_image(call: Call) -> Tensor:
    """Adds every column of a block to its place in the padded image, then crops the padding."""
    x, image, block = call.operand(0), call.integers(1, "image extents"), call.integers(2, "block extents")
    rank = len(image)
    dilations, strides = call.get("dilations", [1] * rank), call.get("strides", [1] * rank)
    pads = call.get("pads", [0] * 2 * rank)
    full = [extent + pads[i] + pads[i + rank] for i, extent in enumerate(image)]
    counts = [(full[i] - dilations[i] * (block[i] - 1) - 1) // strides[i] + 1 for i in range(rank)]
    channels = x.shape[1] // math.prod(block)
    at = np.zeros((*block, *counts), np.int64)
    for i in range(rank):
        inside = np.arange(block[i]) * dilations[i]
        outside = np.arange(counts[i]) * strides[i]
        along = (inside[:, None] + outside[None, :]).reshape(
            [block[i] if axis == i else counts[i] if axis == rank + i else 1 for axis in range(2 * rank)]
        )
        at += along * math.prod(full[i + 1 :])
    rows = x.shape[0] * channels
    updates = x.reshape((rows, at.size))
    indices = call.constant(np.broadcast_to(at.reshape(1, -1), (rows, at.size)), "int64")
    empty = x.like(np.zeros((rows, math.prod(full))))
    summed = x.of(x.builder.scatter_elements(empty.value, indices.value, updates.value, 1, "add"))
    summed = summed.reshape((x.shape[0], channels, *full))
    low, high = [0, 0, *(-pad for pad in pads[:rank])], [0, 0, *(-pad for pad in pads[rank:])]
    return summed.pad(low, high)
