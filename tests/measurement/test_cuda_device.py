"""Tests of the detection of a GPU, with a driver that answers as we like."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import pytest

from pipeline.codegen.cuda import driver
from pipeline.errors import UserError
from pipeline.measurement.cuda_device import detect_gpu

KNOWN = {
    "sm_75": {"arch": "sm_75", "tensor_fma": {"float16": 512.0}, "blocks": 16},
    "sm_80": {"arch": "sm_80", "tensor_fma": {"float16": 1024.0, "int8": 2048.0}, "blocks": 32},
}
A100 = {
    "COMPUTE_CAPABILITY_MAJOR": 8, "COMPUTE_CAPABILITY_MINOR": 0, "MULTIPROCESSOR_COUNT": 108,
    "MAX_THREADS_PER_BLOCK": 1024, "MAX_THREADS_PER_MULTIPROCESSOR": 2048, "MAX_BLOCKS_PER_MULTIPROCESSOR": 32,
    "MAX_REGISTERS_PER_MULTIPROCESSOR": 65536, "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": 167936,
    "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 166912, "RESERVED_SHARED_MEMORY_PER_BLOCK": 1024, "L2_CACHE_SIZE": 41943040,
    "MEMORY_CLOCK_RATE": 1215000, "GLOBAL_MEMORY_BUS_WIDTH": 5120, "CLOCK_RATE": 1410000,
}  # fmt: skip


class Result(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_NO_DEVICE = 100
    CUDA_ERROR_SYSTEM_DRIVER_MISMATCH = 803


class Attributes:
    """CU_DEVICE_ATTRIBUTE_X is "X"."""

    def __getattr__(self, name: str) -> str:
        return name.removeprefix("CU_DEVICE_ATTRIBUTE_")


class Driver:
    """What `cuda.bindings.driver` is, as far as we ask it."""

    CUresult, CUdevice_attribute = Result, Attributes()

    def __init__(
        self, facts: dict[str, int], name: str = "NVIDIA A100-SXM4-40GB", *, version: int = 13000,
        start: Result = Result.CUDA_SUCCESS, count: int = 1,
    ) -> None:  # fmt: skip
        self.facts, self.name, self.version, self.start, self.count = facts, name, version, start, count

    def cuInit(self, flags: int) -> tuple[Any, ...]:
        return (self.start,)

    def cuDriverGetVersion(self) -> tuple[Any, ...]:
        return (Result.CUDA_SUCCESS, self.version)

    def cuDeviceGetCount(self) -> tuple[Any, ...]:
        return (Result.CUDA_SUCCESS, self.count)

    def cuDeviceGet(self, number: int) -> tuple[Any, ...]:
        return (Result.CUDA_SUCCESS, number)

    def cuDeviceGetName(self, length: int, device: int) -> tuple[Any, ...]:
        return (Result.CUDA_SUCCESS, self.name.encode().ljust(length, b"\0"))

    def cuDeviceTotalMem(self, device: int) -> tuple[Any, ...]:
        return (Result.CUDA_SUCCESS, 42949672960)

    def cuDeviceGetAttribute(self, which: str, device: int) -> tuple[Any, ...]:
        return (Result.CUDA_SUCCESS, self.facts[which])


class Absent(Driver):
    """A machine without the library of the driver."""

    def cuInit(self, flags: int) -> tuple[Any, ...]:
        raise RuntimeError('Failure finding "libcuda.so"')


def test_the_limits_are_the_drivers_and_the_rates_the_architectures() -> None:
    found = detect_gpu(KNOWN, driver=Driver({**A100, "MAX_BLOCKS_PER_MULTIPROCESSOR": 31}))
    assert found["name"] == "NVIDIA A100-SXM4-40GB" and found["arch"] == "sm_80"
    assert (found["multiprocessors"], found["blocks"], found["shared_per_block"]) == (108, 31, 166912)
    assert found["clock_ghz"] == pytest.approx(1.41)
    assert found["bandwidth_gbs"] == pytest.approx(1555.2)
    assert found["tensor_fma"] == KNOWN["sm_80"]["tensor_fma"]


def test_an_architecture_that_is_not_known_has_the_rates_of_the_newest_before_it() -> None:
    found = detect_gpu(KNOWN, driver=Driver({**A100, "COMPUTE_CAPABILITY_MINOR": 7}))
    assert found["arch"] == "sm_87" and found["tensor_fma"]["float16"] == 1024.0


def test_a_geforce_card_multiplies_with_a_wide_accumulator_at_half_the_rate() -> None:
    found = detect_gpu(KNOWN, driver=Driver(A100, "NVIDIA GeForce RTX 3090"))
    assert found["tensor_fma"] == {"float16": 512.0, "int8": 2048.0}
    assert KNOWN["sm_80"]["tensor_fma"] == {"float16": 1024.0, "int8": 2048.0}


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (Absent(A100), ["no driver", "libcuda.so"]),
        (Driver(A100, start=Result.CUDA_ERROR_SYSTEM_DRIVER_MISMATCH), ["does not start", "SYSTEM_DRIVER_MISMATCH"]),
        (Driver(A100, version=12040), ["driver", "too old", "12.4", "13.0"]),
        (Driver(A100, start=Result.CUDA_ERROR_NO_DEVICE), ["no NVIDIA GPU"]),
        (Driver(A100, count=0), ["no NVIDIA GPU"]),
        (Driver({**A100, "COMPUTE_CAPABILITY_MAJOR": 7}, "Tesla V100"), ["Tesla V100 is too old", "7.0", "7.5"]),
    ],
)
def test_what_is_missing_is_said_once_with_the_targets_that_need_none(found: Driver, words: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        detect_gpu(KNOWN, instead=("t4", "a100"), driver=found)
    for word in [*words, "Choose a target that needs no GPU here: t4, a100"]:
        assert word in str(caught.value)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError(f"No module named '{name}'")

    monkeypatch.setattr(driver.importlib, "import_module", missing)
    with pytest.raises(UserError, match="pip install cuda-python"):
        detect_gpu(KNOWN)
