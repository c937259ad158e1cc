"""Products and windows as ONNX operators: Conv, MatMul, Einsum, MaxPool and AveragePool, found from affine indices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.errors import UserError
from pipeline.ir import graph as g
from pipeline.ir.graph import AffineDim, AffineMap, Graph, Shape

_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True, slots=True)
class Window:
    """Per window dimension: its size, step and spread, and the padding that was merged into the operator."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    low: tuple[int, ...]
    high: tuple[int, ...]

    @property
    def pads(self) -> list[int]:
        return [*self.low, *self.high]


@dataclass(frozen=True, slots=True)
class Convolution:
    """A Contract that is a convolution.

    source    the value that is convolved: before its padding where that was merged
    groups, inner, outer  groups, and channels in and out of each
    swapped   weights are (groups * inner, outer, window), as those of a transposed convolution
    reversed  window dimensions (0 is the first) whose taps run backwards
    """

    source: int
    window: Window
    groups: int
    inner: int
    outer: int
    swapped: bool
    reversed: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Transposed:
    """A transposed convolution. Its weights are (groups * inner, outer, window).

    padding_beyond  what the operator calls output padding
    """

    source: int
    weights: int
    window: Window
    groups: int
    padding_beyond: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Side:
    """One operand of a plain product.

    variables  of its dimensions, in order; dimensions of extent 1 may have none
    gathers    (axis, indices) to apply first, in order: they give a window a dimension for each of its variables
    """

    variables: tuple[int, ...]
    gathers: tuple[tuple[int, np.ndarray], ...]


@dataclass(frozen=True, slots=True)
class Einsum:
    """A Contract as a product of plain dimensions. is_product: one batched matrix product can do it."""

    lhs: Side
    rhs: Side
    batch: tuple[int, ...]
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    inner: tuple[int, ...]
    is_product: bool


Terms = tuple[tuple[int, int], ...]


def unsupported(what: str, why: str) -> UserError:
    return UserError(f"{what} has no ONNX form here", why=why, todo="Compare with a peer on the model's own ONNX file")


def find_convolution(graph: Graph, value: int) -> Convolution | None:
    """The convolution that this Contract is, or None."""
    node = graph.nodes[value]
    assert isinstance(node.op, g.Contract)
    op, extents = node.op, (*node.op.spatial, *node.op.reduced)
    x_shape, w_shape = (graph.nodes[i].type.shape for i in node.inputs)
    rank, fixed = len(x_shape), len(op.spatial)
    if rank < 3 or len(w_shape) != rank or 0 in extents or any(dim.offset for dim in op.lhs):
        return None
    x, w = ([_live(dim, extents) for dim in affine] for affine in (op.lhs, op.rhs))
    in_weights = {v for terms in w for v, _ in terms}
    if len(x[0]) > 1 or any(c != 1 or v >= fixed or v in in_weights for v, c in x[0]):
        return None
    channel, group = [t for t in x[1] if t[0] >= fixed], [t for t in x[1] if t[0] < fixed]
    inner = extents[channel[0][0]] if channel else 1
    groups = extents[group[0][0]] if group else 1
    if len(channel) > 1 or len(group) > 1 or groups * inner != x_shape[1]:
        return None
    if any(c != 1 for _, c in channel) or any(c != inner for _, c in group):
        return None
    positions = {v for terms in (x[0], *x[2:]) for v, _ in terms if v < fixed}
    outs = [v for terms in w[:2] for v, _ in terms if v < fixed and v not in dict(group)]
    outer = extents[outs[0]] if outs else 1
    if len(set(outs)) > 1 or positions & set(outs):
        return None
    column = ((outs[0], 1),) if outs else ()
    straight = (_sorted([*((v, outer) for v, _ in group), *column]), tuple(channel)), (groups * outer, inner)
    swapped = (_sorted([*group, *channel]), column), (groups * inner, outer)
    head = (_sorted(w[0]), tuple(w[1])), tuple(w_shape[:2])
    if head not in (straight, swapped) or any(dim.offset for dim in op.rhs[:2]):
        return None
    source, low, high = _merged_padding(graph, node.inputs[0], 0.0)
    window = _window(op.lhs[2:], extents, fixed, x_shape[2:], low, high)
    taps = _taps(op.rhs[2:], op.lhs[2:], extents, fixed, w_shape[2:])
    if window is None or taps is None or tuple(window.sizes) != tuple(w_shape[2:]):
        return None
    order = [v for terms in (x[0], group, list(column), *x[2:]) for v, _ in terms if v < fixed]
    live = [v for v in range(fixed) if extents[v] != 1]
    space = op.spatial[fixed - (rank - 2) :]
    if order != live or space != _sizes(x_shape[2:], window):
        return None
    return Convolution(source, window, groups, inner, outer, head != straight, taps)


