"""One application of an operator: its operands, its attributes, and where it stands, for messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from pipeline.errors import ModelError
from pipeline.frontend.onnx.tensor import Tensor, TensorSequence, Value, constant
from pipeline.ir.graph import DType
from pipeline.ir.graph_builder import GraphBuilder

RunSubgraph = Callable[[Any, Sequence[Value]], tuple[Value, ...]]


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """What the function of an operator gets.

    op, since    the operator and the version that applies, for the opset of the model
    where        the node in words, for errors
    operands     None where an optional operand is left out
    attributes   as Python values; strings decoded
    outputs      for each output whether anything may read it
    subgraph     imports a graph attribute, given the values of its inputs
    definition   what the body by which ONNX defines the operator gives
    """

    builder: GraphBuilder
    op: str
    since: int
    where: str
    operands: tuple[Value | None, ...]
    attributes: Mapping[str, Any]
    outputs: tuple[bool, ...]
    subgraph: RunSubgraph
    definition: Callable[[], tuple[Value | None, ...]]

    def operand(self, position: int) -> Tensor:
        """An operand that must be there."""
        found = self.optional(position)
        if found is None:
            raise ModelError(
                f"operand {position} of {self.op} is missing", where=self.where, todo="Export the model again"
            )
        return found

    def optional(self, position: int) -> Tensor | None:
        found = self.operands[position] if position < len(self.operands) else None
        return found if found is None else self.tensor(found)

    def given(self) -> tuple[Tensor, ...]:
        """The operands that are there."""
        return tuple(self.tensor(operand) for operand in self.operands if operand is not None)

    def tensor(self, value: Value) -> Tensor:
        """A value that must not be a sequence."""
        if isinstance(value, TensorSequence):
            self.refuse(f"{self.op} of a sequence of tensors is not supported")
        return value

    def sequence(self, position: int) -> TensorSequence:
        """An operand that must be a sequence."""
        found = self.operands[position] if position < len(self.operands) else None
        if not isinstance(found, TensorSequence):
            self.refuse(f"operand {position} of {self.op} is not a sequence", todo="Export the model again")
        return found

    def wants(self, output: int) -> bool:
        return output < len(self.outputs) and self.outputs[output]

    def get(self, name: str, default: Any = None) -> Any:
        """An attribute, or its default."""
        return self.attributes.get(name, default)

    def number(self, name: str, default: float) -> float:
        """An attribute that is one number, or its default."""
        value = self.get(name, default)
        if not isinstance(value, int | float):  # where ONNX has no such operator, nobody has checked it
            self.refuse(f"attribute {name} is {value!r}", f"{self.op} takes a number", "Export the model again")
        return float(value)

    def need(self, name: str) -> Any:
        """An attribute that must be there."""
        if name not in self.attributes:
            raise ModelError(
                f"attribute {name} of {self.op} is missing", where=self.where, todo="Export the model again"
            )
        return self.attributes[name]

    def axis(self, rank: int, default: int, name: str = "axis") -> int:
        """The attribute that names a dimension, counted from the front."""
        return self.dimension(int(self.number(name, default)), rank)

    def dimension(self, axis: int, rank: int) -> int:
        if not -rank <= axis < max(rank, 1):
            self.refuse(f"axis {axis} is out of range", why=f"the tensor has {rank} dimensions")
        return axis % rank if rank else 0

    def known(self, position: int, what: str) -> np.ndarray:
        """The elements of an operand that shapes depend on; a ModelError where they come from the data."""
        value = self.operand(position).known()
        if value is None:
            raise ModelError(
                f"the {what} of {self.op} depend on the data",
                where=self.where,
                why=f"shapes are static here, and operand {position} is computed from an input of the model",
                todo="Export the model with a constant there, or cut the model before this node",
            )
        return value

    def integers(self, position: int, what: str) -> list[int]:
        """`known`, as a flat list of integers."""
        return [int(number) for number in self.known(position, what).reshape(-1)]

    def constant(self, data: object, dtype: DType) -> Tensor:
        return constant(self.builder, data, dtype)

    def refuse(self, what: str, why: str = "", todo: str = "Export the model without it") -> NoReturn:
        """Raises the ModelError for what this front end, or ONNX, does not allow."""
        raise ModelError(what, where=self.where, why=why, todo=todo)
