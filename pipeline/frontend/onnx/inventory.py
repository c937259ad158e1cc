"""The operators that a model uses and this front end lacks, and the nodes that are not valid, gathered over the whole
model before anything is built."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from onnx import FunctionProto, NodeProto

from pipeline.errors import ModelError
from pipeline.frontend.onnx.liveness import subgraphs
from pipeline.frontend.onnx.schemas import has_meaning, operator_of
from pipeline.frontend.onnx.validity import TODO, faults_of

NAMES_SHOWN = 4
FAULTS_SHOWN = 6


@dataclass(slots=True)
class Inventory:
    """Unsupported operators with the names of the nodes; those in branches count only where a branch is taken.

    faults  of the nodes that ONNX does not allow, in words
    """

    functions: Mapping[tuple[str, str, str], FunctionProto]
    found: dict[str, list[str]] = field(default_factory=dict)
    in_branches: dict[str, list[str]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    _seen: set[tuple[str, str, str]] = field(default_factory=set)

    def scan(self, nodes: Iterable[NodeProto], opsets: Mapping[str, int], branch: bool = False) -> None:
        """Walks nodes, the functions that they call and their subgraphs."""
        for node in nodes:
            domain = "" if node.domain == "ai.onnx" else node.domain
            key = (domain, node.op_type, node.overload)
            function = self.functions.get(key)
            if function is not None and key not in self._seen:
                self._seen.add(key)
                inner = {entry.domain: entry.version for entry in function.opset_import}
                self.scan(function.node, inner, branch)
            elif function is None:
                operator = operator_of(domain, node.op_type, opsets)
                if not has_meaning(operator):
                    table = self.in_branches if branch else self.found
                    label = f"{operator} (opset {operator.opset})"
                    table.setdefault(label, []).append(_name(node))
                self.faults += [f"node {_name(node)} ({operator}): {fault}" for fault in faults_of(node, operator)]
            for graph in subgraphs(node):
                self.scan(graph.node, opsets, branch or node.op_type == "If")

    def listing(self) -> dict[str, str]:
        """A phrase for each unsupported operator: how often, and the first nodes."""
        table = {
            key: [*self.found.get(key, []), *self.in_branches.get(key, [])] for key in (self.found | self.in_branches)
        }
        phrases = {}
        for label, nodes in sorted(table.items()):
            shown = ", ".join(nodes[:NAMES_SHOWN]) + (", …" if len(nodes) > NAMES_SHOWN else "")
            phrases[label] = f"{label}: {len(nodes)} {'node' if len(nodes) == 1 else 'nodes'} ({shown})"
        return phrases

    def refuse(self, where: str) -> None:
        """Raises one ModelError for all unsupported operators, if a node that is certainly needed is among them, or one
        for all that is not valid."""
        if not self.found and self.faults:
            shown = self.faults[:FAULTS_SHOWN] + ["…"] * (len(self.faults) > FAULTS_SHOWN)
            raise ModelError("the model is not valid", where=where, why="; ".join(shown), todo=TODO)
        if not self.found:
            return
        phrases = self.listing()
        count = len(phrases)
        raise ModelError(
            f"{count} {'operator is' if count == 1 else 'operators are'} not supported",
            where=where,
            why="; ".join(phrases.values()),
            todo="Export the model without them (another opset, or as ONNX operators), or cut the model around them",
        )


def _name(node: NodeProto) -> str:
    return node.name or next(iter(node.output), "(no name)")