def find_transposed(graph: Graph, root: int) -> Transposed | None:
    """The transposed convolution whose phases end in this Reshape or Slice, or None.

    Position u = s*q + r of the phases takes the tap s*t + r of the weights at position q - t + T - 1 of the padded
    input, and so is position u + s * (T - 1 - low) of the whole transposed convolution."""
    last = graph.nodes[root]
    starts, merged = None, last
    if isinstance(last.op, g.Slice) and all(step == 1 for step in last.op.strides) and not any(last.op.starts[:2]):
        starts, merged = last.op.starts[2:], graph.nodes[last.inputs[0]]
    if not isinstance(merged.op, g.Reshape) or not isinstance(graph.nodes[merged.inputs[0]].op, g.Contract):
        return None
    product = graph.nodes[merged.inputs[0]]
    assert isinstance(product.op, g.Contract)
    op, extents, fixed = product.op, (*product.op.spatial, *product.op.reduced), len(product.op.spatial)
    rank = len(op.lhs) - 2
    first = fixed - 2 * rank
    if rank < 1 or first < 1 or len(op.rhs) != rank + 2 or 0 in extents or merged.type.shape[:2] != last.type.shape[:2]:
        return None
    head = [[_live(dim, extents) for dim in affine[:2]] for affine in (op.lhs, op.rhs)]
    group = [t for t in head[0][1] if t[0] < fixed]
    outer = math.prod(extents[v] for v, _ in head[1][1])
    groups = math.prod(extents[v] for v, _ in group)
    channels_last = [v for v in range(1, first) if extents[v] != 1]
    if head[0][1] != head[1][0] or [v for v, _ in (*group, *head[1][1])] != channels_last:
        return None
    if head[0][0] not in ((), ((0, 1),)) or any(c != 1 for _, c in head[1][1]) or len(group) > 1:
        return None
    source, low, high = _merged_padding(graph, product.inputs[0], 0.0)
    weights, _, beyond = _merged_padding(graph, product.inputs[1], 0.0)
    pad_low, pad_high, more, sizes, strides = [], [], [], [], []
    for i in range(rank):
        q, r = first + 2 * i, first + 2 * i + 1
        taps = [v for v, _ in _live(op.lhs[2 + i], extents) if v >= fixed]
        count, step = (extents[taps[0]] if taps else 1), extents[r]
        tap = taps[0] if taps else -1
        if _live(op.lhs[2 + i], extents) != _present(((q, 1), (tap, -1)), extents):
            return None
        if _live(op.rhs[2 + i], extents) != _present(((r, 1), (tap, step)), extents):
            return None
        if op.lhs[2 + i].offset != count - 1 or op.rhs[2 + i].offset:
            return None
        size, x = count * step - (beyond[i] if beyond else 0), graph.nodes[source].type.shape[2 + i]
        start = (starts[i] if starts else 0) + step * (count - 1 - (low[i] if low else 0))
        end = step * (x - 1) + size - start - last.type.shape[2 + i]
        if start < 0 or -end >= step or merged.type.shape[2 + i] != extents[q] * step:
            return None
        if x + (low[i] + high[i] if low else 0) != extents[q] + count - 1:
            return None
        pad_low.append(start)
        pad_high.append(max(0, end))
        more.append(max(0, -end))
        sizes.append(size)
        strides.append(step)
    if graph.nodes[weights].type.shape[1:] != (outer, *sizes):
        return None
    window = Window(tuple(sizes), tuple(strides), (1,) * rank, tuple(pad_low), tuple(pad_high))
    return Transposed(source, weights, window, groups, tuple(more))


