"""The GPU of this machine as a target: what the driver tells of it, and what is known of its architecture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.codegen.cuda.driver import load_driver, started
from pipeline.errors import UserError
from pipeline.ir.target import capability_of

LEAST_CAPABILITY = 75
# GeForce cards multiply with a wide accumulator at half the rate of the same chip's other cards (Turing, Ampere and Ada
# white papers); int8 is as fast.
GEFORCE_SHARE = 0.5
GEFORCE_SLOWER = ("float16", "bfloat16", "tfloat32")

# Gpu's field -> attribute of the driver
ATTRIBUTES = {
    "multiprocessors": "MULTIPROCESSOR_COUNT",
    "threads_per_block": "MAX_THREADS_PER_BLOCK",
    "threads": "MAX_THREADS_PER_MULTIPROCESSOR",
    "blocks": "MAX_BLOCKS_PER_MULTIPROCESSOR",
    "registers": "MAX_REGISTERS_PER_MULTIPROCESSOR",
    "shared_bytes": "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR",
    "shared_per_block": "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN",
    "shared_reserved": "RESERVED_SHARED_MEMORY_PER_BLOCK",
    "l2_bytes": "L2_CACHE_SIZE",
}


def detect_gpu(
    architectures: Mapping[str, Mapping[str, Any]], *, instead: Sequence[str] = (), driver: Any = None
) -> dict[str, Any]:
    """The first GPU's facts: those of `pipeline.ir.target.Gpu` by name, and name, clock_ghz, bandwidth_gbs.

    architectures   what is known of each, by name; of an unknown one, what is known of the newest before it holds
    instead         targets that an error offers
    driver          cuda.bindings.driver, or what stands in for it

    Raises UserError where there is no driver, one older than the compiler, no GPU, or a GPU that is too old.
    """
    offer = f"Choose a target that needs no GPU here: {', '.join(instead)}" if instead else ""
    cuda = _started(driver, offer)
    device = _told(cuda, cuda.cuDeviceGet(0), offer)

    def attribute(name: str) -> int:
        which = getattr(cuda.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(_told(cuda, cuda.cuDeviceGetAttribute(which, device), offer))

    name = bytes(_told(cuda, cuda.cuDeviceGetName(128, device), offer)).split(b"\0")[0].decode(errors="replace")
    capability = 10 * attribute("COMPUTE_CAPABILITY_MAJOR") + attribute("COMPUTE_CAPABILITY_MINOR")
    facts = {**_architecture(architectures, capability, name, offer), "arch": f"sm_{capability}"}
    facts |= {field: attribute(which) for field, which in ATTRIBUTES.items()}
    # twice the clock: both edges carry data
    memory_khz, bus_bits = attribute("MEMORY_CLOCK_RATE"), attribute("GLOBAL_MEMORY_BUS_WIDTH")
    return facts | {
        "name": name,
        "memory_bytes": int(_told(cuda, cuda.cuDeviceTotalMem(device), offer)),
        "clock_ghz": attribute("CLOCK_RATE") / 1e6,
        "bandwidth_gbs": 2.0 * memory_khz * 1e3 * bus_bits / 8 / 1e9,
    }


def _started(driver: Any, offer: str) -> Any:
    try:
        return load_driver() if driver is None else started(driver)
    except UserError as error:
        todo = f"{error.todo.rstrip('.')}. {offer}" if offer else error.todo
        raise UserError(error.what, where="target", why=error.why, todo=todo) from error


def _told(cuda: Any, answer: tuple[Any, ...], offer: str) -> Any:
    """What a function of the driver returned beside its status."""
    code, *rest = answer
    if code != cuda.CUresult.CUDA_SUCCESS:
        raise UserError(f"the driver of the GPU answers with {code.name}", where="target", todo=offer)
    return rest[0]


def _architecture(
    architectures: Mapping[str, Mapping[str, Any]], capability: int, name: str, offer: str
) -> dict[str, Any]:
    known = {capability_of(arch): arch for arch in architectures}
    before = [found for found in known if found <= capability]
    if capability < LEAST_CAPABILITY or not before:
        raise UserError(
            f"{name} is too old: it has compute capability {capability / 10}, {LEAST_CAPABILITY / 10} is needed",
            where="target",
            todo=offer,
        )
    facts = dict(architectures[known[max(before)]])
    if "GeForce" in name:
        rates = facts["tensor_fma"]
        facts["tensor_fma"] = {
            dtype: rate * GEFORCE_SHARE if dtype in GEFORCE_SLOWER else rate for dtype, rate in rates.items()
        }
    return facts
