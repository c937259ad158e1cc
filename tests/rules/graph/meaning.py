"""What every graph rule is held to: the same interface, the same values in float64, nothing left to do afterwards."""

from __future__ import annotations

import numpy as np

from pipeline.ir import graph as g
from pipeline.ir.evaluate import evaluate
from pipeline.ir.graph import Graph
from pipeline.ir.graph_check import check
from pipeline.ir.graph_rule import GraphRule, same_graph
from pipeline.ir.graph_text import to_text
from pipeline.ir.graph_types import FLOATS, numpy_dtype


def feeds_of(graph: Graph, seed: int = 0) -> dict[str, np.ndarray]:
    """Normal floats and small integers for every input."""
    rng = np.random.default_rng(seed)
    feeds: dict[str, np.ndarray] = {}
    for node in graph.nodes:
        if isinstance(node.op, g.Input):
            kind, shape = numpy_dtype(node.type.dtype), node.type.shape
            drawn = rng.normal(size=shape) if node.type.dtype in FLOATS else rng.integers(0, 2, shape)
            feeds[node.op.name] = np.asarray(drawn).astype(kind)
    return feeds


def interface(graph: Graph) -> list[object]:
    """Inputs with their types, and outputs with theirs."""
    inputs = [(node.op.name, node.type) for node in graph.nodes if isinstance(node.op, g.Input)]
    return [*inputs, *((name, graph.nodes[value].type) for name, value in graph.outputs)]


def applied(rule: GraphRule, graph: Graph, *, relative: float = 1e-10) -> Graph:
    """The graph after the rule, which has kept the meaning and has nothing left to do.

    relative  to the largest magnitude of an output: constants that a rule rounds anew differ by their dtype's rounding
    """
    before = to_text(graph)
    after = rule.apply(graph)
    assert to_text(graph) == before, "a rule changes no graph, it makes another"
    check(after)
    assert interface(after) == interface(graph)
    assert same_graph(rule.apply(after), after), "applied again, the rule finds more"
    feeds = feeds_of(graph)
    with np.errstate(all="ignore"):
        expected, got = evaluate(graph, feeds), evaluate(after, feeds)
    for name, value in expected.items():
        wide = value.astype(np.float64)
        finite = np.abs(wide[np.isfinite(wide)])
        bound = relative * max(1.0, float(finite.max(initial=0)))
        np.testing.assert_allclose(got[name].astype(np.float64), wide, rtol=relative, atol=bound, err_msg=name)
    return after


def operations(graph: Graph) -> list[str]:
    """The names of what is computed, in order: no inputs, no constants, no reshapes, which cost nothing."""
    free = (g.Input, g.Constant, g.Reshape)
    return [
        node.op.fn if isinstance(node.op, g.Elementwise) else type(node.op).__name__
        for node in graph.nodes if not isinstance(node.op, free)
    ]  # fmt: skip


def line(graph: Graph, kind: str, which: int = 0) -> str:
    """The text of the which-th node of that kind, without its name."""
    found = [text for text in to_text(graph, names=False).splitlines() if f" = {kind}" in text]
    return found[which].partition(" = ")[2]