def find_einsum(graph: Graph, value: int) -> Einsum | None:
    """The plain product that this Contract is once its windows are laid out, or None."""
    node = graph.nodes[value]
    assert isinstance(node.op, g.Contract)
    op, extents = node.op, (*node.op.spatial, *node.op.reduced)
    fixed = len(op.spatial)
    left, right = (
        _side(affine, graph.nodes[operand].type.shape, extents, fixed)
        for affine, operand in zip((op.lhs, op.rhs), node.inputs, strict=True)
    )
    lhs, rhs = left.variables, right.variables
    if any(extents[v] != 1 and v not in lhs and v not in rhs for v in range(len(extents))):
        return None
    once = len(set(lhs)) == len(lhs) and len(set(rhs)) == len(rhs)
    alone = any(v >= fixed and (v in lhs) != (v in rhs) for v in (*lhs, *rhs))
    batch = tuple(v for v in lhs if v in rhs and v < fixed)
    inner = tuple(v for v in lhs if v in rhs and v >= fixed)
    rows = tuple(v for v in lhs if v not in rhs and v < fixed)
    columns = tuple(v for v in rhs if v not in lhs and v < fixed)
    # An operand that is transposed anyway is brought into the order of the result, which then needs no transposition.
    if (*batch, *rows, *inner) != lhs:
        rows = tuple(sorted(rows))
    if (*batch, *inner, *columns) != rhs:
        columns = tuple(sorted(columns))
    return Einsum(left, right, batch, rows, columns, inner, is_product=once and not alone)


def _side(affine: AffineMap, shape: Shape, extents: Sequence[int], fixed: int) -> Side:
    variables: list[int] = []
    gathers: list[tuple[int, np.ndarray]] = []
    axis = 0
    for dim, size in zip(affine, shape, strict=True):
        terms = _live(dim, extents)
        single = dim.terms[0][0] if len(dim.terms) == 1 and dim.terms[0][1] == 1 else None
        if not terms and size == 1:
            # A spatial variable keeps its place, so that the shapes need no change.
            if single is not None and single < fixed and single not in variables:
                variables.append(single)
            axis += 1
        elif len(terms) == 1 and terms[0][1] == 1 and not dim.offset and size == extents[terms[0][0]]:
            variables.append(terms[0][0])
            axis += 1
        else:
            index = np.asarray(dim.offset, np.int64)
            for v, coefficient in terms:
                index = index[..., None] + coefficient * np.arange(extents[v])
            gathers.append((axis, index))
            variables.extend(v for v, _ in terms)
            axis += len(terms)
    return Side(tuple(variables), tuple(gathers))


def letters_of(variables: Sequence[int]) -> str:
    return "".join(_LETTERS[v] for v in variables)


@dataclass(frozen=True, slots=True)
class Pooling:
    """A ReduceWindow over the dimensions after the first two."""

    source: int
    window: Window


def find_pooling(graph: Graph, value: int, *, merge: float | None) -> Pooling | None:
    """The pooling that this ReduceWindow is, or None. merge: padding of this value goes into the operator."""
    node = graph.nodes[value]
    assert isinstance(node.op, g.ReduceWindow)
    op, extents = node.op, (*node.op.spatial, *node.op.reduced)
    shape, fixed = graph.nodes[node.inputs[0]].type.shape, len(op.spatial)
    if len(shape) < 3 or len(shape) != fixed or 0 in extents or any(dim.offset for dim in op.operand):
        return None
    for place in (0, 1):
        expected = ((place, 1),) if extents[place] != 1 else ()
        if _live(op.operand[place], extents) != expected or extents[place] != shape[place]:
            return None
    for place in range(2, fixed):
        if any(v < fixed and v != place for v, _ in _live(op.operand[place], extents)):
            return None
    source, low, high = (node.inputs[0], (), ()) if merge is None else _merged_padding(graph, node.inputs[0], merge)
    window = _window(op.operand[2:], extents, fixed, shape[2:], low, high)
    if window is None or math.prod(window.sizes) != math.prod(op.reduced):
        return None
    if op.spatial[2:] != _sizes(shape[2:], window):
        return None
    if any(pad >= size for pads in (window.low, window.high) for pad, size in zip(pads, window.sizes, strict=True)):
        return find_pooling(graph, value, merge=None) if merge is not None else None
    return Pooling(source, window)


