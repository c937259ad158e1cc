"""What the onnx package knows of an operator: the version that applies, and the body that defines it, if it has one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx.defs
from onnx import AttributeProto, FunctionProto, NodeProto, TypeProto, helper

from pipeline.frontend.onnx.dtypes import element_of
from pipeline.frontend.onnx.operators import meaning_of, newest_since
from pipeline.ir.graph import DType, Shape

OperandType = tuple[DType, Shape]


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator of one opset; `since` is the version in which it got the meaning that applies."""

    domain: str
    name: str
    opset: int
    since: int

    def __str__(self) -> str:
        return f"{self.domain}::{self.name}" if self.domain else self.name


def operator_of(domain: str, name: str, opsets: Mapping[str, int]) -> Operator:
    """By the schema, or where there is none (a domain of another project) by the versions in the table; since is 0
    where nothing is known."""
    domain = "" if domain == "ai.onnx" else domain
    opset = opsets.get(domain, 1)
    if onnx.defs.has(name, domain):
        try:
            schema = onnx.defs.get_schema(name, min(opset, newest(domain)), domain)
        except onnx.defs.SchemaError:
            return Operator(domain, name, opset, 0)
        return Operator(domain, name, opset, 0 if schema.deprecated else schema.since_version)
    return Operator(domain, name, opset, newest_since(domain, name, opset))


def newest(domain: str = "") -> int:
    """The newest opset that the onnx package knows."""
    return onnx.defs.onnx_opset_version() if not domain else 1 << 30


def defaults_of(operator: Operator) -> dict[str, AttributeProto]:
    """The attributes that an operator has where a node leaves them out."""
    schema: Any = onnx.defs.get_schema(operator.name, operator.since, operator.domain)
    defaults = {name: attribute.default_value for name, attribute in schema.attributes.items()}
    return {name: default for name, default in defaults.items() if default.type != AttributeProto.UNDEFINED}


def body_of(
    node: NodeProto, operator: Operator, types: Sequence[OperandType | None], opsets: Mapping[str, int]
) -> FunctionProto | None:
    """The function that defines the operator, for the opset of the model or the nearest one that has it."""
    if not operator.since or not onnx.defs.has(operator.name, operator.domain):
        return None
    schema: Any = onnx.defs.get_schema(operator.name, operator.since, operator.domain)
    body = FunctionProto()
    if schema.has_context_dependent_function:
        version = nearest(schema.context_dependent_function_opset_versions, operator.opset)
        kinds = [type_proto(kind).SerializeToString() for kind in types]
        data = schema.get_context_dependent_function_with_opset_version(version, node.SerializeToString(), kinds)
    elif schema.has_function:
        version = nearest(schema.function_opset_versions, operator.opset)
        data = schema.get_function_with_opset_version(version)
    else:
        return None
    if not data:
        return None
    body.ParseFromString(data)
    if not any(not entry.domain for entry in body.opset_import):
        body.opset_import.append(helper.make_opsetid("", opsets.get("", version)))
    return body


def nearest(versions: Sequence[int], opset: int) -> int:
    return max((version for version in versions if version <= opset), default=min(versions))


def type_proto(kind: OperandType | None) -> TypeProto:
    """An operand that is left out has an empty type."""
    return TypeProto() if kind is None else helper.make_tensor_type_proto(element_of(kind[0]), kind[1])


def has_meaning(operator: Operator) -> bool:
    """Whether the table has the operator, or ONNX defines it by others that have a meaning."""
    if meaning_of(operator.domain, operator.name, operator.since) is not None:
        return True
    if not operator.since or not onnx.defs.has(operator.name, operator.domain):
        return False
    schema: Any = onnx.defs.get_schema(operator.name, operator.since, operator.domain)
    if schema.has_context_dependent_function:
        return True  # the body depends on the types, which the import will know
    body = body_of(NodeProto(), operator, (), {"": newest()})
    opsets = {} if body is None else {entry.domain: entry.version for entry in body.opset_import}
    return body is not None and all(has_meaning(operator_of(n.domain, n.op_type, opsets)) for n in body.node)
