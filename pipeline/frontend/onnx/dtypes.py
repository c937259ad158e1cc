"""The element types of ONNX that this pipeline computes with, and their names here."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from pipeline.errors import ModelError, listed
from pipeline.ir.graph import DType

NAMES: dict[int, DType] = {
    TensorProto.FLOAT: "float32",
    TensorProto.DOUBLE: "float64",
    TensorProto.FLOAT16: "float16",
    TensorProto.BFLOAT16: "bfloat16",
    TensorProto.INT64: "int64",
    TensorProto.INT32: "int32",
    TensorProto.INT16: "int16",
    TensorProto.INT8: "int8",
    TensorProto.UINT64: "uint64",
    TensorProto.UINT32: "uint32",
    TensorProto.UINT16: "uint16",
    TensorProto.UINT8: "uint8",
    TensorProto.BOOL: "bool",
}
UNSIGNED = frozenset({"uint64", "uint32", "uint16", "uint8"})


def dtype_of(element: int, where: str) -> DType:
    """The name of an ONNX element type; a ModelError that names the type where it is not supported."""
    name = NAMES.get(element)
    if name is None:
        known = TensorProto.DataType.Name(element) if element in TensorProto.DataType.values() else str(element)
        raise ModelError(
            f"the element type {known} is not supported",
            where=where,
            why=f"supported are {listed(NAMES.values())}",
            todo="Export the model with one of those types",
        )
    return name


def element_of(dtype: DType) -> int:
    """The ONNX element type of one of our dtypes."""
    return next(element for element, name in NAMES.items() if name == dtype)


def integer_range(dtype: DType) -> tuple[int, int]:
    """Smallest and largest value of an integer dtype."""
    info = np.iinfo(dtype)
    return int(info.min), int(info.max)
