"""Operators that give the same elements another shape, order or place."""

from __future__ import annotations

import math
from typing import NoReturn

import numpy as np

from pipeline.frontend.onnx.call import Call
from pipeline.frontend.onnx.operators import operator
from pipeline.frontend.onnx.tensor import Tensor
from pipeline.ir.graph import Number


@operator("Reshape", 5, 13, 14, 19, 21, 23, 24, 25)
def reshape(call: Call) -> Tensor:
    """0 copies the extent at that place (unless allowzero is set); one -1 takes what is left."""
    return reshaped(call, call.integers(1, "extents"))


def reshaped(call: Call, shape: list[int]) -> Tensor:
    x = call.operand(0)
    if not call.get("allowzero", 0):
        for axis, extent in enumerate(shape):
            if extent == 0:
                if axis >= x.rank:
                    call.refuse(
                        f"extent 0 at place {axis} has nothing to copy", why=f"the data has shape {list(x.shape)}"
                    )
                shape[axis] = x.shape[axis]
    if -1 in shape:
        rest = math.prod(extent for extent in shape if extent != -1)
        if rest == 0 or math.prod(x.shape) % rest or shape.count(-1) > 1:
            refuse_reshape(call, x, shape)
        shape[shape.index(-1)] = math.prod(x.shape) // rest
    if math.prod(shape) != math.prod(x.shape):
        refuse_reshape(call, x, shape)
    return x.reshape(shape)


def refuse_reshape(call: Call, x: Tensor, shape: list[int]) -> NoReturn:
    call.refuse(
        f"shape {list(x.shape)} does not reshape to {shape}",
        why="the numbers of elements differ",
        todo="If the model was exported for other sizes, bind its dimensions to those sizes with workload.shapes",
    )


@operator("Flatten", 1, 9, 11, 13, 21, 23, 24, 25)
def flatten(call: Call) -> Tensor:
    x, axis = call.operand(0), int(call.get("axis", 1))
    axis = axis + x.rank if axis < 0 else axis
    return x.reshape((math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))


def axes_of(call: Call, position: int) -> list[int] | None:
    """The axes that older versions give as an attribute and newer ones as an operand; None where left out."""
    if "axes" in call.attributes:
        return [int(axis) for axis in call.get("axes")]
    return call.integers(position, "axes") if call.optional(position) is not None else None


@operator("Squeeze", 1, 11, 13, 21, 23, 24, 25)
def squeeze(call: Call) -> Tensor:
    x, axes = call.operand(0), axes_of(call, 1)
    gone = {i for i, extent in enumerate(x.shape) if extent == 1}
    if axes is not None:
        wanted = {call.dimension(axis, x.rank) for axis in axes}
        if wanted - gone:
            call.refuse(f"axes {sorted(wanted)} cannot be squeezed", why=f"the data has shape {list(x.shape)}")
        gone = wanted
    return x.reshape([extent for i, extent in enumerate(x.shape) if i not in gone])


@operator("Unsqueeze", 1, 11, 13, 21, 23, 24, 25)
def unsqueeze(call: Call) -> Tensor:
    x, axes = call.operand(0), axes_of(call, 1) or []
    placed = {call.dimension(axis, x.rank + len(axes)) for axis in axes}
    if len(placed) < len(axes):
        call.refuse(f"axes {axes} of Unsqueeze repeat")
    return x.unsqueeze(*placed)


@operator("Transpose", 1, 13, 21, 23, 24, 25)
def transpose(call: Call) -> Tensor:
    x = call.operand(0)
    return x.transpose(call.get("perm", range(x.rank)[::-1]))


@operator("Concat", 1, 4, 11, 13)
def concat(call: Call) -> Tensor:
    parts = call.given()
    axis = call.dimension(int(call.get("axis", 1)), parts[0].rank)
    return join(parts, axis)


def join(parts: tuple[Tensor, ...] | list[Tensor], axis: int) -> Tensor:
    first = parts[0]
    return first if len(parts) == 1 else first.of(first.builder.concat([part.value for part in parts], axis))


