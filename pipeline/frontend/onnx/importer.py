"""Walks the nodes of an ONNX model and writes each one's meaning into a graph."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, helper

from pipeline.errors import CheckError, ModelError
from pipeline.frontend.onnx.call import Call
from pipeline.frontend.onnx.liveness import needed
from pipeline.frontend.onnx.operators import meaning_of
from pipeline.frontend.onnx.schemas import Operator, body_of, defaults_of, operator_of
from pipeline.frontend.onnx.stored import stored_array
from pipeline.frontend.onnx.tensor import Tensor, TensorSequence, Value, constant
from pipeline.frontend.onnx.validity import refuse_mixed
from pipeline.ir.graph_builder import GraphBuilder
from pipeline.ir.graph_types import TOO_LARGE

Environment = MutableMapping[str, Value]
Attributes = Mapping[str, AttributeProto]
FunctionKey = tuple[str, str, str]

# What an attribute of the wrong kind, count or size comes to: a file may hold anything.
BROKEN = (
    ValueError, TypeError, IndexError, KeyError, ZeroDivisionError, OverflowError, AttributeError,
    MemoryError,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Frame:
    """What the nodes of one graph or function body see.

    environment  the values by name; a subgraph sees those around it
    opsets       version of each operator domain
    attributes   of the call of a function, which its nodes may refer to
    inside       where the body stands, for errors
    absent       names that stand for nothing: optional inputs that a call leaves out
    """

    environment: Environment
    opsets: Mapping[str, int]
    attributes: Attributes
    inside: str
    absent: frozenset[str] = frozenset()


@dataclass(slots=True)
class Importer:
    """The graph under construction.

    functions    that the model defines
    unsupported  a phrase for every operator that is not supported, for errors
    calling      the functions whose bodies are being written, the innermost last
    """

    builder: GraphBuilder
    path: str
    functions: Mapping[FunctionKey, FunctionProto]
    unsupported: Mapping[str, str] = field(default_factory=dict)
    calling: list[FunctionKey] = field(default_factory=list)

    def graph(self, graph: GraphProto, frame: Frame) -> tuple[Value, ...]:
        """The outputs of a graph whose inputs are in the environment of `frame`."""
        for tensor in graph.initializer:
            frame.environment[tensor.name] = constant(self.builder, *stored_array(tensor, self.path))
        names = [output.name for output in graph.output]
        self.nodes(graph.node, names, frame)
        return tuple(self.value(name, frame, frame.inside or self.path) for name in names)

    def nodes(self, nodes: Sequence[NodeProto], outputs: Sequence[str], frame: Frame) -> None:
        live, read = needed(nodes, outputs)
        for number, node in enumerate(live):
            where = place(node, number, frame.inside or self.path)
            scope = node.name or next((name for name in node.output if name), node.op_type)
            with self.builder.scope(scope):
                try:
                    results = self.node(node, frame, where, read)
                except CheckError as error:
                    if error.what == TOO_LARGE:
                        raise too_large(error, where) from error
                    why = f"{error.where}: {error.why}"
                    raise ModelError("the operands do not fit", where=where, why=why, todo="Export it again") from error
                except BROKEN as error:
                    why = f"{type(error).__name__}: {error}"
                    todo = "onnx.checker tells whether the model is valid; if it is, report this"
                    raise ModelError("the node cannot be imported", where=where, why=why, todo=todo) from error
            for name, result in zip(node.output, results, strict=False):
                if name and result is not None:
                    frame.environment[name] = result
            for name in list(node.output)[len(results) :]:
                if name and name in read:
                    raise ModelError(f"output {name} is not supported", where=where, todo="Export the model without it")

    def node(self, node: NodeProto, frame: Frame, where: str, read: frozenset[str]) -> tuple[Value | None, ...]:
        operands = tuple(self.lookup(name, frame, where) if name else None for name in node.input)
        attributes = resolved(node, frame.attributes)
        key = (plain(node.domain), node.op_type, node.overload)
        if key in self.functions:
            if key in self.calling:
                raise ModelError(f"function {node.op_type} calls itself", where=where, todo="Export the model again")
            self.calling.append(key)
            results = self.function(self.functions[key], operands, attributes, where)
            self.calling.pop()
            return results
        operator = operator_of(node.domain, node.op_type, frame.opsets)
        refuse_mixed(operator, operands, where)
        meaning = meaning_of(operator.domain, operator.name, operator.since)
        if meaning is None:
            return self.definition(node, operator, operands, attributes, frame, where)

        def subgraph(graph: GraphProto, inputs: Sequence[Value]) -> tuple[Value, ...]:
            names = [info.name for info in graph.input]
            inner: Environment = ChainMap(dict(zip(names, inputs, strict=True)), frame.environment)
            return self.graph(graph, Frame(inner, frame.opsets, frame.attributes, where, frame.absent))

        result = meaning(
            Call(
                builder=self.builder,
                op=node.op_type,
                since=operator.since,
                where=where,
                operands=operands,
                attributes={name: python_value(attribute) for name, attribute in attributes.items()},
                outputs=tuple(bool(name) and name in read for name in node.output),
                subgraph=subgraph,
                definition=lambda: self.definition(node, operator, operands, attributes, frame, where),
            )
        )
        return result if isinstance(result, tuple) else (result,)

    def definition(self, node: NodeProto, operator: Operator, operands: Sequence[Value | None], attributes: Attributes,
                   frame: Frame, where: str) -> tuple[Value | None, ...]:  # fmt: skip
        """An operator that is not in the table, by the body that ONNX itself defines it with."""
        plain_node = NodeProto()
        plain_node.CopyFrom(node)
        del plain_node.attribute[:]
        plain_node.attribute.extend(attributes.values())
        if any(isinstance(operand, TensorSequence) for operand in operands):
            raise ModelError(
                f"{operator} of a sequence of tensors is not supported", where=where, todo="Export the model without it"
            )
        types = [(operand.dtype, operand.shape) if isinstance(operand, Tensor) else None for operand in operands]
        body = body_of(plain_node, operator, types, frame.opsets)
        if body is None:
            raise ModelError(
                f"operator {operator} is not supported",
                where=where,
                why="; ".join(self.unsupported.values()),
                todo="Export the model without it, or cut the model before this node",
            )
        return self.function(body, operands, {**defaults_of(operator), **attributes}, where)

    def function(self, body: FunctionProto, operands: Sequence[Value | None], attributes: Attributes,
                 where: str) -> tuple[Value | None, ...]:  # fmt: skip
        """Inlines the body of a function."""
        environment = {name: value for name, value in zip(body.input, operands, strict=False) if value is not None}
        defaults = {attribute.name: attribute for attribute in body.attribute_proto}
        opsets = {plain(entry.domain): entry.version for entry in body.opset_import}
        absent = frozenset(name for name in body.input if name not in environment)
        frame = Frame(environment, opsets, {**defaults, **attributes}, where, absent)
        self.nodes(body.node, body.output, frame)
        return tuple(environment.get(name) for name in body.output)

    def value(self, name: str, frame: Frame, where: str) -> Value:
        """What a graph gives as its result."""
        found = self.lookup(name, frame, where)
        if found is None:
            raise ModelError(f"output {name} is left out", where=where, todo="The file is damaged: export it again")
        return found

    def lookup(self, name: str, frame: Frame, where: str) -> Value | None:
        found = frame.environment.get(name)
        if found is None and name not in frame.absent:
            raise ModelError(
                f"value {name} is read before anything makes it",
                where=where,
                why="the nodes of an ONNX model stand in order of computation",
                todo="The file is damaged: export it again",
            )
        return found


def too_large(error: CheckError, where: str) -> ModelError:
    """The error for a tensor that no machine holds."""
    return ModelError(error.what, where=where, why=error.why, todo="Choose smaller sizes, or export the model again")


def plain(domain: str) -> str:
    """The default domain has two names."""
    return "" if domain == "ai.onnx" else domain


def place(node: NodeProto, number: int, around: str) -> str:
    """A node in words; one without a name by its first output."""
    name = node.name or next((name for name in node.output if name), f"number {number}")
    return f"{around}: node {name} ({node.op_type})"


def resolved(node: NodeProto, bound: Attributes) -> dict[str, AttributeProto]:
    """The attributes of a node; a reference to an attribute of the function around takes its value."""
    found = {}
    for attribute in node.attribute:
        if not attribute.ref_attr_name:
            found[attribute.name] = attribute
        elif attribute.ref_attr_name in bound:
            copy = AttributeProto()
            copy.CopyFrom(bound[attribute.ref_attr_name])
            copy.name = attribute.name
            found[attribute.name] = copy
    return found


def python_value(attribute: AttributeProto) -> Any:
    value = helper.get_attribute_value(attribute)
    match value:
        case bytes():
            return value.decode(errors="replace")
        case list() if value and isinstance(value[0], bytes):
            return [text.decode(errors="replace") for text in value]
        case _:
            return value


def functions_of(model: ModelProto) -> dict[FunctionKey, FunctionProto]:
    return {(plain(function.domain), function.name, function.overload): function for function in model.functions}
