"""Random feeds of a graph, each in the range that its use in the graph allows."""

from __future__ import annotations

import math

import numpy as np

from pipeline.frontend.workloads.stream import stream
from pipeline.ir import graph as g
from pipeline.ir.graph import Graph
from pipeline.ir.graph_types import FLOATS, numpy_dtype

ANY_INTEGER = 8  # integers that index nothing are below this


def inputs(graph: Graph, seed: int) -> dict[str, np.ndarray]:
    """One array for each input: standard normal; ids below the size that they index; masks of a row of 1, then 0.

    What is called a weight is scaled by the number of summands of a product with it, so that this keeps its size.
    """
    feeds = {}
    for number, node in enumerate(graph.nodes):
        if not isinstance(node.op, g.Input):
            continue
        name, shape, dtype = node.op.name, node.type.shape, numpy_dtype(node.type.dtype)
        rng = stream(seed, f"inputs/{name}")
        if node.type.dtype in FLOATS:
            fan_in = shape[-2] if "weight" in name.lower() and len(shape) > 1 else 1
            drawn = np.asarray(rng.standard_normal(shape))
            drawn /= math.sqrt(max(1, fan_in))
            feeds[name] = drawn.astype(dtype)
        elif "mask" in name.lower():
            feeds[name] = _mask(rng, shape).astype(dtype)
        elif node.type.dtype == "bool":
            feeds[name] = rng.integers(0, 2, shape).astype(dtype)
        else:
            feeds[name] = rng.integers(0, indexed_size(graph, number) or ANY_INTEGER, shape).astype(dtype)
    return feeds


def indexed_size(graph: Graph, value: int) -> int | None:
    """The smallest dimension that the elements of a value index, directly or through views and casts, else None."""
    sizes: list[int] = []
    reached = {value}
    for number, node in enumerate(graph.nodes):
        used = reached.intersection(node.inputs)
        if not used:
            continue
        match node.op:
            case g.Gather(axis) | g.GatherElements(axis) | g.ScatterElements(axis, _):
                if node.inputs[1] in used:
                    sizes.append(graph.nodes[node.inputs[0]].type.shape[axis])
            case g.Elementwise("cast") | g.Reshape() | g.Transpose() | g.Slice() | g.Broadcast() | g.Concat():
                reached.add(number)
            case _:
                pass
    return max(1, min(sizes)) if sizes else None


def _mask(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Ones up to a random length of at least half, then zeros, along the last axis."""
    if not shape:
        return np.ones(())
    length = shape[-1] - rng.integers(0, shape[-1] // 2 + 1, (*shape[:-1], 1))
    return np.arange(shape[-1]) < length
