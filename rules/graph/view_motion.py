"""Views moved past the operations that follow them: a transpose or reshape of operands becomes one of the result.

Going down, transposes meet and cancel, or reach an operation that can read through them; elementwise operations are
left in the layout of what made their operands. Nothing is moved where that would cost a copy that was not there
before.
"""

from __future__ import annotations

from pipeline.ir import graph as g
from pipeline.ir.graph import Node, Shape
from pipeline.ir.graph_rule import Rebuilder
from rules.graph.reshape_groups import axes_before_reshape, before_reshape, moves_only_ones, reshape_groups

Perm = tuple[int, ...]


def settle(b: Rebuilder, node: Node, inputs: tuple[int, ...]) -> int | None:
    """The node on these operands, the views of the operands moved behind it; None: there is nothing to move."""
    match node.op:
        case g.Transpose(perm):
            return transposed(b, inputs[0], perm)
        case g.Reshape():
            return reshaped(b, inputs[0], node.type.shape)
        case g.Elementwise():
            return _elementwise(b, node, inputs)
        case g.Reduce():
            return _reduce(b, node.op, inputs[0])
        case g.Pad(low, high, interior, value):
            source = _source(b, inputs[0])
            if source is None:
                return None
            x, perm = source
            back = inverse(perm)
            low, high, interior = (tuple(each[p] for p in back) for each in (low, high, interior))
            moved = g.Pad(low, high, interior, value)
            return transposed(b, b.add(moved, x), perm)
        case g.Slice(starts, strides):
            source = _source(b, inputs[0])
            if source is None:
                return None
            x, perm = source
            back = inverse(perm)
            op = g.Slice(tuple(starts[p] for p in back), tuple(strides[p] for p in back))
            return transposed(b, b.add(op, x, shape=tuple(node.type.shape[p] for p in back)), perm)
        case g.Broadcast() if len(b.shape(inputs[0])) == len(node.type.shape):
            source = _source(b, inputs[0])
            if source is None:
                return None
            x, perm = source
            return transposed(b, b.broadcast(x, tuple(node.type.shape[p] for p in inverse(perm))), perm)
        case g.Gather(axis) if len(b.shape(inputs[1])) == 1:
            source = _source(b, inputs[0])
            if source is None:
                return None
            x, perm = source
            return transposed(b, b.add(g.Gather(perm[axis]), x, inputs[1]), perm)
        case g.Concat(axis):
            return _concat(b, axis, inputs)
        case _:
            return None


def inverse(perm: Perm) -> Perm:
    """The permutation that undoes it."""
    return tuple(perm.index(axis) for axis in range(len(perm)))


def transposed(b: Rebuilder, x: int, perm: Perm) -> int:
    """As `GraphBuilder.transpose`; one that only moves dimensions of one element is a reshape."""
    shape = b.shape(x)
    if moves_only_ones(perm, shape):
        return reshaped(b, x, tuple(shape[p] for p in perm))
    source = _source(b, x)
    if source is None:
        return b.transpose(x, perm)
    x, inner = source
    composed = tuple(inner[p] for p in perm)
    if moves_only_ones(composed, b.shape(x)):
        return reshaped(b, x, tuple(b.shape(x)[p] for p in composed))
    return b.transpose(x, composed)


def reshaped(b: Rebuilder, x: int, shape: Shape) -> int:
    """A reshape, moved before the transpose that it follows where its groups of dimensions stay together."""
    source = _source(b, x)
    groups = None if source is None else reshape_groups(b.shape(x), shape)
    if source is None or groups is None:
        return b.reshape(x, shape)
    y, perm = source
    runs = [[perm[i] for i in old] for old, _ in groups]
    if not all(_follow_one_another(run, b.shape(y)) for run in runs):
        return _apart(b, y, runs, [[shape[j] for j in new] for _, new in groups])
    # dimensions of one element may stand anywhere: they go where the first wide one of their group is, or after the
    # group before them
    keys: list[int] = []
    for run in runs:
        keys.append(min((p for p in run if b.shape(y)[p] != 1), default=min(run, default=keys[-1] if keys else -1)))
    order = sorted(range(len(groups)), key=lambda i: (keys[i], i))
    inner = b.reshape(y, tuple(shape[j] for i in order for j in groups[i][1]))
    places = [j for i in order for j in groups[i][1]]
    return transposed(b, inner, tuple(places.index(j) for j in range(len(shape))))


def _apart(b: Rebuilder, y: int, runs: list[list[int]], sizes: list[list[int]]) -> int:
    """A reshape that joins what the transpose brings together, which has to be a copy: of no more than that.

    A shuffle of channels that lie last, in a model that has them first: the copy shuffles, and what follows moves them.
    """
    order = sorted(range(len(runs)), key=lambda i: (max(runs[i], default=-1), i))
    copy = tuple(p for i in order for p in runs[i])
    inner = b.reshape(transposed(b, y, copy), tuple(n for i in order for n in sizes[i]))
    starts = {i: sum(len(sizes[k]) for k in order[: order.index(i)]) for i in order}
    outer = tuple(starts[i] + j for i in range(len(runs)) for j in range(len(sizes[i])))
    return transposed(b, inner, outer)


def is_free_transpose(b: Rebuilder, x: int, perm: Perm) -> bool:
    """Does transposing the value cost nothing at run time?"""
    if b.value_of(x) is not None or moves_only_ones(perm, b.shape(x)):
        return True
    source = _source(b, x)
    return source is not None and moves_only_ones(tuple(source[1][p] for p in perm), b.shape(source[0]))


