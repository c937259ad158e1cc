"""The rule that multiplies constant factors into constant weights."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from pipeline.ir import graph as g
from pipeline.ir.evaluate_product import window
from pipeline.ir.graph import AffineMap, Graph, Node, Shape
from pipeline.ir.graph_rule import Rebuilder, rebuild, same_graph, use_counts
from rules.graph.reshape_groups import before_reshape
from rules.graph.view_motion import settle

MODERATE = 4096.0  # a factor beyond that may be what keeps a sum from overflowing
SCALED = ("float32", "float64")  # a half has no digits to lose to a second rounding


@dataclass(frozen=True, slots=True)
class FoldScale:
    """Fold factors of a product into its constant operand, and join chains of constant factors and summands.

    contract(x, W) * s           -> contract(x, W * s)                  s varies along variables of W only
    (contract(x, W) + c) * s     -> contract(x, W * s) + c * s
    contract(x * c, y)           -> contract(x, y) * c                  one moderate number c, maybe views in between
    (x * c) * d, (x + c) + d     -> x * (c * d), x + (c + d)
    x - c, x / c                 -> x + -c, x * (1 / c)                 exact: 1 / c only of powers of two

    W * s and the like are computed in float64 and rounded once. So each weight is off by half an ulp at most, as the
    product by s was before: the error stays within the bound that the accumulation has anyhow. Not where the result
    of the product is used elsewhere too, in halves, where a weight would overflow or become subnormal, nor where c +
    d cancels.
    """

    rounds: int = 8

    def apply(self, graph: Graph) -> Graph:
        for _ in range(self.rounds):
            plan = _Plan.of(graph)
            after = rebuild(graph, plan.replaced)
            if same_graph(graph, after):
                break
            graph = after
        return graph


@dataclass(frozen=True, slots=True)
class _Plan:
    """What becomes of the nodes: the factor of each product, the summands that are scaled too, the factors that go.

    products   Contract -> (the operand that is a constant, its new data)
    summands   add or sub -> the scaled constant
    deferred   Contract -> the number that its result is multiplied by
    gone       mul or div -> the operand that stays
    """

    graph: Graph
    products: dict[int, tuple[int, np.ndarray]] = field(default_factory=dict)
    summands: dict[int, np.ndarray] = field(default_factory=dict)
    deferred: dict[int, float] = field(default_factory=dict)
    gone: dict[int, int] = field(default_factory=dict)

    @staticmethod
    def of(graph: Graph) -> _Plan:
        plan = _Plan(graph)
        uses = use_counts(graph)
        readers = {v: number for number, node in enumerate(graph.nodes) for v in node.inputs}
        for number, node in enumerate(graph.nodes):
            found = _constant_last(graph, node, ("mul", "div"))
            if found is None or not uses[number] or node.type.dtype not in SCALED:
                continue
            x, c = found
            if graph.nodes[x].type.shape != node.type.shape:
                continue
            factor = graph.constants[c].astype(np.float64)
            with np.errstate(all="ignore"):
                factor = 1 / factor if node.op == g.Elementwise("div") else factor
            if np.isfinite(factor).all():
                plan.scale(number, x, factor, uses)
                if number not in plan.gone and factor.size == 1:
                    single = float(factor.reshape(()))
                    if 1 / MODERATE <= abs(single) <= MODERATE:
                        plan.defer(number, x, single, uses, readers)
        return plan

    def defer(self, number: int, x: int, factor: float, uses: dict[int, int], readers: dict[int, int]) -> None:
        """Plans to multiply the one product that reads the scaled operand instead."""
        value, kind = number, self.graph.nodes[number].type
        while uses[value] == 1 and value in readers:
            value = readers[value]
            node = self.graph.nodes[value]
            match node.op:
                case g.Contract():
                    whole = factor * self.deferred.get(value, 1.0)
                    if (
                        node.type.dtype == kind.dtype
                        and _rounded(np.array(whole), np.zeros((), kind.dtype)) is not None
                    ):
                        self.deferred[value] = whole
                        self.gone[number] = x
                    return
                case g.Reshape() | g.Transpose() | g.Slice() | g.Broadcast():
                    continue
                case _:
                    return

    def scale(self, number: int, x: int, factor: np.ndarray, uses: dict[int, int]) -> None:
        """Plans to scale the product above x, if nothing stands against it."""
        graph = self.graph
        summands: dict[int, np.ndarray] = {}
        value = x
        while uses[value] == 1 and value not in self.products and value not in self.summands:
            node = graph.nodes[value]
            match node.op:
                case g.Contract():
                    scaled = _scaled_operand(graph, node, factor)
                    if scaled is not None:
                        self.products[value] = scaled
                        self.summands.update(summands)
                        self.gone[number] = x
                    return
                case g.Reshape():
                    source = graph.nodes[node.inputs[0]].type.shape
                    shape = before_reshape(source, node.type.shape, factor.shape)
                    if shape is None:
                        return
                    factor, value = factor.reshape(shape), node.inputs[0]
                case g.Elementwise():
                    found = _constant_last(graph, node, ("add", "sub"))
                    if found is None or graph.nodes[found[0]].type.shape != node.type.shape:
                        return
                    summand = graph.constants[found[1]]
                    if math.prod(np.broadcast_shapes(summand.shape, factor.shape)) > max(summand.size, factor.size):
                        return
                    rounded = _rounded(summand.astype(np.float64) * factor, summand)
                    if rounded is None:
                        return
                    summands[value], value = rounded, found[0]
                case _:
                    return

    def replaced(self, b: Rebuilder, number: int, node: Node, inputs: tuple[int, ...]) -> int | None:
        if number in self.products or number in self.deferred:
            if number in self.products:
                operand, data = self.products[number]
                inputs = tuple(b.constant(data) if i == operand else x for i, x in enumerate(inputs))
            made = b.add(node.op, *inputs, dtype=node.type.dtype)
            factor = self.deferred.get(number, 1.0)
            return made if factor == 1.0 else b.elementwise("mul", made, b.scalar(factor, made))
        if number in self.summands:
            found = _constant_last(self.graph, node, ("add", "sub"))
            assert found is not None and isinstance(node.op, g.Elementwise)
            x = inputs[node.inputs.index(found[0])]
            return b.add(node.op, x, b.constant(self.summands[number]))
        if number in self.gone:
            return inputs[node.inputs.index(self.gone[number])]
        joined = _joined(b, node, inputs)
        return settle(b, node, inputs) if joined is None else joined


def _constant_last(graph: Graph, node: Node, fns: tuple[str, ...]) -> tuple[int, str] | None:
    """(the operand, the key of the constant) of a function of one constant; x - c and x / c, but not c - x."""
    if not isinstance(node.op, g.Elementwise) or node.op.fn not in fns:
        return None
    first, second = (graph.nodes[v] for v in node.inputs)
    if isinstance(second.op, g.Constant):
        return node.inputs[0], second.op.key
    if isinstance(first.op, g.Constant) and node.op.fn in ("add", "mul"):
        return node.inputs[1], first.op.key
    return None


def _rounded(wide: np.ndarray, like: np.ndarray) -> np.ndarray | None:
    """Rounded to the dtype; None where an element overflows or loses digits at the lower end."""
    with np.errstate(all="ignore"):
        narrow = wide.astype(like.dtype)
    small = (np.abs(wide) < np.finfo(like.dtype).tiny) & (wide != 0)
    return None if not np.isfinite(narrow).all() or small.any() else narrow


def _scaled_operand(graph: Graph, node: Node, factor: np.ndarray) -> tuple[int, np.ndarray] | None:
    """(which operand, its data times the factor), where the factor varies along variables of a constant only."""
    assert isinstance(node.op, g.Contract)
    full = factor.reshape((1,) * (len(node.op.spatial) - factor.ndim) + factor.shape)
    for position in (1, 0):
        source = graph.nodes[node.inputs[position]]
        if isinstance(source.op, g.Constant) and source.type.dtype == node.type.dtype:
            data = graph.constants[source.op.key]
            affine = (node.op.lhs, node.op.rhs)[position]
            by_element = _by_element(full, affine, data.shape, (*node.op.spatial, *node.op.reduced))
            rounded = None if by_element is None else _rounded(data.astype(np.float64) * by_element, data)
            if rounded is not None:
                return position, rounded
    return None


def _by_element(factor: np.ndarray, affine: AffineMap, shape: Shape, extents: Shape) -> np.ndarray | None:
    """The factor of each element of the operand, or None where an element is read with different factors."""
    along = [v for v, n in enumerate(factor.shape) if n != 1]
    if not along:
        return factor.reshape(())
    by_element = np.full(shape, np.nan)
    variables = sorted({v for dim in affine for v, _ in dim.terms})
    if not set(along) <= set(variables):
        return None
    plain = {dim.terms[0][0]: i for i, dim in enumerate(affine) if len(dim.terms) == 1}
    if all(v in plain and affine[plain[v]].terms[0][1] == 1 and not affine[plain[v]].offset
           and shape[plain[v]] == extents[v] for v in along):  # fmt: skip
        # each variable has a dimension of its own
        axes = sorted(along, key=lambda v: plain[v])
        ordered = factor.squeeze(tuple(v for v in range(factor.ndim) if v not in along))
        ordered = ordered.transpose([along.index(v) for v in axes])
        return ordered.reshape([shape[i] if i in {plain[v] for v in along} else 1 for i in range(len(shape))])
    if math.prod(extents[v] for v in variables) > math.prod(shape):
        return None  # an element is read more than once
    places = window(np.arange(by_element.size).reshape(shape), affine, extents)
    places = places[tuple(slice(None) if v in variables else 0 for v in range(len(extents)))]
    if np.unique(places).size != places.size:
        return None
    lifted = factor.reshape((*factor.shape, *(1,) * (len(extents) - factor.ndim)))
    lifted = lifted[tuple(slice(None) if v in variables else 0 for v in range(len(extents)))]
    by_element.reshape(-1)[places] = np.broadcast_to(lifted, places.shape)
    return np.where(np.isnan(by_element), 1.0, by_element)


def _joined(b: Rebuilder, node: Node, inputs: tuple[int, ...]) -> int | None:
    """Constants of a chain of sums or of products joined; x - c and x / c as sums and products."""
    if not isinstance(node.op, g.Elementwise) or node.op.fn not in ("add", "sub", "mul", "div"):
        return None
    x, c = inputs
    if b.value_of(c) is None and node.op.fn in ("add", "mul"):
        x, c = c, x
    known = b.value_of(c)
    if known is None or b.value_of(x) is not None:
        return None
    match node.op.fn:
        case "sub":
            return b.elementwise("add", x, b.constant(np.negative(known)))
        case "div":
            reciprocal = _exact_reciprocal(known)
            return None if reciprocal is None else b.elementwise("mul", x, b.constant(reciprocal))
    inner = b.node(x)
    if inner.op != node.op or node.type.dtype not in SCALED:
        return None
    y, d = inner.inputs
    if b.value_of(d) is None:
        y, d = d, y
    other = b.value_of(d)
    if other is None or b.shape(y) != node.type.shape:
        return None
    if math.prod(np.broadcast_shapes(known.shape, other.shape)) > max(known.size, other.size):
        return None
    first, second = known.astype(np.float64), other.astype(np.float64)
    with np.errstate(all="ignore"):
        joint = first + second if node.op.fn == "add" else first * second
    if not np.isfinite(joint).all():
        return None
    if node.op.fn == "add" and (np.abs(joint) < np.maximum(np.abs(first), np.abs(second)) / 2).any():
        return None
    rounded = _rounded(joint, known)
    return None if rounded is None else b.elementwise(node.op.fn, y, b.constant(rounded))


def _exact_reciprocal(known: np.ndarray) -> np.ndarray | None:
    """1 / c where every c is a power of two whose reciprocal is normal."""
    if known.dtype not in (np.float32, np.float64):
        return None
    with np.errstate(all="ignore"):
        fraction, _ = np.frexp(known)
        reciprocal = (1 / known).astype(known.dtype)
    normal = np.isfinite(reciprocal) & (np.abs(reciprocal) >= np.finfo(known.dtype).tiny)
    return reciprocal if bool((normal & (np.abs(fraction) == 0.5)).all()) else None
