"""What the machine that a program is made for can do: the facts that rules, cost models and code generators ask for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

CAPABILITIES = (75, 80, 86, 89, 90, 100, 120)
_WIDTHS: Mapping[int, str] = {8: "float64", 4: "float32", 2: "float16", 1: "int8"}


@dataclass(frozen=True, slots=True)
class Cache:
    """One level of cache: its size in bytes, its ways, and how many cores share it."""

    level: int
    size: int
    ways: int = 8
    shared_by: int = 1


@dataclass(frozen=True, slots=True)
class Gpu:
    """The facts of an NVIDIA GPU, per multiprocessor where nothing else is said.

    arch                    "sm_80"; `capability` is 80
    multiprocessors         of the device
    threads_per_block       at most
    threads, blocks         resident at a time, at most
    registers               32-bit, of all threads
    registers_per_thread    at most
    shared_bytes            for the blocks that are resident
    shared_per_block        the opt-in limit of one block
    shared_reserved         bytes that the system takes of each block's
    l2_bytes                of the device
    l2_bytes_per_clock      that a multiprocessor gets from L2 where all of them read
    memory_bytes            of the device
    fma                     multiply-adds per clock of the ordinary units, by dtype
    tensor_fma              multiply-adds per clock of the tensor cores with a wide accumulator, by dtype of the factors
                            ("tfloat32" for float32 rounded to 10 bits); none: {}
    mma_share               of `tensor_fma` that the products of one warp (mma.sync) reach: newer tensor cores are fast
                            only for products of several warps
    special_per_clock       exponentials, square roots, reciprocals per clock
    memory_latency          cycles of a load from memory; `l2_latency` from L2, `shared_latency` from shared memory
    launch_us               from one kernel of a graph to the next
    """

    arch: str
    multiprocessors: int
    threads_per_block: int
    threads: int
    blocks: int
    registers: int
    registers_per_thread: int
    shared_bytes: int
    shared_per_block: int
    shared_reserved: int
    l2_bytes: int
    l2_bytes_per_clock: float
    memory_bytes: int
    fma: Mapping[str, float] = field(hash=False)
    tensor_fma: Mapping[str, float] = field(hash=False)
    mma_share: float
    special_per_clock: float
    memory_latency: int
    l2_latency: int
    shared_latency: int
    launch_us: float

    @property
    def capability(self) -> int:
        """Of compute: 75, 80, 86 …"""
        return capability_of(self.arch)


@dataclass(frozen=True, slots=True)
class Target:
    """A CPU or a GPU. Of a GPU, `cores` are its multiprocessors, `cpu` is its architecture, `vector_bits` the widest
    access of a thread to memory, and the fields about vector units say nothing.

    triple, cpu, features   for LLVM; a feature is written "+avx512f" or "-prefer-256-bit"
    vector_bits             width of the vectors that are generated
    vector_registers        how many of them there are
    fma_per_cycle           vector multiply-adds that one core issues per cycle
    fma_latency             cycles from issue to result of one of them
    clock_ghz               sustained clock of one core
    bandwidth_gbs           streaming read bandwidth of all cores together, in 10^9 bytes per second
    """

    kind: Literal["cpu", "cuda"]
    name: str
    triple: str
    cpu: str
    features: tuple[str, ...]
    cores: int
    vector_bits: int
    vector_registers: int
    fma_per_cycle: float
    fma_latency: int
    clock_ghz: float
    bandwidth_gbs: float
    caches: tuple[Cache, ...]
    line: int = 64
    gpu: Gpu | None = None

    def lanes(self, dtype_bytes: int = 4) -> int:
        """Elements of one vector."""
        return max(1, self.vector_bits // (8 * dtype_bytes))

    def peak_gflops(self, dtype_bytes: int = 4) -> float:
        """Multiply-adds count two. All cores together, 10^9 per second. Of a GPU: that of the fastest units."""
        if self.gpu is not None:
            return 2.0 * self.gpu_fma(_WIDTHS.get(dtype_bytes, "float32")) * self.clock_ghz * self.cores
        return 2.0 * self.lanes(dtype_bytes) * self.fma_per_cycle * self.clock_ghz * self.cores

    def gpu_fma(self, dtype: str) -> float:
        """Multiply-adds per clock of one multiprocessor at factors of that dtype."""
        assert self.gpu is not None, f"{self.name} is no GPU"
        plain = self.gpu.fma.get(dtype, self.gpu.fma.get("float32", 0.0))
        return max(plain, self.gpu.tensor_fma.get(dtype, 0.0))

    @property
    def core_cache(self) -> int:
        """Bytes that a core keeps in caches of its own; a guess where the system tells nothing of its second one."""
        return self.cache(2) or 1 << 20

    @property
    def last_cache(self) -> int:
        """Bytes that all cores together keep in caches."""
        return self.cores * (self.cache(3) or self.core_cache)

    def cache(self, level: int) -> int:
        """Bytes of the cache of that level that one core can count on; 0 where there is none."""
        for cache in self.caches:
            if cache.level == level:
                return cache.size // max(1, min(cache.shared_by, self.cores))
        return 0


def capability_of(arch: str) -> int:
    """ "sm_90a" -> 90."""
    return int(arch.removeprefix("sm_").rstrip("af"))


def gpu_target(name: str, clock_ghz: float, bandwidth_gbs: float, gpu: Gpu) -> Target:
    """The target of a GPU; `features` are the architectures whose instructions it has, its own last."""
    capability = gpu.capability
    return Target(
        kind="cuda",
        name=name,
        triple="nvptx64-nvidia-cuda",
        cpu=gpu.arch,
        features=(*(f"+sm_{known}" for known in CAPABILITIES if known < capability), f"+{gpu.arch}"),
        cores=gpu.multiprocessors,
        vector_bits=128,
        vector_registers=gpu.registers_per_thread,
        fma_per_cycle=1.0,
        fma_latency=4,
        clock_ghz=clock_ghz,
        bandwidth_gbs=bandwidth_gbs,
        caches=(Cache(2, gpu.l2_bytes, 16, gpu.multiprocessors),),
        line=128,
        gpu=gpu,
    )
