"""The rule that runs convolution nets in channels-last order."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.ir import graph as g
from pipeline.ir.graph import Graph, Node
from pipeline.ir.graph_rule import Rebuilder, rebuild
from rules.graph.access import Access
from rules.graph.view_motion import Perm, inverse, settle, transposed


@dataclass(frozen=True, slots=True)
class ChannelsLast:
    """Convolutions read N, space…, C and give N, space…, C; what lies between them follows.

    contract(x[n, c, h, w], W) over (n, co, h, w; …)
        -> transpose(contract(transpose(x), W) over (n, h, w, co; …, ci))

    The output channel, then, is what is vectorized, and the sum runs over numbers that lie one after another.

    The transposes move down past elementwise operations, padding, pooling, concatenations, slices and reductions, and
    cancel at the next convolution. What is left: one at an input of the model (which `AbsorbViews` lets the first
    convolution read through), one at an image that the model gives back, and channel shuffles.

    A convolution is a product with a window (an index of two or more terms, one of them a position), or one of
    constant weights whose single output channel comes before positions. Legal always; a product that is in this order
    already is left.
    """

    def apply(self, graph: Graph) -> Graph:
        return rebuild(graph, _replaced)


def _replaced(b: Rebuilder, number: int, node: Node, inputs: tuple[int, ...]) -> int | None:
    del number
    match node.op:
        case g.Contract():
            return _convolution(b, node, node.op, inputs)
        case g.ReduceWindow():
            return _pooling(b, node.op, inputs[0])
        case _:
            return settle(b, node, inputs)


def _convolution(b: Rebuilder, node: Node, op: g.Contract, inputs: tuple[int, ...]) -> int | None:
    order = _order(op, b.value_of(inputs[0]) is not None, b.value_of(inputs[1]) is not None)
    if order is None or order == tuple(range(len(order))):
        return None
    x, w = inputs
    channels = {v for v in order if v not in _positions(op)} | set(range(len(op.spatial), _count(op)))
    last = [i for i, dim in enumerate(op.lhs) if dim.terms and {v for v, _ in dim.terms} <= channels]
    access = Access.of(op)
    perm = (*(i for i in range(len(op.lhs)) if i not in last), *last)
    lhs, rhs = tuple(op.lhs[i] for i in perm), op.rhs
    x = transposed(b, x, perm)
    if b.value_of(w) is not None and any({order[-1]} == {v for v, _ in dim.terms} for dim in op.lhs):
        # each channel for itself: its weights are read as a vector too
        back = sorted(range(len(rhs)), key=lambda i: order[-1] in {v for v, _ in rhs[i].terms})
        w, rhs = transposed(b, w, tuple(back)), tuple(rhs[i] for i in back)
    taps = _taps(op)
    reduced = sorted(range(len(op.spatial), _count(op)), key=lambda v: v not in taps)
    spatial = tuple(access.spatial[v] for v in order)
    moved = Access(spatial, tuple((v,) for v in reduced), access.extents, (lhs, rhs)).operation(op)
    return transposed(b, b.add(moved, x, w, dtype=node.type.dtype), inverse(order))


def _count(op: g.Contract) -> int:
    return len(op.spatial) + len(op.reduced)


def _positions(op: g.Contract) -> frozenset[int]:
    """Spatial variables that are places: those of the activation only, and phases, which index windows with taps."""
    count = len(op.spatial)
    weights = {v for dim in op.rhs for v, _ in dim.terms}
    here = {v for dim in op.lhs for v, _ in dim.terms if v < count and v not in weights}
    taps = _taps(op)
    phases = {v for dim in op.rhs if taps & {u for u, _ in dim.terms} for v, _ in dim.terms if v < count}
    channels_first = bool(op.lhs) and any(v in here for v, _ in op.lhs[-1].terms)
    if channels_first and not taps:
        # a window as large as its stride has one tap, which is no variable: its phases follow their places
        outer = [v for v in sorted(weights - here) if v < count and not any(v == u for d in op.lhs for u, _ in d.terms)]
        phases |= {v for v in outer[1:] if v - 1 in here}
    return frozenset(here | phases)


def _taps(op: g.Contract) -> frozenset[int]:
    """Reduced variables that run over a window: they share an index with a place."""
    count = len(op.spatial)
    weights = {v for dim in op.rhs for v, _ in dim.terms}
    windows = [dim for dim in op.lhs if any(v < count and v not in weights for v, _ in dim.terms)]
    return frozenset(v for dim in windows for v, _ in dim.terms if v >= count)


def _order(op: g.Contract, known_lhs: bool, known_rhs: bool) -> Perm | None:
    """Positions, groups, channels of a group; None where it is no convolution."""
    count = len(op.spatial)
    positions = _positions(op)
    of_lhs = {v for dim in op.lhs for v, _ in dim.terms}
    groups = [v for v in range(count) if v not in positions and v in of_lhs]
    outer = [v for v in range(count) if v not in positions and v not in of_lhs]
    windowed = any(len(dim.terms) > 1 and any(v in positions for v, _ in dim.terms) for dim in op.lhs)
    simple = known_rhs and len(outer) <= 1 and len(groups) <= 1
    if known_lhs or not (windowed or simple) or not outer + groups or not positions:
        return None
    return (*(v for v in range(count) if v in positions), *groups, *outer)


def _pooling(b: Rebuilder, op: g.ReduceWindow, x: int) -> int | None:
    """The window in the order of what was transposed; the result is transposed instead."""
    source = b.node(x)
    if not isinstance(source.op, g.Transpose):
        return None
    back = inverse(source.op.perm)
    dims = tuple(op.operand[p] for p in back)
    count = len(op.spatial)
    order = tuple(dict.fromkeys(v for dim in dims for v, _ in dim.terms if v < count))
    if sorted(order) != list(range(count)):
        return None
    access = Access.of(op)
    spatial = tuple(access.spatial[v] for v in order)
    moved = Access(spatial, access.reduced, access.extents, (dims,)).operation(op)
    return transposed(b, b.add(moved, source.inputs[0]), inverse(order))
