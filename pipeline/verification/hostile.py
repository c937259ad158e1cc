"""Feeds for a graph: random ones, and hostile ones that a careless program gets wrong.

Integer inputs that choose elements of a tensor (token ids) are drawn from its range; others are 0 or 1 (masks).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from pipeline.errors import UserError, listed
from pipeline.ir import graph as g
from pipeline.ir.graph import Graph
from pipeline.ir.graph_types import FLOATS, numpy_dtype

Feeds = dict[str, np.ndarray]
_Draw = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]


def random_feeds(graph: Graph, rng: np.random.Generator) -> Feeds:
    """Standard normal numbers; valid indices."""
    return _feeds(graph, rng, None)


def hostile_feeds(
    graph: Graph, rng: np.random.Generator, kinds: Sequence[str] | None = None
) -> Iterator[tuple[str, Feeds]]:
    """One set of feeds for each kind of trouble, with its name; nothing if the graph has no floating input.

    kinds  some of `HOSTILE_KINDS`; None is all
    """
    unknown = set(kinds or ()) - set(_KINDS)
    if unknown:
        raise UserError("no such kind of hostile feeds", where=listed(unknown), todo=f"The kinds are {listed(_KINDS)}")
    if any(node.type.dtype in FLOATS for _, node in _inputs(graph)):
        for name in _KINDS if kinds is None else kinds:
            yield name, _feeds(graph, rng, _KINDS[name])


def index_limits(graph: Graph) -> dict[str, int]:
    """For each integer input that is used as an index: the smallest size of the axes that it indexes."""
    limits: dict[int, int] = {}

    def limit(value: int, size: int) -> None:
        limits[value] = min(size, limits.get(value, size))

    for number in range(len(graph.nodes) - 1, -1, -1):
        node = graph.nodes[number]
        shapes = [graph.nodes[i].type.shape for i in node.inputs]
        match node.op:
            case g.Gather(axis) | g.GatherElements(axis) | g.ScatterElements(axis, _):
                limit(node.inputs[1], shapes[0][axis])
            case g.GatherND(batch_dims):
                depth = shapes[1][-1]
                limit(node.inputs[1], min(shapes[0][batch_dims : batch_dims + depth], default=1))
            case g.ScatterND():
                limit(node.inputs[1], min(shapes[0][: shapes[1][-1]], default=1))
            case g.Reshape() | g.Transpose(_) | g.Slice(_, _) | g.Broadcast() | g.Concat(_) | g.Elementwise("cast"):
                if number in limits:
                    for operand in node.inputs:
                        limit(operand, limits[number])
            case _:
                pass
    return {name: limits[number] for name, number in _numbers(graph).items() if number in limits}


def _numbers(graph: Graph) -> dict[str, int]:
    return {node.op.name: i for i, node in enumerate(graph.nodes) if isinstance(node.op, g.Input)}


def _inputs(graph: Graph) -> list[tuple[str, g.Node]]:
    return [(name, graph.nodes[number]) for name, number in _numbers(graph).items()]


def _feeds(graph: Graph, rng: np.random.Generator, draw: _Draw | None) -> Feeds:
    """draw: floating numbers, by their shape; None: standard normal ones, in no more digits than the dtype has."""
    limits = index_limits(graph)
    feeds: Feeds = {}
    for name, node in _inputs(graph):
        dtype: np.dtype[Any] = numpy_dtype(node.type.dtype)
        shape = node.type.shape
        if node.type.dtype in FLOATS:
            with np.errstate(all="ignore"):
                work = np.float64 if dtype == np.float64 else np.float32
                made = rng.standard_normal(shape, work) if draw is None else draw(rng, shape)
                feeds[name] = np.asarray(made).astype(dtype, copy=False)
        else:
            top = min(limits.get(name, 2), 2 if dtype == np.bool_ else np.iinfo(dtype).max)
            feeds[name] = rng.integers(0, max(1, top), shape).astype(dtype)
    return feeds


def _large(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.choice([-80.0, 80.0, 0.0], shape) + rng.standard_normal(shape)


def _flat(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Nearly equal numbers far from zero: a variance from the difference of two means is noise here."""
    return 3.0 + 1e-3 * rng.standard_normal(shape)


def _zeros(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.choice([0.0, -0.0], shape)


def _small(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Around the end of the range of normal numbers, in float32."""
    return rng.standard_normal(shape) * 2.0 ** rng.integers(-145, -120, shape)


def _with(*planted: float) -> _Draw:
    def draw(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        out = np.asarray(rng.standard_normal(shape))
        flat = out.reshape(-1)
        if flat.size:
            flat[rng.integers(0, flat.size, max(1, flat.size // 50))] = rng.choice(planted)
        return out

    return draw


_KINDS: dict[str, _Draw] = {
    "large": _large,
    "tiny variance": _flat,
    "signed zeros": _zeros,
    "subnormal": _small,
    "infinities": _with(np.inf, -np.inf),
    "NaN": _with(np.nan),
    "ties": lambda rng, shape: rng.integers(-2, 3, shape).astype(np.float64),
    "wide range": lambda rng, shape: rng.standard_normal(shape) * 10.0 ** rng.integers(-6, 7, shape),
}
HOSTILE_KINDS = tuple(_KINDS)
