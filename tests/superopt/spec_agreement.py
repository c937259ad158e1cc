"""A graph and its specification on the same data in memory."""

from __future__ import annotations

import numpy as np

from pipeline.ir.evaluate import evaluate
from pipeline.ir.graph import AffineMap, Graph, Input
from pipeline.superopt.spec import Labels, Spec, SpecInput, spec_graph


def addresses(dims: AffineMap, labels: Labels, extents: tuple[int, ...]) -> tuple[np.ndarray, ...]:
    """For each dimension in memory its index, over the labels."""
    grid = np.indices([extents[label] for label in labels])
    return tuple(
        np.full(grid.shape[1:], dim.offset, np.int64) + sum(c * grid[labels.index(v)] for v, c in dim.terms)
        for dim in dims
    )


def seen(tensor: SpecInput, array: np.ndarray, extents: tuple[int, ...]) -> np.ndarray:
    """A tensor in memory as the specification reads it: one dimension for each label."""
    return array[addresses(tensor.access, tensor.labels, extents)]


def agrees(graph: Graph, spec: Spec, seed: int = 0) -> None:
    """The specification at its full extents computes what the graph does, at each place in memory."""
    rng = np.random.default_rng(seed)
    feeds: dict[str, np.ndarray] = {}
    for node in graph.nodes:
        if isinstance(node.op, Input):
            drawn = rng.normal(size=node.type.shape)
            feeds[node.op.name] = drawn > 0 if node.type.dtype == "bool" else drawn.astype(np.float32)
    arrays = list(feeds.values())
    (wanted,) = evaluate(graph, feeds).values()
    views = {one.name: seen(one, arrays[one.source], spec.extents) for one in spec.inputs}
    (found,) = evaluate(spec_graph(spec), views).values()
    got = np.full(spec.shape, np.nan)
    got[addresses(spec.store, spec.labels(spec.output), spec.extents)] = found
    np.testing.assert_allclose(got, wanted, rtol=1e-9, atol=1e-9)
