"""What the machine that a program is made for can do: the facts that rules, cost models and code generators ask for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Cache:
    """One level of cache: its size in bytes, its ways, and how many cores share it."""

    level: int
    size: int
    ways: int = 8
    shared_by: int = 1


@dataclass(frozen=True, slots=True)
class Target:
    """A CPU (a GPU adds fields of its own later).

    triple, cpu, features   for LLVM; a feature is written "+avx512f" or "-prefer-256-bit"
    vector_bits             width of the vectors that are generated
    vector_registers        how many of them there are
    fma_per_cycle           vector multiply-adds that one core issues per cycle
    fma_latency             cycles from issue to result of one of them
    clock_ghz               sustained clock of one core
    bandwidth_gbs           streaming read bandwidth of all cores together, in 10^9 bytes per second
    """

    kind: Literal["cpu"]
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

    def lanes(self, dtype_bytes: int = 4) -> int:
        """Elements of one vector."""
        return max(1, self.vector_bits // (8 * dtype_bytes))

    def peak_gflops(self, dtype_bytes: int = 4) -> float:
        """Multiply-adds count two. All cores together, 10^9 per second."""
        return 2.0 * self.lanes(dtype_bytes) * self.fma_per_cycle * self.clock_ghz * self.cores

    def cache(self, level: int) -> int:
        """Bytes of the cache of that level that one core can count on; 0 where there is none."""
        for cache in self.caches:
            if cache.level == level:
                return cache.size // max(1, min(cache.shared_by, self.cores))
        return 0
