"""The driver of NVIDIA GPUs, as far as we use it: one device, its memory, launches, graphs and events.

Everything that a machine can be wrong about becomes a UserError: no driver, too old a driver, no device, another
architecture, too little memory. What a kernel does wrong is a MeasureError; the context is of no use after it.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.codegen.cuda.kernel import CudaKernel, Launch
from pipeline.errors import MeasureError, PipelineError, UserError

LEAST_DRIVER = 13000  # the CUDA version of the compiler whose machine code the driver is to load
_ANOTHER = "CUDA_ERROR_NO_BINARY_FOR_GPU", "CUDA_ERROR_INVALID_IMAGE", "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"
_BLOCKING_SYNC_OFF, _NON_BLOCKING = 0, 1


def load_driver() -> Any:
    """cuda.bindings.driver, initialised. Raises a UserError where there is no driver, too old a one, or no device."""
    try:
        cuda = importlib.import_module("cuda.bindings.driver")
    except ImportError as error:
        raise UserError(
            "the GPU cannot be reached: cuda-python is not installed", why=str(error), todo="pip install cuda-python"
        ) from error
    return started(cuda)


def started(cuda: Any) -> Any:
    """The bindings, once the driver has answered."""
    try:
        code = cuda.cuInit(0)[0]
        version = int(cuda.cuDriverGetVersion()[1])
    except RuntimeError as error:  # the driver's library is not there, or lacks a function
        raise UserError(
            "there is no driver for an NVIDIA GPU on this machine",
            why=str(error),
            todo="Install the driver from NVIDIA, on a machine with a GPU",
        ) from error
    if version < LEAST_DRIVER:
        raise UserError(
            "the driver of the GPU is too old",
            why=f"it knows CUDA {_version(version)}, and {_version(LEAST_DRIVER)} is needed",
            todo="Install a newer driver from NVIDIA",
        )
    if code.name == "CUDA_ERROR_NO_DEVICE" or (not code.value and int(cuda.cuDeviceGetCount()[1]) == 0):
        raise UserError("there is no NVIDIA GPU on this machine", todo="Run it on a machine with one")
    if code.value:
        raise UserError("the driver of the GPU does not start", why=f"cuInit says {code.name}")
    return cuda


def why_absent(arch: str) -> str | None:
    """Why kernels for exactly that architecture cannot be measured here; None where they can."""
    try:
        cuda = load_driver()
        found = Device(cuda=cuda)
    except PipelineError as error:
        return error.what
    with found:
        return None if found.arch == arch.rstrip("af") else f"the GPU here, {found.name}, is {found.arch}"


def runs_on(arch: str, device: str) -> bool:
    """Whether machine code for `arch` runs on a device: the same generation, and no newer than it."""
    if arch == device:
        return True
    if not arch[-1].isdigit():  # made for one architecture alone
        return arch[:-1] == device
    made, have = int(arch.removeprefix("sm_")), int(device.removeprefix("sm_"))
    return made // 10 == have // 10 and made <= have


@dataclass(frozen=True, slots=True)
class Function:
    """One `__global__` function that was loaded, and how it is launched."""

    handle: Any
    module: Any
    launch: Launch


class Device:
    """One GPU and this process' context on it.

    ordinal  which one
    cuda     the bindings, already started; by default they are loaded here
    """

    def __init__(self, ordinal: int = 0, *, cuda: Any = None) -> None:
        self._cuda = load_driver() if cuda is None else cuda
        count = int(self.call("cuDeviceGetCount"))
        if not 0 <= ordinal < count:
            raise UserError("there is no such GPU", why=f"device {ordinal} was asked for and there are {count}")
        self._device = self.call("cuDeviceGet", ordinal)
        self.ordinal = ordinal
        self.name = bytes(self.call("cuDeviceGetName", 128, self._device)).split(b"\0")[0].decode(errors="replace")
        major, minor = (self._attribute(f"COMPUTE_CAPABILITY_{part}") for part in ("MAJOR", "MINOR"))
        self.arch = f"sm_{major}{minor}"
        self.l2_bytes = self._attribute("L2_CACHE_SIZE")
        self._context = self.call("cuDevicePrimaryCtxRetain", self._device)
        self._modules: list[Any] = []
        self._allocated: dict[int, int] = {}
        self._closed = False
        self.use()

    def use(self) -> None:
        """Makes the context current in the calling thread."""
        self.call("cuCtxSetCurrent", self._context)

    def refuse_other(self, arch: str, where: str) -> None:
        """Raises a UserError where machine code for the architecture does not run on this device."""
        if not runs_on(arch, self.arch):
            raise UserError(
                "the machine code is for another GPU",
                where=where,
                why=f"it is for {arch}, and {self.name} is {self.arch}",
                todo="Make it again with a target of that architecture, or target=cuda",
            )

    # ------------------------------------------------------------------ code

    def functions(self, kernel: CudaKernel) -> tuple[tuple[Function, ...], tuple[Function, ...]]:
        """Those of the prologue and the others, ready to be launched; none where the kernel has nothing to do."""
        if not kernel.cubin:
            return (), ()
        module = self.call("cuModuleLoadData", kernel.cubin)
        self._modules.append(module)
        try:
            return (
                tuple(self._function(module, launch) for launch in kernel.program.prologue),
                tuple(self._function(module, launch) for launch in kernel.program.launches),
            )
        except PipelineError:
            self._modules.remove(module)
            self._cuda.cuModuleUnload(module)
            raise

    def unload(self, functions: Sequence[Function]) -> None:
        """Gives back the code that these functions are part of."""
        for module in {id(function.module): function.module for function in functions}.values():
            self._modules.remove(module)
            self.call("cuModuleUnload", module)

    def launch(self, function: Function, addresses: Sequence[int], stream: Any) -> None:
        """Queues one launch; all arguments are pointers."""
        values = np.array(addresses, np.uint64)
        pointers = values.ctypes.data + 8 * np.arange(len(addresses), dtype=np.uint64)
        launch = function.launch
        self.call(
            "cuLaunchKernel", function.handle, *launch.grid, launch.threads, 1, 1, launch.shared_bytes, stream,
            pointers.ctypes.data, 0,
        )  # fmt: skip

    # ------------------------------------------------------------------ memory

    def allocate(self, nbytes: int) -> int:
        """The address of so many bytes, at a multiple of 256."""
        if nbytes == 0:
            return 0
        address = int(self.call("cuMemAlloc", nbytes))
        self._allocated[address] = nbytes
        return address

    def free(self, address: int) -> None:
        if address in self._allocated:
            self.call("cuMemFree", address)
            del self._allocated[address]

    def upload(self, address: int, array: np.ndarray[Any, Any], stream: Any) -> None:
        """Queues a copy to the device; the array must stay as it is until the stream has come to it."""
        if array.nbytes:
            self.call("cuMemcpyHtoDAsync", address, array.ctypes.data, array.nbytes, stream)

    def download(self, array: np.ndarray[Any, Any], address: int, stream: Any) -> None:
        """Queues a copy into a contiguous array."""
        if array.nbytes:
            self.call("cuMemcpyDtoHAsync", array.ctypes.data, address, array.nbytes, stream)

    def copy(self, target: int, source: int, nbytes: int, stream: Any) -> None:
        """Queues a copy within the device."""
        if nbytes:
            self.call("cuMemcpyDtoDAsync", target, source, nbytes, stream)

    def fill(self, address: int, byte: int, nbytes: int, stream: Any) -> None:
        """Queues the setting of bytes."""
        if nbytes:
            self.call("cuMemsetD8Async", address, byte, nbytes, stream)

    # ------------------------------------------------------------------ order

    def stream(self) -> Any:
        """A new one, which does not wait for the default stream."""
        return self.call("cuStreamCreate", _NON_BLOCKING)

    def discard_stream(self, stream: Any) -> None:
        self.call("cuStreamDestroy", stream)

    def synchronize(self, stream: Any) -> None:
        """Waits for all that was queued. What a kernel did wrong is told here."""
        self.call("cuStreamSynchronize", stream)

    def wait_for(self, other: Any, stream: Any) -> None:
        """Makes a stream wait for all that was queued on another one until now."""
        event = self.event()
        self.record(event, other)
        self.call("cuStreamWaitEvent", stream, event, 0)
        self.call("cuEventDestroy", event)  # the driver keeps it until it was waited for

    def event(self) -> Any:
        """A new one, for times."""
        return self.call("cuEventCreate", _BLOCKING_SYNC_OFF)

    def record(self, event: Any, stream: Any) -> None:
        self.call("cuEventRecord", event, stream)

    def spans_ms(self, events: Sequence[Any]) -> list[float]:
        """Between each two events that follow each other and have passed; they are used up."""
        spans = [float(self.call("cuEventElapsedTime", a, b)) for a, b in itertools.pairwise(events)]
        for event in events:
            self.call("cuEventDestroy", event)
        return spans

    def captured(self, stream: Any, work: Callable[[], None]) -> Any:
        """What `work` queues on the stream, as a graph that is ready to be launched again and again."""
        mode = self._cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        self.call("cuStreamBeginCapture", stream, mode)
        try:
            work()
        finally:
            graph = self.call("cuStreamEndCapture", stream)
        try:
            return self.call("cuGraphInstantiate", graph, 0)
        finally:
            self.call("cuGraphDestroy", graph)

    def launch_graph(self, graph: Any, stream: Any) -> None:
        self.call("cuGraphLaunch", graph, stream)

    def discard_graph(self, graph: Any) -> None:
        self.call("cuGraphExecDestroy", graph)

    def close(self) -> None:
        """Gives back memory and code. What is used after this is refused by the driver."""
        if self._closed:
            return
        self._closed = True
        for address in tuple(self._allocated):
            self._cuda.cuMemFree(address)
        for module in self._modules:
            self._cuda.cuModuleUnload(module)
        self._cuda.cuDevicePrimaryCtxRelease(self._device)

    def __enter__(self) -> Device:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(self, name: str, *arguments: Any) -> Any:
        """One function of the driver; what it returns beside its status."""
        code, *values = getattr(self._cuda, name)(*arguments)
        if code.value:
            raise self._refused(name, code.name, arguments)
        return values[0] if len(values) == 1 else None

    def _refused(self, name: str, code: str, arguments: tuple[Any, ...]) -> PipelineError:
        if code == "CUDA_ERROR_OUT_OF_MEMORY":
            asked = f"{arguments[0]:,} bytes were asked for" if name == "cuMemAlloc" else f"{name} says so"
            held = sum(self._allocated.values()) if name == "cuMemAlloc" else 0
            return UserError(
                "the GPU has not enough memory",
                where=getattr(self, "name", "the GPU"),
                why=f"{asked}, {held:,} are held already",
                todo="End what else uses the GPU, choose smaller sizes, or a GPU with more memory",
            )
        if code in _ANOTHER:
            return UserError(
                "the GPU does not take the machine code",
                where=getattr(self, "name", "the GPU"),
                why=f"{name} says {code}",
                todo="Make it again with this GPU's architecture as the target, or update the driver",
            )
        return MeasureError(f"the driver of the GPU refuses {name}", why=code)

    def _function(self, module: Any, launch: Launch) -> Function:
        handle = self.call("cuModuleGetFunction", module, launch.symbol.encode())
        if launch.shared_bytes:  # more than 48 KiB must be asked for
            which = self._cuda.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            self.call("cuFuncSetAttribute", handle, which, launch.shared_bytes)
        return Function(handle, module, launch)

    def _attribute(self, name: str) -> int:
        which = getattr(self._cuda.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(self.call("cuDeviceGetAttribute", which, self._device))


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"