def counts_of(window: Window, size: Shape, space: Shape) -> np.ndarray:
    """How many elements of each window are not padding."""
    counts = np.ones(space)
    for axis, extent in enumerate(space):
        start = np.arange(extent)[:, None] * window.strides[axis] - window.low[axis]
        place = start + np.arange(window.sizes[axis]) * window.dilations[axis]
        inside = ((place >= 0) & (place < size[axis])).sum(axis=1)
        counts *= inside.reshape([-1 if i == axis else 1 for i in range(len(space))])
    return counts


def _live(dim: AffineDim, extents: Sequence[int]) -> Terms:
    """The terms whose variable is not always 0."""
    return tuple((v, c) for v, c in dim.terms if extents[v] != 1)


def _present(terms: Terms, extents: Sequence[int]) -> Terms:
    return tuple((v, c) for v, c in terms if v >= 0 and extents[v] != 1)


def _sorted(terms: Sequence[tuple[int, int]]) -> Terms:
    return tuple(sorted(terms))


def _merged_padding(graph: Graph, value: int, fill: float) -> tuple[int, Shape, Shape]:
    """The value before its padding and how much there was, where an operator can take that over."""
    node = graph.nodes[value]
    match node.op:
        case g.Pad(low, high, interior, number) if (
            number == fill and not any(interior) and min((*low, *high)) >= 0 and not any((*low[:2], *high[:2]))
        ):
            return node.inputs[0], low[2:], high[2:]
    return value, (), ()


def _window(
    dims: AffineMap, extents: Sequence[int], fixed: int, padded: Shape, low: Shape, high: Shape
) -> Window | None:
    sizes, strides, dilations = [], [], []
    for dim, size in zip(dims, padded, strict=True):
        terms = _live(dim, extents)
        steps, taps = [t for t in terms if t[0] < fixed], [t for t in terms if t[0] >= fixed]
        if len(steps) > 1 or len(taps) > 1 or any(c < 1 for _, c in terms):
            return None
        # Of a single position the step is not known, and any that reaches beyond the end will do.
        strides.append(steps[0][1] if steps else max(1, size))
        sizes.append(extents[taps[0][0]] if taps else 1)
        dilations.append(taps[0][1] if taps else 1)
    none = (0,) * len(dims)
    return Window(tuple(sizes), tuple(strides), tuple(dilations), low or none, high or none)


def _taps(
    weights: AffineMap, operand: AffineMap, extents: Sequence[int], fixed: int, sizes: Shape
) -> tuple[int, ...] | None:
    """The dimensions of the weights that run backwards; None where they are not the taps of the window."""
    backwards = []
    for place, (w, x) in enumerate(zip(weights, operand, strict=True)):
        terms = _live(w, extents)
        taps = [v for v, _ in _live(x, extents) if v >= fixed]
        if [v for v, _ in terms] != taps:
            return None
        step = terms[0][1] if terms else 1
        if abs(step) != 1 or w.offset != (sizes[place] - 1 if step < 0 else 0):
            return None
        if step < 0:
            backwards.append(place)
    return tuple(backwards)


def _sizes(padded: Shape, window: Window) -> Shape:
    """How many windows fit into what is padded already."""
    return tuple(
        (n - d * (k - 1) - 1) // s + 1
        for n, k, s, d in zip(padded, window.sizes, window.strides, window.dilations, strict=True)
    )