@operator("Split", 2, 11, 13, 18)
def split(call: Call) -> tuple[Tensor, ...]:
    """By given sizes (attribute or operand), or into as many parts as there are outputs, the last one the smaller."""
    x = call.operand(0)
    axis = call.axis(x.rank, 0)
    extent, count = x.shape[axis], int(call.get("num_outputs", len(call.outputs)))
    if "split" in call.attributes:
        sizes = [int(size) for size in call.get("split")]
    elif call.optional(1) is not None:
        sizes = call.integers(1, "sizes")
    else:
        size = -(-extent // count)
        sizes = [max(0, min(size, extent - i * size)) for i in range(count)]
    if sum(sizes) != extent or min(sizes, default=0) < 0:
        call.refuse(f"parts {sizes} do not add up to {extent}", why=f"axis {axis} of {list(x.shape)} is split")
    ends = np.cumsum(sizes).tolist()
    return tuple(x.part(axis, end - size, end) for size, end in zip(sizes, ends, strict=True))


@operator("Slice", 1)
def slice_by_attributes(call: Call) -> Tensor:
    starts, ends = list(call.need("starts")), list(call.need("ends"))
    return sliced(call, starts, ends, list(call.get("axes", range(len(starts)))), [1] * len(starts))


@operator("Slice", 10, 11, 13)
def slice_by_operands(call: Call) -> Tensor:
    starts, ends = call.integers(1, "starts"), call.integers(2, "ends")
    axes = call.integers(3, "axes") if call.optional(3) is not None else list(range(len(starts)))
    steps = call.integers(4, "steps") if call.optional(4) is not None else [1] * len(starts)
    return sliced(call, starts, ends, axes, steps)


def sliced(call: Call, starts: list[int], ends: list[int], axes: list[int], steps: list[int]) -> Tensor:
    """As in Python: ends count from the back when negative and are clipped; a negative step goes backwards."""
    x = call.operand(0)
    first, sizes, strides = [0] * x.rank, list(x.shape), [1] * x.rank
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        axis = call.dimension(axis, x.rank)
        if step == 0:
            call.refuse("a step of Slice is 0")
        along = range(x.shape[axis])[start:end:step]
        first[axis], sizes[axis], strides[axis] = (along.start if len(along) else 0), len(along), step
    return x.strided(first, sizes, strides)


@operator("Pad", 2)
def pad_by_attributes(call: Call) -> Tensor:
    x = call.operand(0)
    return padded(call, x, list(call.need("pads")), list(range(x.rank)), float(call.get("value", 0.0)))


@operator("Pad", 11, 13, 18, 19, 21, 23, 24, 25)
def pad_by_operands(call: Call) -> Tensor:
    x, pads = call.operand(0), call.integers(1, "pads")
    axes = call.integers(3, "axes") if call.optional(3) is not None else list(range(x.rank))
    value = call.known(2, "padding value").reshape(-1)[0].item() if call.optional(2) is not None else 0
    return padded(call, x, pads, [call.dimension(axis, x.rank) for axis in axes], value)


def padded(call: Call, x: Tensor, pads: list[int], axes: list[int], value: Number) -> Tensor:
    """Negative numbers crop; reflect, edge and wrap pick existing elements by known positions."""
    low, high = [0] * x.rank, [0] * x.rank
    for i, axis in enumerate(axes):
        low[axis], high[axis] = pads[i], pads[i + len(axes)]
    mode = call.get("mode", "constant")
    if mode == "constant":
        return x.pad(low, high, value)
    for axis in axes:
        before, after, extent = low[axis], high[axis], x.shape[axis]
        cropped = np.arange(max(0, -before), extent - max(0, -after))
        widths = (max(0, before), max(0, after))
        if any(widths) or len(cropped) < extent:
            if not len(cropped):
                call.refuse(f"Pad in mode {mode} of an empty axis", why=f"the data has shape {list(x.shape)}")
            x = x.take(np.pad(cropped, widths, mode=mode), axis)
    return x


@operator("Expand", 8, 13)
def expand(call: Call) -> Tensor:
    x = call.operand(0)
    return x.broadcast(np.broadcast_shapes(x.shape, tuple(call.integers(1, "extents"))))


@operator("Tile", 6, 13)
def tile(call: Call) -> Tensor:
    """Each dimension becomes (repeat, extent): a broadcast, then a reshape."""
    x, repeats = call.operand(0), call.integers(1, "repeats")
    if all(repeat == 1 for repeat in repeats):
        return x
    spread = x.reshape([part for extent in x.shape for part in (1, extent)])
    spread = spread.broadcast([part for pair in zip(repeats, x.shape, strict=True) for part in pair])
    return spread.reshape([repeat * extent for repeat, extent in zip(repeats, x.shape, strict=True)])


@operator("DepthToSpace", 1, 11, 13, 28)
def depth_to_space(call: Call) -> Tensor:
    x, block = call.operand(0), int(call.need("blocksize"))
    batch, channels, *extents = x.shape
    rank, depth = len(extents), channels // block ** len(extents)
    if call.get("mode", "DCR") == "DCR":
        x = x.reshape((batch, *[block] * rank, depth, *extents))
        blocks, depth_at = list(range(1, 1 + rank)), 1 + rank
    else:
        x = x.reshape((batch, depth, *[block] * rank, *extents))
        blocks, depth_at = list(range(2, 2 + rank)), 1
    outer = list(range(2 + rank, 2 + 2 * rank))
    x = x.transpose([0, depth_at, *[axis for pair in zip(outer, blocks, strict=True) for axis in pair]])
    return x.reshape((batch, depth, *(extent * block for extent in extents)))


@operator("SpaceToDepth", 1, 13, 28)
def space_to_depth(call: Call) -> Tensor:
    x, block = call.operand(0), int(call.need("blocksize"))
    batch, channels, *extents = x.shape
    rank = len(extents)
    x = x.reshape((batch, channels, *[part for extent in extents for part in (extent // block, block)]))
    outer, inner = [2 + 2 * i for i in range(rank)], [3 + 2 * i for i in range(rank)]
    x = x.transpose([0, *inner, 1, *outer]) if call.get("mode", "DCR") == "DCR" else x.transpose([0, 1, *inner, *outer])
    return x.reshape((batch, channels * block**rank, *(extent // block for extent in extents)))


@operator("CenterCropPad", 18)
def center_crop_pad(call: Call) -> Tensor:
    """Around the middle; the odd element of a crop or of a padding is at the end."""
    x, wanted = call.operand(0), call.integers(1, "extents")
    axes = [call.dimension(int(axis), x.rank) for axis in call.get("axes", range(x.rank))]
    low, high = [0] * x.rank, [0] * x.rank
    for axis, extent in zip(axes, wanted, strict=True):
        missing = extent - x.shape[axis]
        low[axis] = missing // 2 if missing > 0 else -(-missing // 2)
        high[axis] = missing - low[axis]
    return x.pad(low, high)
