"""The bindings of the driver without a driver: calls are noted, memory is a dictionary, statuses can be planted.

It runs nothing. It is for the order of calls and for errors; what kernels compute is tested elsewhere.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np


class Status:
    def __init__(self, name: str) -> None:
        self.name = name
        self.value = 0 if name == "CUDA_SUCCESS" else 1


OK = Status("CUDA_SUCCESS")


class FakeDriver:
    """planted     status by function's name, in place of success
    capability  of the one device
    launch      what a launch does, given the function's name and the address of its arguments; by default nothing
    """

    def __init__(
        self, planted: dict[str, str] | None = None, *, capability: tuple[int, int] = (8, 0), version: int = 13000,
        count: int = 1, launch: Callable[[FakeDriver, str, int], None] | None = None,
    ) -> None:  # fmt: skip
        self.planted = planted or {}
        self.capability, self.version, self.count = capability, version, count
        self._launch = launch
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.memory: dict[int, bytearray] = {}
        self._next = 1 << 20
        self.CUdevice_attribute = _Named()
        self.CUfunction_attribute = _Named()
        self.CUstreamCaptureMode = _Named()

    def __getattr__(self, name: str) -> Callable[..., tuple[Any, ...]]:
        if not name.startswith("cu"):
            raise AttributeError(name)

        def call(*arguments: Any) -> tuple[Any, ...]:
            self.calls.append((name, arguments))
            if name in self.planted:
                return (Status(self.planted[name]), *([None] if name not in _NOTHING else []))
            return (OK, *self._answer(name, arguments))

        return call

    def names(self, *wanted: str) -> list[str]:
        """The functions that were called, in order; only those wanted where some are named."""
        return [name for name, _ in self.calls if not wanted or name in wanted]

    def pointers(self, arguments: int, count: int) -> list[int]:
        """The pointers that a launch is given."""
        places = (ctypes.c_uint64 * count).from_address(arguments)
        return [ctypes.c_uint64.from_address(place).value for place in places]

    def view(self, address: int, count: int) -> np.ndarray:
        """Floats in the memory of the device."""
        return self._bytes(address, 4 * count).view(np.float32)

    def _answer(self, name: str, given: tuple[Any, ...]) -> tuple[Any, ...]:
        match name:
            case "cuInit" | "cuCtxSetCurrent" | "cuFuncSetAttribute" | "cuStreamSynchronize" | "cuEventRecord":
                return ()
            case "cuDriverGetVersion":
                return (self.version,)
            case "cuDeviceGetCount":
                return (self.count,)
            case "cuDeviceGetName":
                return (b"Fake GPU\0",)
            case "cuDeviceGetAttribute":
                return (self._attribute(given[0]),)
            case "cuMemAlloc":
                address, self._next = self._next, self._next + given[0] + 256
                self.memory[address] = bytearray(given[0])
                return (address,)
            case "cuMemFree":
                del self.memory[given[0]]
                return ()
            case "cuMemcpyHtoDAsync":
                self._bytes(given[0], given[2])[:] = np.frombuffer(ctypes.string_at(given[1], given[2]), np.uint8)
                return ()
            case "cuMemcpyDtoHAsync":
                ctypes.memmove(given[0], self._bytes(given[1], given[2]).tobytes(), given[2])
                return ()
            case "cuMemcpyDtoDAsync":
                self._bytes(given[0], given[2])[:] = self._bytes(given[1], given[2])
                return ()
            case "cuLaunchKernel":
                if self._launch is not None:
                    self._launch(self, given[0], given[9])
                return ()
            case "cuMemsetD8Async":
                self._bytes(given[0], given[2])[:] = given[1]
                return ()
            case "cuModuleLoadData" | "cuStreamEndCapture" | "cuStreamCreate" | "cuEventCreate":
                self._next += 1
                return (SimpleInt(self._next),)
            case "cuModuleGetFunction":
                return (given[1].decode(),)
            case "cuGraphInstantiate":
                return ("graph",)
            case "cuEventElapsedTime":
                return (0.25,)
            case "cuDeviceGet" | "cuDevicePrimaryCtxRetain":
                return (7,)
            case _:
                return ()

    def _attribute(self, name: str) -> int:
        found = {"MAJOR": self.capability[0], "MINOR": self.capability[1], "SIZE": 1 << 20}
        return found[name.rpartition("_")[2]]

    def _bytes(self, address: int, size: int) -> np.ndarray:
        for base, memory in self.memory.items():
            if base <= address and address + size <= base + len(memory):
                return np.frombuffer(memory, np.uint8)[address - base : address - base + size]
        raise AssertionError(f"{size} bytes at {address} are in no allocation")


class SimpleInt(int):
    """A handle."""


class _Named:
    """Each member of an enumeration is its name."""

    def __getattr__(self, name: str) -> str:
        return name


_NOTHING = ("cuInit", "cuLaunchKernel", "cuStreamSynchronize", "cuGraphLaunch", "cuMemcpyHtoDAsync")
