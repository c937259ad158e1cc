"""Tensors in device memory as they go in and out of a session: `__cuda_array_interface__` and DLPack."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.codegen.module import Port
from pipeline.errors import UserError
from pipeline.ir.graph import ITEM_BYTES, DType, Shape
from pipeline.ir.graph_types import dtype_name, numpy_dtype
from pipeline.runtime.dlpack import CUDA, CUDA_HOST, CUDA_MANAGED, borrow, lend

LEGACY_STREAM = 1  # how DLPack and the CUDA array interface write the default stream, which is 0 for the driver


@dataclass(frozen=True, slots=True)
class Given:
    """An input in device memory, valid until `release` is called.

    stream  that has to have come to its end of now before the memory may be read; None: nothing to wait for
    """

    address: int
    stream: int | None
    release: Callable[[], None]


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """What a session's outputs need of it.

    stream    after which they are complete; None: they are
    download  (array, address): fills a contiguous array of the host
    wait      for a stream
    """

    ordinal: int
    stream: int | None
    download: Callable[[np.ndarray[Any, Any], int], None]
    wait: Callable[[int], None]


class DeviceArray:
    """An output in the session's own memory: the next run overwrites it, and the session's end frees it."""

    def __init__(self, memory: DeviceMemory, address: int, port: Port) -> None:
        self._memory, self.address = memory, address
        self.name, self.shape, self.dtype = port.name, port.shape, port.dtype

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self.dtype == "bfloat16":
            raise AttributeError("the CUDA array interface has no bfloat16; use DLPack")
        return {
            "shape": self.shape, "typestr": numpy_dtype(self.dtype).str, "data": (self.address, False),
            "version": 3, "strides": None,
            "stream": LEGACY_STREAM if self._memory.stream == 0 else self._memory.stream,
        }  # fmt: skip

    def __dlpack_device__(self) -> tuple[int, int]:
        return CUDA, self._memory.ordinal

    def __dlpack__(self, *, stream: int | None = None, **_: Any) -> object:
        """A capsule. The run is waited for here, so that the memory is complete on any stream."""
        self._complete()
        return lend(self, self.address, self.shape, self.dtype, (CUDA, self._memory.ordinal))

    def numpy(self) -> np.ndarray[Any, Any]:
        """A copy in the memory of the host."""
        self._complete()
        array = np.empty(self.shape, numpy_dtype(self.dtype))
        self._memory.download(array, self.address)
        return array

    def _complete(self) -> None:
        if self._memory.stream is not None:
            self._memory.wait(self._memory.stream)


def on_device(value: object) -> bool:
    """Whether it says that it is in device memory."""
    if isinstance(value, np.ndarray):
        return False
    if hasattr(value, "__cuda_array_interface__"):
        return True
    device = getattr(value, "__dlpack_device__", None)
    return device is not None and int(device()[0]) in (CUDA, CUDA_HOST, CUDA_MANAGED)


def admit(value: Any, port: Port, ordinal: int, stream: int) -> Given:
    """The memory of an input. Raises a UserError where its shape, dtype, layout or device is not what the model takes.

    stream  that will read it: a DLPack producer makes that wait
    """
    device = getattr(value, "__dlpack_device__", None)
    if device is not None:
        kind, number = (int(part) for part in device())
        if kind == CUDA and number != ordinal:
            raise UserError(
                "the input is on another GPU", where=port.name, why=f"on {number}, the session is on {ordinal}"
            )
        found = borrow(value.__dlpack__(stream=stream or LEGACY_STREAM))
        try:
            _refuse(port, found.shape, found.dtype, found.contiguous)
        except UserError:
            found.release()
            raise
        return Given(found.address, None, found.release)
    facts = value.__cuda_array_interface__
    shape, address = tuple(facts["shape"]), int(facts["data"][0])
    dtype = dtype_name(np.dtype(facts["typestr"]))
    _refuse(port, shape, dtype, _contiguous(shape, facts.get("strides"), ITEM_BYTES[dtype]))
    return Given(address, facts.get("stream"), lambda: None)


def _contiguous(shape: Shape, strides: tuple[int, ...] | None, item: int) -> bool:
    if strides is None or 0 in shape:
        return True
    step = item
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if extent != 1 and stride != step:
            return False
        step *= extent
    return True


def _refuse(port: Port, shape: Shape, dtype: DType, contiguous: bool) -> None:
    if dtype != port.dtype:
        raise UserError("the input has the wrong dtype", where=port.name, why=f"{dtype}, the model takes {port.dtype}")
    if shape != port.shape:
        raise UserError(
            "the input has the wrong shape", where=port.name, why=f"{list(shape)}, the model takes {list(port.shape)}"
        )
    if not contiguous:
        raise UserError("the input is not contiguous", where=port.name, todo="Make it so with .contiguous()")
