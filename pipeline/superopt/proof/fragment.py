"""The provable fragment: operations with an algebraic meaning, and at most one exponentiation on each path.

An unknown function (erf, log, a maximum) ends a path: what it gives is a new unknown, whatever it is given.
"""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.ir import graph as g
from pipeline.ir.graph import Graph
from pipeline.ir.graph_types import FLOATS, TO_BOOL
from pipeline.superopt.mugraph.graph import (
    Accumulate,
    BlockGraph,
    BlockNode,
    Fold,
    KernelNode,
    Map,
    MuGraph,
    RescaledSum,
    Running,
)
from pipeline.verification.field_algebra import UNKNOWN
from pipeline.verification.graph_algebra import unsupported

EXPONENTIALS = frozenset({"exp", "sigmoid", "tanh", "sinh", "cosh"})
NEW = UNKNOWN | TO_BOOL | {"max", "min"}
SECOND = "a second exponential on one path"


def beyond_fragment(spec: Graph, graph: MuGraph | None = None) -> tuple[str, ...]:
    """Why the two are not provable, each reason with its place; empty where they are in the fragment."""
    return (*unsupported(spec), *graph_exponentials(spec), *(mugraph_exponentials(graph) if graph else ()))


def graph_exponentials(graph: Graph) -> tuple[str, ...]:
    """The nodes of a graph that exponentiate what is made of an exponential."""
    found: list[str] = []
    lost: list[bool] = []  # whether the path to the value holds an exponentiation
    for number, node in enumerate(graph.nodes):
        before = any(lost[i] for i in node.inputs)
        match node.op:
            case g.Elementwise(fn):
                if fn in EXPONENTIALS and before:
                    found.append(f"node {number} ({node.name or fn}): {SECOND}")
                lost.append(_after(fn, before) and node.type.dtype in FLOATS)
            case g.Reduce(kind="max" | "min") | g.ReduceWindow(kind="max" | "min"):
                lost.append(False)
            case _:
                lost.append(before)
    return tuple(found)


def mugraph_exponentials(graph: MuGraph) -> tuple[str, ...]:
    """The nodes of a µGraph that exponentiate what is made of an exponential."""
    found: list[str] = []
    lost = [False] * len(graph.inputs)
    for number, kernel in enumerate(graph.nodes):
        operands = [lost[i] for i in kernel.inputs]
        if isinstance(kernel.op, BlockGraph):
            tiles, inside = _tiles(operands, kernel.op.nodes)
            found += [f"kernel {number}, {place}" for place in inside]
            lost += [tiles[out.value] and "max" not in out.omap for out in kernel.op.outputs]
        else:
            tiles, inside = _tiles(operands, (KernelNode(kernel.op, tuple(range(len(operands)))),))
            found += [f"kernel {number}: {SECOND}" for _ in inside]
            lost.append(tiles[-1])
    return tuple(found)


def _tiles(operands: Sequence[bool], nodes: Sequence[BlockNode | KernelNode]) -> tuple[list[bool], list[str]]:
    lost, found = list(operands), []
    for position, node in enumerate(nodes):
        before = [lost[i] for i in node.inputs]
        place = f"node {position} ({type(node.op).__name__}): {SECOND}"
        match node.op:
            case Map(fn):
                if fn in EXPONENTIALS and any(before):
                    found.append(place)
                lost.append(_after(fn, any(before)))
            case RescaledSum():
                if before[1]:  # it exponentiates the change of the maximum
                    found.append(place)
                lost.append(True)
            case Running() | Fold(kind="max" | "min") | Accumulate(kind="max" | "min"):
                lost.append(False)
            case _:
                lost.append(any(before))
    return lost, found


def _after(fn: str, before: bool) -> bool:
    return fn in EXPONENTIALS or (before and fn not in NEW)
