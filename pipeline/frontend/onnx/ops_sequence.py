"""Sequences of tensors, whose lengths are known at import: lists that exist only while the model is read."""

from __future__ import annotations

from pipeline.frontend.onnx.call import Call
from pipeline.frontend.onnx.operators import operator
from pipeline.frontend.onnx.ops_shape import join
from pipeline.frontend.onnx.tensor import Tensor, TensorSequence


@operator("SequenceConstruct", 11)
def construct(call: Call) -> TensorSequence:
    return TensorSequence(call.given())


@operator("SequenceEmpty", 11)
def empty(call: Call) -> TensorSequence:
    return TensorSequence(())


@operator("SequenceLength", 11)
def length(call: Call) -> Tensor:
    return call.constant(len(call.sequence(0).items), "int64")


def position(call: Call, operand: int, count: int) -> int:
    """A known position, counted from the back where negative."""
    at = call.integers(operand, "position")[0]
    if not -count <= at < max(count, 1):
        call.refuse(f"position {at} is out of range", why=f"there are {count}")
    return at % count if count else 0


@operator("SequenceAt", 11)
def at(call: Call) -> Tensor:
    items = call.sequence(0).items
    if not items:
        call.refuse("SequenceAt of an empty sequence")
    return items[position(call, 1, len(items))]


@operator("SequenceInsert", 11)
def insert(call: Call) -> TensorSequence:
    items = list(call.sequence(0).items)
    where = call.integers(2, "position")[0] if call.optional(2) is not None else len(items)
    if not -len(items) <= where <= len(items):
        call.refuse(f"position {where} is out of range", why=f"there are {len(items)}")
    items.insert(where, call.operand(1))
    return TensorSequence(tuple(items))


@operator("SequenceErase", 11)
def erase(call: Call) -> TensorSequence:
    items = list(call.sequence(0).items)
    if not items:
        call.refuse("SequenceErase of an empty sequence")
    del items[position(call, 1, len(items)) if call.optional(1) is not None else -1]
    return TensorSequence(tuple(items))


@operator("SplitToSequence", 11, 24)
def split(call: Call) -> TensorSequence:
    """By sizes, by one size (the last part may be smaller), or into single elements without their axis."""
    x = call.operand(0)
    axis = call.axis(x.rank, 0)
    extent = x.shape[axis]
    if call.optional(1) is None:
        parts = [x.part(axis, i, i + 1) for i in range(extent)]
        if call.get("keepdims", 1):
            return TensorSequence(tuple(parts))
        rest = [*x.shape[:axis], *x.shape[axis + 1 :]]
        return TensorSequence(tuple(part.reshape(rest) for part in parts))
    sizes = call.integers(1, "sizes")
    if not call.operand(1).shape:
        size = sizes[0]
        sizes = [min(size, extent - start) for start in range(0, extent, max(size, 1))]
    if sum(sizes) != extent or min(sizes, default=0) < 0:
        call.refuse(f"parts {sizes} do not add up to {extent}", why=f"axis {axis} of {list(x.shape)} is split")
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    return TensorSequence(tuple(x.part(axis, end - size, end) for end, size in zip(ends, sizes, strict=True)))


@operator("ConcatFromSequence", 11)
def concat(call: Call) -> Tensor:
    items, new = call.sequence(0).items, bool(call.get("new_axis", 0))
    if not items:
        call.refuse("ConcatFromSequence of an empty sequence")
    axis = call.dimension(int(call.need("axis")), items[0].rank + new)
    return join([item.unsqueeze(axis) for item in items] if new else items, axis)
