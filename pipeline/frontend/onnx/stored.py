"""Tensors as an ONNX file stores them, read as NumPy arrays."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, numpy_helper

from pipeline.errors import ModelError
from pipeline.frontend.onnx.dtypes import dtype_of
from pipeline.ir.graph import DType


def stored_array(tensor: TensorProto, where: str) -> tuple[np.ndarray, DType]:
    """The elements and the dtype; a ModelError where the type is not supported or the data do not fill the shape."""
    dtype = dtype_of(tensor.data_type, where)
    try:
        if any(dim < 0 for dim in tensor.dims):
            raise ValueError("a dimension is negative")
        return numpy_helper.to_array(tensor), dtype
    except (ValueError, TypeError) as error:
        raise ModelError(
            f"the data of tensor {tensor.name or '(unnamed)'} do not fill its shape {list(tensor.dims)}",
            where=where,
            why=str(error),
            todo="The file is damaged: copy or export it again",
        ) from error
