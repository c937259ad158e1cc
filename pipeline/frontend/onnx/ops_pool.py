"""Pooling over sliding windows and over everything."""

from __future__ import annotations

import itertools
import math

import numpy as np

from pipeline.frontend.onnx.call import Call
from pipeline.frontend.onnx.dtypes import integer_range
from pipeline.frontend.onnx.operators import operator
from pipeline.frontend.onnx.ops_shape import join
from pipeline.frontend.onnx.tensor import Tensor
from pipeline.frontend.onnx.windows import Windows, windows_of
from pipeline.ir.graph import AffineDim, Number, Shape


def pooling_windows(call: Call, x: Tensor) -> Windows:
    if x.rank < 3:
        call.refuse(f"{call.op} of data {list(x.shape)}", why="pooling needs a batch, channels and an extent at least")
    return windows_of(call, x.shape[2:], tuple(call.need("kernel_shape")))


def padded(x: Tensor, w: Windows, value: Number) -> Tensor:
    """With the padding that the windows need, no more."""
    return x.pad((0, 0, *w.low), (0, 0, *w.overhang(x.shape[2:])), value)


def reduce_window(kind: str, x: Tensor, w: Windows) -> Tensor:
    """Over padded data."""
    rank = len(w.counts)
    windows = tuple(AffineDim(((2 + i, w.strides[i]), (2 + rank + i, w.dilations[i]))) for i in range(rank))
    operand = (AffineDim(((0, 1),)), AffineDim(((1, 1),)), *windows)
    spatial = (*x.shape[:2], *w.counts)
    return x.of(x.builder.reduce_window(kind, x.value, spatial, w.kernel, operand))


@operator("MaxPool", 8, 10, 11, 12, 22)
@operator("MaxPool", 1)
def max_pool(call: Call) -> Tensor | tuple[Tensor, ...]:
    x = call.operand(0)
    w = pooling_windows(call, x)
    lowest = -math.inf if x.is_float else integer_range(x.dtype)[0]
    full = padded(x, w, lowest)
    out = reduce_window("max", full, w)
    return (out, positions_of_maxima(call, full, x.shape, w)) if call.wants(1) else out


def positions_of_maxima(call: Call, full: Tensor, shape: Shape, w: Windows) -> Tensor:
    """Flat positions in the data, found by comparing one strided slice of the padded data per window element."""
    elements = list(itertools.product(*(range(extent) for extent in w.kernel)))
    slices, places = [], []
    for element in elements:
        starts = [0, 0, *(i * dilation for i, dilation in zip(element, w.dilations, strict=True))]
        slices.append(full.strided(starts, (*shape[:2], *w.counts), (1, 1, *w.strides)).unsqueeze(0))
        along = [
            np.arange(w.counts[axis]) * w.strides[axis] + element[axis] * w.dilations[axis] - w.low[axis]
            for axis in range(len(element))
        ]
        weights = [math.prod(shape[3 + axis :]) for axis in range(len(element))]
        if call.get("storage_order", 0):
            weights = [math.prod(shape[2 : 2 + axis]) for axis in range(len(element))]
        grid = np.meshgrid(*(steps * weight for steps, weight in zip(along, weights, strict=True)), indexing="ij")
        places.append(sum(grid))
    stacked = join(slices, 0)
    winner = stacked.reduce("argmax", (0,)).unsqueeze(0)
    planes = np.arange(math.prod(shape[:2])).reshape(1, *shape[:2], *[1] * len(w.counts)) * math.prod(shape[2:])
    table = call.constant(np.stack(places)[:, None, None] + planes, "int64")
    return table.of(table.builder.gather_elements(table.value, winner.value, 0)).reshape(winner.shape[1:])


@operator("AveragePool", 7, 10, 11, 19, 22)
def average_pool(call: Call) -> Tensor:
    """Divides by how many elements a window covers: padding counts where count_include_pad is set, what a window
    reaches beyond the padding never does."""
    x = call.operand(0)
    w = pooling_windows(call, x)
    value = x.builder.pool(
        "average",
        x.value,
        w.kernel,
        w.strides,
        w.low,
        w.high,
        w.dilations,
        count_include_pad=bool(call.get("count_include_pad", 0)),
        extra_high=[need - high for need, high in zip(w.overhang(x.shape[2:]), w.high, strict=True)],
    )
    return x.of(value)


@operator("LpPool", 2, 11, 18, 22)
def lp_pool(call: Call) -> Tensor:
    x, p = call.operand(0), int(call.get("p", 2))
    w = pooling_windows(call, x)
    return root(reduce_window("sum", padded(powered(x, p), w, 0.0), w), p)


def powered(x: Tensor, p: int) -> Tensor:
    match p:
        case 1:
            return x.fn("abs")
        case 2:
            return x * x
        case _:
            return x.fn("abs").fn("pow", p)


def root(x: Tensor, p: int) -> Tensor:
    match p:
        case 1:
            return x
        case 2:
            return x.fn("sqrt")
        case _:
            return x.fn("pow", 1.0 / p)


@operator("GlobalAveragePool", 1, 22)
def global_average_pool(call: Call) -> Tensor:
    x = call.operand(0)
    return x.reduce("mean", range(2, x.rank), True)


@operator("GlobalMaxPool", 1, 22)
def global_max_pool(call: Call) -> Tensor:
    x = call.operand(0)
    return x.reduce("max", range(2, x.rank), True)


@operator("GlobalLpPool", 2, 22)
def global_lp_pool(call: Call) -> Tensor:
    x, p = call.operand(0), int(call.get("p", 2))
    return root(powered(x, p).reduce("sum", range(2, x.rank), True), p)


@operator("MaxUnpool", 9, 11, 22)
def max_unpool(call: Call) -> Tensor:
    """Writes every element to its flat position in an image of zeros."""
    x, at = call.operand(0), call.operand(1)
    rank = x.rank - 2
    kernel, strides = call.need("kernel_shape"), call.get("strides", [1] * rank)
    pads = call.get("pads", [0] * 2 * rank)
    small = [(x.shape[2 + i] - 1) * strides[i] + kernel[i] - pads[i] - pads[i + rank] for i in range(rank)]
    shape = call.integers(2, "extents") if call.optional(2) is not None else [*x.shape[:2], *small]
    flat = (math.prod(x.shape),)
    if call.optional(2) is not None and list(shape[2:]) != small:
        coordinates, rest = [], at
        for extent in (*small[:0:-1],):
            coordinates.append(rest.fn("mod", extent))
            rest = rest.fn("div", extent)
        plane, row = rest.fn("div", small[0]), rest.fn("mod", small[0])
        at = plane * math.prod(shape[2:]) + row * math.prod(shape[3:])
        for i, coordinate in enumerate(coordinates):
            at = at + coordinate * math.prod(shape[x.rank - i :])
    empty = x.like(np.zeros(math.prod(shape)))
    written = empty.builder.scatter_elements(empty.value, at.reshape(flat).value, x.reshape(flat).value, 0, "none")
    return x.of(written).reshape(shape)
