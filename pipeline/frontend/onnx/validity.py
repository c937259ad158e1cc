"""What a node gives against what ONNX says that its operator takes: operands, attributes and element types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx.defs
from onnx import AttributeProto, NodeProto, ValueInfoProto

from pipeline.errors import ModelError, counted
from pipeline.frontend.onnx.dtypes import NAMES
from pipeline.frontend.onnx.schemas import Operator
from pipeline.frontend.onnx.tensor import Tensor, Value
from pipeline.ir.graph import DType

TODO = "The file is not valid ONNX, as onnx.checker tells too: export it again"
WORDS = {
    "INT": "an integer", "FLOAT": "a number", "STRING": "a text", "TENSOR": "a tensor", "GRAPH": "a graph",
    "SPARSE_TENSOR": "a sparse tensor", "TYPE_PROTO": "a type", "INTS": "a list of integers",
    "FLOATS": "a list of numbers", "STRINGS": "a list of texts",
}  # fmt: skip
FITS_TOO = frozenset({("INT", "FLOAT"), ("INTS", "FLOATS")})  # given, expected


def faults_of(node: NodeProto, operator: Operator) -> list[str]:
    """What is wrong with the number of a node's operands and the types of its attributes, in words; nothing where ONNX
    has no such operator."""
    schema = schema_of(operator)
    if schema is None:
        return []
    faults = []
    given = max((number for number, name in enumerate(node.input, 1) if name), default=0)
    if given > schema.max_input or len(node.input) < schema.min_input:
        faults.append(f"it has {counted(given, 'operands')}, and {operator} takes {_takes(schema)}")
    kinds = {number: kind for kind, number in AttributeProto.AttributeType.items()}
    for attribute in node.attribute:
        expected = schema.attributes.get(attribute.name)
        found = kinds.get(attribute.type, "UNDEFINED")
        if expected is None or found == "UNDEFINED":  # the latter in files older than the field
            continue
        wanted = expected.type.name
        if found != wanted and (found, wanted) not in FITS_TOO:
            faults.append(
                f"attribute {attribute.name} is {WORDS.get(found, found)}{_value(attribute)}, and {operator} takes "
                f"{WORDS.get(wanted, wanted)}"
            )
    return faults


def refuse_mixed(operator: Operator, operands: Sequence[Value | None], where: str) -> None:
    """Raises a ModelError where operands that ONNX wants of one element type are of two."""
    schema = schema_of(operator)
    if schema is None or not schema.inputs:
        return
    free = {constraint.type_param_str for constraint in schema.type_constraints}
    first: dict[str, tuple[int, DType]] = {}
    for number, operand in enumerate(operands):
        formal = schema.inputs[min(number, len(schema.inputs) - 1)]
        if not isinstance(operand, Tensor) or not formal.is_homogeneous or formal.type_str not in free:
            continue
        other, dtype = first.setdefault(formal.type_str, (number, operand.dtype))
        if dtype != operand.dtype:
            raise ModelError(
                f"operands {other} and {number} of {operator} are {dtype} and {operand.dtype}",
                where=where,
                why="ONNX wants them of one element type",
                todo="Export the model again, with a Cast before one of them",
            )


def refuse_other_type(declared: ValueInfoProto, dtype: DType, where: str) -> None:
    """Raises a ModelError where an output is not of the element type that the model declares."""
    name = NAMES.get(declared.type.tensor_type.elem_type)
    if name not in (None, dtype):
        raise ModelError(
            f"output {declared.name} is declared {name} and is {dtype}",
            where=where,
            todo="Export the model again, or declare the output as it is",
        )


def schema_of(operator: Operator) -> Any:
    """What the onnx package knows of the operator; None where it knows nothing."""
    if not operator.since or not onnx.defs.has(operator.name, operator.domain):
        return None
    return onnx.defs.get_schema(operator.name, operator.since, operator.domain)


def _takes(schema: Any) -> str:
    if schema.min_input == schema.max_input:
        return str(schema.min_input)
    variadic = bool(schema.inputs) and schema.inputs[-1].option.name == "Variadic"
    return f"{schema.min_input} or more" if variadic else f"{schema.min_input} to {schema.max_input}"


def _value(attribute: AttributeProto) -> str:
    match attribute.type:
        case AttributeProto.INT:
            return f" ({attribute.i})"
        case AttributeProto.FLOAT:
            return f" ({attribute.f:g})"
        case AttributeProto.STRING:
            return f" ({attribute.s.decode(errors='replace')[:40]!r})"
        case _:
            return ""
