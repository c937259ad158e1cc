"""What a session says of its inputs and outputs, and what it admits as an input."""

from __future__ import annotations

from typing import Any

import numpy as np

from pipeline.codegen.module import Port
from pipeline.errors import UserError
from pipeline.ir.graph import Shape
from pipeline.ir.graph_types import numpy_dtype

_ONNX_NAMES = {"float32": "float", "float64": "double"}


class NodeArg:
    """An input or an output: `name`, `shape` (a list), `type` as ONNX writes it, and NumPy's `dtype`."""

    __slots__ = ("dtype", "name", "shape", "type")

    def __init__(self, port: Port) -> None:
        self.name = port.name
        self.shape = list(port.shape)
        self.dtype = numpy_dtype(port.dtype)
        self.type = f"tensor({_ONNX_NAMES.get(port.dtype, port.dtype)})"

    def __repr__(self) -> str:
        return f"NodeArg(name={self.name!r}, type={self.type!r}, shape={self.shape})"


def admitted(name: str, value: Any, shape: Shape, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """What is not at once an array as the model wants it: copied where that changes no value, else refused."""
    try:
        array = np.asarray(value)
    except (ValueError, TypeError) as error:  # a ragged list, say
        raise UserError(
            "the input is no array", where=name, why=str(error), todo=f"Give an array of {dtype}"
        ) from error
    if array.dtype != dtype and array.dtype.newbyteorder("=") != dtype:
        raise UserError(
            "the input has the wrong dtype",
            where=name,
            why=f"{array.dtype} was given and the model takes {dtype}",
            todo=f"Convert it with .astype({dtype.name!r})",
        )
    if array.shape != shape:
        raise UserError(
            "the input has the wrong shape",
            where=name,
            why=f"{list(array.shape)} was given and the model takes {list(shape)}",
        )
    return np.require(array, dtype, ["C", "A"])


def no_names(given: object) -> UserError:
    """The error for what does not name outputs."""
    return UserError(
        "the outputs are no list of names",
        why=f"{type(given).__name__} was given",
        todo="Give names, or None for all",
    )
