"""What is legal in a graph: a tuple of small named checks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pipeline.errors import CheckError
from pipeline.ir import graph as g
from pipeline.ir.graph import Graph
from pipeline.ir.graph_constant import constant_key
from pipeline.ir.graph_types import infer, out_of_bounds, type_of


@dataclass(frozen=True, slots=True)
class GraphCheck:
    """One invariant: its name, and the reasons why a graph violates it."""

    name: str
    violations: Callable[[Graph], Iterator[str]]


def check(graph: Graph) -> None:
    """Raises CheckError for the first check that does not hold; later ones rely on earlier ones."""
    for one in CHECKS:
        reason = next(one.violations(graph), None)
        if reason is not None:
            raise CheckError(f"the graph is not legal: {one.name}", why=reason)


def _operands_come_before(graph: Graph) -> Iterator[str]:
    for number, node in enumerate(graph.nodes):
        for operand in node.inputs:
            if not 0 <= operand < number:
                yield f"%{number} uses %{operand}"


def _outputs_exist(graph: Graph) -> Iterator[str]:
    for name, value in graph.outputs:
        if not 0 <= value < len(graph.nodes):
            yield f"output {name} is %{value} of {len(graph.nodes)} values"


def _names_are_unique(graph: Graph) -> Iterator[str]:
    inputs = [node.op.name for node in graph.nodes if isinstance(node.op, g.Input)]
    for kind, names in (("inputs", inputs), ("outputs", [name for name, _ in graph.outputs])):
        for name, count in Counter(names).items():
            if count > 1:
                yield f"{count} {kind} are called {name!r}"


def _constants_are_present(graph: Graph) -> Iterator[str]:
    for number, node in enumerate(graph.nodes):
        if isinstance(node.op, g.Constant):
            array = graph.constants.get(node.op.key)
            if array is None:
                yield f"%{number} names {node.op.key}, which is not there"
            elif type_of(array) != node.type:
                yield f"%{number} is {node.type}, its data are {type_of(array)}"


def _constants_are_named_by_content(graph: Graph) -> Iterator[str]:
    for key, array in graph.constants.items():
        if key != constant_key(array):
            yield f"{key} holds the data of {constant_key(array)}"


def _types_are_as_inferred(graph: Graph) -> Iterator[str]:
    for number, node in enumerate(graph.nodes):
        try:
            kind = infer(
                node.op, [graph.nodes[v].type for v in node.inputs], shape=node.type.shape, dtype=node.type.dtype
            )
        except CheckError as error:
            yield f"%{number}: {error}"
            continue
        if kind != node.type:
            yield f"%{number} is {node.type}, its operands make {kind}"


def _indices_are_in_bounds(graph: Graph) -> Iterator[str]:
    for number, node in enumerate(graph.nodes):
        reason = out_of_bounds(node.op, [graph.nodes[v].type for v in node.inputs])
        if reason:
            yield f"%{number}: {reason}"


CHECKS = (
    GraphCheck("operands come before their uses", _operands_come_before),
    GraphCheck("outputs exist", _outputs_exist),
    GraphCheck("names are unique", _names_are_unique),
    GraphCheck("constants are present", _constants_are_present),
    GraphCheck("constants are named by their content", _constants_are_named_by_content),
    GraphCheck("types are as inferred", _types_are_as_inferred),
    GraphCheck("indices are in bounds", _indices_are_in_bounds),
)
