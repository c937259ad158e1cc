"""DLPack: tensors of other libraries as an address, a shape and a dtype, and ours as capsules, without a copy.

https://dmlc.github.io/dlpack: a capsule named "dltensor" holds a `DLManagedTensor`. Who takes it renames the capsule
and calls the deleter when done; a capsule that nobody took calls it itself.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from pipeline.errors import UserError
from pipeline.ir.graph import ITEM_BYTES, DType, Shape

CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13
_INT, _UINT, _FLOAT, _BFLOAT, _BOOL = 0, 1, 2, 4, 6
_CODES: dict[DType, tuple[int, int]] = {
    "float64": (_FLOAT, 64), "float32": (_FLOAT, 32), "float16": (_FLOAT, 16), "bfloat16": (_BFLOAT, 16),
    "int64": (_INT, 64), "int32": (_INT, 32), "int16": (_INT, 16), "int8": (_INT, 8), "uint64": (_UINT, 64),
    "uint32": (_UINT, 32), "uint16": (_UINT, 16), "uint8": (_UINT, 8), "bool": (_BOOL, 8),
}  # fmt: skip
_DTYPES = {code: dtype for dtype, code in _CODES.items()}
_NEW, _USED = b"dltensor", b"used_dltensor"


class _Device(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int32), ("id", ctypes.c_int32))


class _Type(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p), ("device", _Device), ("ndim", ctypes.c_int32), ("dtype", _Type),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )  # fmt: skip


_DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _DELETER))


_PYTHON = ctypes.pythonapi
_DESTRUCTOR = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_PYTHON.PyCapsule_New.restype = ctypes.py_object
_PYTHON.PyCapsule_New.argtypes = (ctypes.c_void_p, ctypes.c_char_p, _DESTRUCTOR)
_PYTHON.PyCapsule_GetPointer.restype = ctypes.c_void_p
_PYTHON.PyCapsule_GetPointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
_PYTHON.PyCapsule_SetName.argtypes = (ctypes.py_object, ctypes.c_char_p)
# the destructor gets a dying object: as an address, so that nothing counts a reference to it
_VALID = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", _PYTHON))
_POINTER = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_GetPointer", _PYTHON))
_KEPT: dict[int, tuple[object, ...]] = {}  # what a capsule stands for, by the address of its struct


@dataclass(frozen=True, slots=True)
class Borrowed:
    """A tensor of another library, for as long as `release` was not called.

    strides  in elements; None: row-major and without gaps
    """

    address: int
    device: tuple[int, int]
    shape: Shape
    strides: tuple[int, ...] | None
    dtype: DType
    release: Callable[[], None]

    @property
    def contiguous(self) -> bool:
        if self.strides is None or 0 in self.shape:
            return True
        step = 1
        for extent, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if extent != 1 and stride != step:
                return False
            step *= extent
        return True


def borrow(capsule: object) -> Borrowed:
    """Takes a capsule over. Raises a UserError where it was taken before, or holds a dtype that no model has."""
    try:
        address = _PYTHON.PyCapsule_GetPointer(capsule, _NEW)
    except ValueError as error:
        raise UserError("this is no DLPack capsule that can be taken", why=str(error)) from error
    managed = _Managed.from_address(address)
    tensor = managed.tensor
    found = (tensor.dtype.code, tensor.dtype.bits)
    if tensor.dtype.lanes != 1 or found not in _DTYPES:
        raise UserError("the tensor has a dtype that no model has", why=f"DLPack's code {found[0]} of {found[1]} bits")
    _PYTHON.PyCapsule_SetName(capsule, _USED)
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    strides = tuple(tensor.strides[i] for i in range(tensor.ndim)) if tensor.strides else None

    def release() -> None:
        if managed.deleter:
            managed.deleter(address)

    start = (tensor.data or 0) + tensor.byte_offset
    return Borrowed(start, (tensor.device.type, tensor.device.id), shape, strides, _DTYPES[found], release)


def lend(owner: object, address: int, shape: Shape, dtype: DType, device: tuple[int, int]) -> object:
    """A capsule for contiguous memory, which keeps `owner` alive until whoever takes it is done."""
    extents = (ctypes.c_int64 * max(1, len(shape)))(*shape)
    steps, step = [], 1
    for extent in reversed(shape):
        steps.append(step)
        step *= max(1, extent)
    strides = (ctypes.c_int64 * max(1, len(shape)))(*reversed(steps))
    code, bits = _CODES[dtype]
    assert bits == 8 * ITEM_BYTES[dtype]
    managed = _Managed(
        _Tensor(
            address, _Device(*device), len(shape), _Type(code, bits, 1),
            ctypes.cast(extents, ctypes.POINTER(ctypes.c_int64)),
            ctypes.cast(strides, ctypes.POINTER(ctypes.c_int64)), 0,
        ),
        None, _forget,
    )  # fmt: skip
    place = ctypes.addressof(managed)
    _KEPT[place] = (owner, managed, extents, strides)
    return cast(Any, _PYTHON.PyCapsule_New(place, _NEW, _dropped))


@_DELETER
def _forget(place: int) -> None:
    _KEPT.pop(place, None)


@_DESTRUCTOR
def _dropped(capsule: int) -> None:
    if _VALID(capsule, _NEW):  # nobody took it
        _KEPT.pop(_POINTER(capsule, _NEW), None)