def stands_on_product(b: Rebuilder, x: int) -> bool:
    """Is the value a product, or elementwise work on one of its own shape, and so computed where that is stored?"""
    shape = b.shape(x)
    left, seen = [x], {x}
    while left:
        node = b.node(left.pop())
        if isinstance(node.op, g.Contract):
            return True
        if isinstance(node.op, g.Elementwise):
            more = [v for v in node.inputs if v not in seen and b.shape(v) == shape]
            left += more
            seen.update(more)
    return False


def _source(b: Rebuilder, x: int) -> tuple[int, Perm] | None:
    node = b.node(x)
    return (node.inputs[0], node.op.perm) if isinstance(node.op, g.Transpose) else None


def _follow_one_another(run: list[int], shape: Shape) -> bool:
    wide = [p for p in run if shape[p] != 1]
    between = {p for p in range(min(wide), max(wide)) if shape[p] != 1} if wide else set()
    return wide == sorted(wide) and between <= set(wide)


def _elementwise(b: Rebuilder, node: Node, inputs: tuple[int, ...]) -> int | None:
    shape = node.type.shape
    for x in inputs:
        source = _source(b, x)
        if source is not None and len(b.shape(x)) == len(shape) and b.shape(x) == shape:
            moved = _past_transpose(b, node, inputs, source[1])
            if moved is not None:
                return moved
    if any(b.shape(x) == shape and stands_on_product(b, x) for x in inputs):
        return None  # it can be done before the product is stored
    # towards fewer dimensions only: of two reshaped operands, each would pull the other into its shape for ever
    sources = [b.node(x).inputs[0] for x in inputs if isinstance(b.node(x).op, g.Reshape) and b.shape(x) == shape]
    fewer = [y for y in dict.fromkeys(sources) if len(b.shape(y)) < len(shape)]
    for y in sorted(fewer, key=lambda y: len(b.shape(y))):
        moved = _past_reshape(b, node, inputs, b.shape(y))
        if moved is not None:
            return moved
    return None


def _past_transpose(b: Rebuilder, node: Node, inputs: tuple[int, ...], perm: Perm) -> int | None:
    back, rank = inverse(perm), len(perm)
    full = [_lifted_shape(b.shape(x), rank) for x in inputs]
    lifted = [x if b.shape(x) == shape else b.reshape(x, shape) for x, shape in zip(inputs, full, strict=True)]
    if not all(is_free_transpose(b, x, back) for x in lifted):
        return None
    operands = tuple(
        old if len(b.shape(old)) == 0 else transposed(b, x, back) for old, x in zip(inputs, lifted, strict=True)
    )
    return transposed(b, _again(b, node, operands, tuple(node.type.shape[p] for p in back)), perm)


def _past_reshape(b: Rebuilder, node: Node, inputs: tuple[int, ...], source: Shape) -> int | None:
    shape = node.type.shape
    operands: list[int] = []
    for x in inputs:
        before = before_reshape(source, shape, b.shape(x))
        if before is None:
            return None
        narrow = b.shape(x) == () or (b.value_of(x) is not None and b.shape(x) == (1,))
        operands.append(x if narrow else _tight(b, x, before))
    return reshaped(b, _again(b, node, tuple(operands), source), shape)


def _tight(b: Rebuilder, x: int, shape: Shape) -> int:
    """The operand in that shape; a constant without leading ones, as models write them."""
    if b.value_of(x) is None:
        return reshaped(b, x, shape)
    while shape and shape[0] == 1:
        shape = shape[1:]
    return b.reshape(x, shape)


def _again(b: Rebuilder, node: Node, inputs: tuple[int, ...], shape: Shape) -> int:
    """The node in another layout, its own operands settled in turn."""
    kind = g.TensorType(shape, node.type.dtype)
    made = _elementwise(b, Node(node.op, inputs, kind), inputs)
    return b.add(node.op, *inputs, dtype=node.type.dtype) if made is None else made


def _lifted_shape(shape: Shape, rank: int) -> Shape:
    return (1,) * (rank - len(shape)) + shape


def _reduce(b: Rebuilder, op: g.Reduce, x: int) -> int | None:
    node = b.node(x)
    if isinstance(node.op, g.Transpose):
        perm = node.op.perm
        axes = tuple(sorted(perm[axis] for axis in op.axes))
        left = [p for p in perm if p not in axes]
        made = _reduced(b, op, node.inputs[0], axes)
        return transposed(b, made, tuple(sorted(left).index(p) for p in left))
    if isinstance(node.op, g.Reshape) and op.kind not in ("argmax", "argmin"):
        source, shape = b.shape(node.inputs[0]), node.type.shape
        axes_before = axes_before_reshape(source, shape, op.axes)
        if axes_before is None:
            return None
        made = _reduced(b, op, node.inputs[0], axes_before)
        return reshaped(b, made, tuple(n for axis, n in enumerate(shape) if axis not in op.axes))
    return None


def _reduced(b: Rebuilder, op: g.Reduce, x: int, axes: tuple[int, ...]) -> int:
    if not axes:
        return x  # what is reduced has one element along every axis
    made = _reduce(b, g.Reduce(op.kind, axes, op.last), x)
    return b.add(g.Reduce(op.kind, axes, op.last), x) if made is None else made


def _concat(b: Rebuilder, axis: int, inputs: tuple[int, ...]) -> int | None:
    sources = [source for x in inputs if (source := _source(b, x)) is not None]
    if not sources:
        return None
    perm = sources[0][1]
    back = inverse(perm)
    if not all(is_free_transpose(b, x, back) for x in inputs):
        return None
    return transposed(b, b.add(g.Concat(perm[axis]), *(transposed(b, x, back) for x in inputs)), perm)
