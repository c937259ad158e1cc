"""The rule that computes the same with less: algebra that is exact, element by element."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import assert_never

import numpy as np

from pipeline.ir import graph as g
from pipeline.ir.graph import DType, Graph, Node
from pipeline.ir.graph_rule import Rebuilder, rebuild, same_graph
from pipeline.ir.graph_types import FLOATS, INTEGERS, numpy_dtype

SIGNIFICAND = {"float64": 53, "float32": 24, "float16": 11, "bfloat16": 8}  # binary digits
EXPONENT = {"float64": 1024, "float32": 128, "float16": 16, "bfloat16": 128}  # first power of two that overflows
DEEP = 12  # operations up to which a sign is looked for


@dataclass(frozen=True, slots=True)
class Simplify:
    """Replace operations by cheaper ones with the same value, NaN and infinities included.

    pow(x, 2), pow(x, 3), pow(x, 0)    -> x * x, x * x * x, 1
    pow(x, -1)                         -> reciprocal(x)
    pow(x, 1/2), pow(x, -1/2)          -> sqrt(x), rsqrt(x)     where x cannot be negative: pow(-inf, 1/2) is inf
    1 / sqrt(x), reciprocal(sqrt(x))   -> rsqrt(x)
    neg(neg(x)), not(not(x))           -> x
    abs(neg(x)), abs(abs(x))           -> abs(x)
    max(max(x, c), d), min likewise    -> max(x, max(c, d))
    where(c, x, y)                     -> x, y where c is constant throughout; x where both are x
    cast(cast(x))                      -> one cast, or x, where the inner one loses nothing
    reduce over axes of extent 1       -> reshape
    slice(slice(x)), broadcast twice   -> once

    Operations on constants only are computed, and equal ones shared. Neutral operands (x * 1) are dropped.
    """

    rounds: int = 8

    def apply(self, graph: Graph) -> Graph:
        for _ in range(self.rounds):
            after = rebuild(graph, _replaced)
            if same_graph(graph, after):
                break
            graph = after
        return graph


def _replaced(b: Rebuilder, number: int, node: Node, inputs: tuple[int, ...]) -> int | None:
    del number
    match node.op:
        case g.Elementwise(fn):
            return _elementwise(b, fn, node, inputs)
        case g.Reduce(kind, axes, _):
            return _reduce(b, kind, axes, inputs[0])
        case g.Slice(starts, strides):
            inner = b.node(inputs[0])
            if not isinstance(inner.op, g.Slice):
                return None
            begin = tuple(f + start * s for f, s, start in zip(inner.op.starts, inner.op.strides, starts, strict=True))
            steps = tuple(s * step for s, step in zip(inner.op.strides, strides, strict=True))
            empty = 0 in node.type.shape
            return None if empty else b.add(g.Slice(begin, steps), inner.inputs[0], shape=node.type.shape)
        case g.Broadcast():
            inner = b.node(inputs[0])
            source = inner.inputs[0] if isinstance(inner.op, g.Broadcast) else inputs[0]
            return b.broadcast(source, node.type.shape)
        case g.Reshape():
            return b.reshape(inputs[0], node.type.shape)
        case g.Transpose(perm):
            return b.transpose(inputs[0], perm)
        case (
            g.Input() | g.Constant() | g.Contract() | g.ReduceWindow() | g.Pad() | g.Concat() | g.Gather() | g.Iota()
            | g.GatherElements() | g.GatherND() | g.ScatterElements() | g.ScatterND() | g.Scan() | g.TopK()
        ):  # fmt: skip
            return None
    assert_never(node.op)


def _elementwise(b: Rebuilder, fn: str, node: Node, inputs: tuple[int, ...]) -> int | None:
    x = inputs[0]
    inner = b.node(x)
    match fn:
        case "identity":
            return x
        case "neg" | "not" if inner.op == g.Elementwise(fn):
            return inner.inputs[0]
        case "abs" if inner.op in (g.Elementwise("neg"), g.Elementwise("abs")) and node.type.dtype in FLOATS:
            return b.elementwise("abs", inner.inputs[0])
        case "cast":
            return _cast(b, node, x)
        case "pow":
            return _power(b, node, inputs)
        case "reciprocal" if inner.op == g.Elementwise("sqrt"):
            return b.elementwise("rsqrt", inner.inputs[0])
        case "div" if _number(b, x) == 1 and b.node(inputs[1]).op == g.Elementwise("sqrt"):
            return _in_shape(b, b.elementwise("rsqrt", b.node(inputs[1]).inputs[0]), node)
        case "max" | "min":
            return _bound(b, fn, node, inputs)
        case "where":
            return _where(b, node, inputs)
        case "add" | "sub" | "mul" | "div":
            made = b.elementwise(fn, *inputs)  # drops neutral operands
            return made if b.type(made) == node.type else None
        case _:
            return None


def _number(b: Rebuilder, x: int) -> float | None:
    """The one number that a constant holds."""
    known = b.value_of(x)
    return float(known.reshape(())) if known is not None and known.size == 1 else None


def _in_shape(b: Rebuilder, x: int, node: Node) -> int | None:
    """The value, where it has the shape of the node: one of more dimensions may come from the operand that goes."""
    return x if b.shape(x) == node.type.shape else None


def _power(b: Rebuilder, node: Node, inputs: tuple[int, ...]) -> int | None:
    x, exponent = inputs[0], _number(b, inputs[1])
    if exponent is None or b.shape(x) != node.type.shape or node.type.dtype not in FLOATS:
        return None
    match exponent:
        case 0.0:
            return b.broadcast(b.scalar(1, x), node.type.shape)
        case 2.0:
            return b.elementwise("mul", x, x)
        case 3.0:
            return b.elementwise("mul", b.elementwise("mul", x, x), x)
        case -1.0:
            return b.elementwise("reciprocal", x)
        case 0.5 | -0.5 if _is_non_negative(b, x, DEEP):
            return b.elementwise("sqrt" if exponent > 0 else "rsqrt", x)
        case _:
            return None


def _is_non_negative(b: Rebuilder, x: int, depth: int) -> bool:
    """Is no element below zero, nor -0? NaN may be. Looks through at most so many operations."""
    known = b.value_of(x)
    if known is not None:
        return known.dtype.kind == "f" and not bool(np.signbit(known).any())
    node = b.node(x)

    def operands() -> bool:
        return depth > 0 and all(_is_non_negative(b, v, depth - 1) for v in node.inputs)

    match node.op:
        case g.Elementwise("exp" | "sigmoid" | "abs"):
            return True
        case g.Elementwise("mul") if node.inputs[0] == node.inputs[1]:
            return True
        case g.Elementwise("add" | "mul" | "div" | "sqrt" | "rsqrt" | "max" | "min" | "reciprocal"):
            return operands()
        case g.Reduce("sum" | "max" | "min" | "prod") | g.Reshape() | g.Transpose() | g.Broadcast() | g.Slice():
            return 0 not in b.shape(node.inputs[0]) and operands()
        case _:
            return False


def _bound(b: Rebuilder, fn: str, node: Node, inputs: tuple[int, ...]) -> int | None:
    """Two constant bounds on the same side are one."""
    x, c = inputs if b.value_of(inputs[1]) is not None else inputs[::-1]
    outer, inner = b.value_of(c), b.node(x)
    if outer is None or inner.op != g.Elementwise(fn):
        return None
    y, d = inner.inputs if b.value_of(inner.inputs[1]) is not None else inner.inputs[::-1]
    other = b.value_of(d)
    if other is None or b.shape(y) != node.type.shape:
        return None
    if math.prod(np.broadcast_shapes(outer.shape, other.shape)) > max(outer.size, other.size):
        return None
    return b.elementwise(fn, y, b.elementwise(fn, d, c))


def _where(b: Rebuilder, node: Node, inputs: tuple[int, ...]) -> int | None:
    condition, x, y = inputs
    known = b.value_of(condition)
    if known is not None and known.size and (known.all() or not known.any()):
        return b.broadcast(x if known.all() else y, node.type.shape)
    return b.broadcast(x, node.type.shape) if x == y else None


def _cast(b: Rebuilder, node: Node, x: int) -> int:
    inner = b.node(x)
    if inner.op == g.Elementwise("cast"):
        source = inner.inputs[0]
        if _is_exact(b.dtype(source), inner.type.dtype):
            x = source
    return b.cast(x, node.type.dtype)


def _is_exact(source: DType, target: DType) -> bool:
    """Does every value of the source have an equal one in the target?"""
    if source == target or source == "bool":
        return True
    if target == "bool":
        return False
    if source in FLOATS:
        return target in FLOATS and SIGNIFICAND[source] <= SIGNIFICAND[target] and EXPONENT[source] <= EXPONENT[target]
    assert source in INTEGERS
    low, high = (int(n) for n in (np.iinfo(numpy_dtype(source)).min, np.iinfo(numpy_dtype(source)).max))
    if target in FLOATS:
        digits = max(high.bit_length(), (-low - 1).bit_length())
        return digits <= SIGNIFICAND[target] and digits < EXPONENT[target]
    limits = np.iinfo(numpy_dtype(target))
    return int(limits.min) <= low and high <= int(limits.max)


def _reduce(b: Rebuilder, kind: str, axes: tuple[int, ...], x: int) -> int | None:
    shape = b.shape(x)
    if kind in ("argmax", "argmin") or all(shape[axis] != 1 for axis in axes):
        return None
    left = tuple(n for axis, n in enumerate(shape) if axis not in axes)
    wide = tuple(axis for axis in axes if shape[axis] != 1)
    return b.reshape(b.add(g.Reduce(kind, wide), x) if wide else x, left)
