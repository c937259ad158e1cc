"""This machine as a target: CPU, vector width, caches and cores, each with a fallback where the system is silent."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm

from pipeline.ir.target import Cache, Target

# What a container may use: of version 2 and of version 1 of Linux's control groups.
MEMORY_LIMITS = ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes")

FALLBACK_CLOCK_GHZ = 2.5
FALLBACK_CACHES = (Cache(1, 32 << 10, 8, 1), Cache(2, 512 << 10, 8, 1), Cache(3, 8 << 20, 16, 4))
BANDWIDTH_GBS_PER_CORE = 12.0
BANDWIDTH_GBS_AT_MOST = 60.0
SMALLEST_CGROUP_SHARE = 1
_FAMILY = 6  # digits of a GPU's fingerprint that its architecture alone decides
_FREE = ("memory_bytes",)  # of the facts of a GPU: how much there is changes no time, and drivers take their part of it


@dataclass(frozen=True, slots=True)
class Core:
    """What one core of a family issues: vector multiply-adds per cycle at a width, and the cycles until a result."""

    fma_per_cycle: float
    fma_latency: int


def detect_host(root: Path = Path("/")) -> Target:
    """This machine. Clock and bandwidth are estimates, good for a first ranking; peak figures are measured elsewhere.

    root   where `sys` and `proc` are looked up
    """
    cpu = llvm.get_host_cpu_name() or "generic"
    features = _features()
    triple = llvm.get_process_triple()
    bits, registers = vectors(triple, features)
    core = _core(triple, cpu, bits)
    cores = _cores(root)
    return Target(
        kind="cpu",
        name=_model_name(root) or cpu,
        triple=triple,
        cpu=cpu,
        features=features,
        cores=cores,
        vector_bits=bits,
        vector_registers=registers,
        fma_per_cycle=core.fma_per_cycle,
        fma_latency=core.fma_latency,
        clock_ghz=_clock_ghz(root),
        bandwidth_gbs=min(BANDWIDTH_GBS_AT_MOST, BANDWIDTH_GBS_PER_CORE * cores),
        caches=_caches(root),
        line=_line(root),
    )


def memory_of_host(root: Path = Path("/")) -> int:
    """Bytes of main memory, or of the container's share where that is less; root: where the file system begins."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for name in MEMORY_LIMITS:
        try:
            found.append(int((root / name).read_text(encoding="ascii")))
        except (OSError, ValueError):  # not there, or "max"
            continue
    return min(one for one in found if one > 0)


def with_overrides(target: Target, **given: Any) -> Target:
    """The target with some fields replaced, and those that follow from them, unless they are given too.

    A narrower vector on a machine with AVX-512 keeps its 32 registers, since AVX-512VL has them at every width.
    """
    features = tuple(given.get("features", target.features))
    triple = given.get("triple", target.triple)
    bits = given.get("vector_bits", target.vector_bits)
    follows: dict[str, Any] = {}
    if "features" in given or "triple" in given:
        widest, follows["vector_registers"] = vectors(triple, features)
        follows["vector_bits"] = bits = given.get("vector_bits", widest)
    if bits != target.vector_bits:
        core = _core(triple, given.get("cpu", target.cpu), bits)
        follows |= {"fma_per_cycle": core.fma_per_cycle, "fma_latency": core.fma_latency}
    if "cores" in given:
        follows["bandwidth_gbs"] = min(BANDWIDTH_GBS_AT_MOST, BANDWIDTH_GBS_PER_CORE * given["cores"])
    return replace(target, **(follows | given))


def fingerprint(target: Target) -> str:
    """Sixteen hexadecimal digits that name the machine in the store: equal where times may be compared.

    Estimates of a CPU (clock, bandwidth) are left out: they may differ from one start to the next. A GPU's are facts,
    and all that a prediction depends on is in it; its first digits are those of all GPUs of its architecture.
    """
    if target.gpu is not None:
        gpu = target.gpu
        facts = {f.name: _in_order(getattr(gpu, f.name)) for f in fields(gpu) if f.name not in _FREE}
        return _digest((target.kind, gpu.capability))[:_FAMILY] + _digest((
            target.name, target.cores, target.clock_ghz, target.bandwidth_gbs, *facts.items(),
        ))[_FAMILY:]  # fmt: skip
    return _digest((
        target.kind, target.name, target.triple, target.cpu, target.features, target.cores, target.vector_bits,
        target.vector_registers, tuple((c.level, c.size, c.shared_by) for c in target.caches), target.line,
    ))  # fmt: skip


def akin(one: str, other: str) -> bool:
    """Whether the fingerprints are of GPUs of one architecture, or of one machine."""
    return one[:_FAMILY] == other[:_FAMILY]


def _in_order(fact: object) -> object:
    """A fact as text shows it, whatever the order in which a table was written."""
    return tuple(sorted(fact.items())) if isinstance(fact, Mapping) else fact


def _digest(facts: tuple[object, ...]) -> str:
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


def vectors(triple: str, features: tuple[str, ...]) -> tuple[int, int]:
    """The width of the widest vector in bits, and how many vector registers there are."""
    has = set(features)
    if is_arm(triple):
        return 128, 32
    if is_x86(triple):
        if "+avx512f" in has:
            return 512, 32
        return (256, 16) if "+avx2" in has else (128, 16)
    return 128, 32


def is_x86(triple: str) -> bool:
    """Whether that is a 64-bit x86."""
    return triple.startswith(("x86_64", "amd64"))


def is_arm(triple: str) -> bool:
    """Whether that is a 64-bit Arm."""
    return triple.startswith(("aarch64", "arm64"))


def _features() -> tuple[str, ...]:
    """LLVM's names of what the CPU has and has not, sorted; empty where LLVM cannot tell."""
    try:
        found: Mapping[str, bool] = llvm.get_host_cpu_features()
    except RuntimeError:
        return ("+neon",) if is_arm(llvm.get_process_triple()) else ()
    return tuple(("+" if found[name] else "-") + name for name in sorted(found))


def _core(triple: str, cpu: str, bits: int) -> Core:
    """Typical figures of the family. Zen 4 and small Intel parts issue one 512-bit multiply-add per cycle, not two."""
    if is_arm(triple):
        narrow = cpu.startswith(("cortex-a5", "cortex-a3"))
        wide = cpu.startswith(("apple", "neoverse-v", "cortex-x"))
        return Core(4.0 if wide else 1.0 if narrow else 2.0, 4)
    half_rate = bits == 512 and cpu in ("znver4", "icelake-client", "tigerlake", "rocketlake", "cannonlake")
    return Core(1.0 if half_rate else 2.0, 5 if cpu == "haswell" else 4)


def _cores(root: Path) -> int:
    """Cores that this process may use: its affinity, limited by the quota of its cgroup."""
    if sys.platform == "linux":
        allowed = len(os.sched_getaffinity(0))
    else:
        allowed = os.cpu_count() or 1
    quota = _quota(root)
    return max(SMALLEST_CGROUP_SHARE, min(allowed, int(quota)) if quota is not None else allowed)


def _quota(root: Path) -> float | None:
    """Cores that the cgroup grants; None where it sets no limit, or is not readable."""
    v2 = _read(root / "sys/fs/cgroup/cpu.max")
    if v2 is not None:
        quota, _, period = v2.partition(" ")
        return _ratio(quota, period)
    quota = _read(root / "sys/fs/cgroup/cpu/cpu.cfs_quota_us") or ""
    period = _read(root / "sys/fs/cgroup/cpu/cpu.cfs_period_us") or ""
    return _ratio(quota, period)


def _ratio(quota: str, period: str) -> float | None:
    if not quota.isdigit() or not period.isdigit() or int(period) == 0 or int(quota) == 0:
        return None
    return int(quota) / int(period)


def _caches(root: Path) -> tuple[Cache, ...]:
    """Data caches of the first core that tells, lowest level first."""
    found: dict[int, Cache] = {}
    for folder in sorted((root / "sys/devices/system/cpu").glob("cpu[0-9]*/cache")):
        for index in sorted(folder.glob("index[0-9]*")):
            cache = _cache(index)
            if cache is not None:
                found.setdefault(cache.level, cache)
        if found:
            return tuple(found[level] for level in sorted(found))
    return FALLBACK_CACHES


def _cache(index: Path) -> Cache | None:
    kind, level, size = _read(index / "type"), _read(index / "level"), _bytes(_read(index / "size") or "")
    if kind not in ("Data", "Unified") or level is None or not level.isdigit() or size is None:
        return None
    ways = _read(index / "ways_of_associativity") or ""
    shared = _count(_read(index / "shared_cpu_list") or "")
    return Cache(int(level), size, int(ways) if ways.isdigit() and int(ways) > 0 else 8, max(1, shared))


def _bytes(text: str) -> int | None:
    match = re.fullmatch(r"(\d+)([KMG]?)", text)
    if match is None or int(match[1]) == 0:
        return None
    return int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[match[2]]


def _count(cpus: str) -> int:
    """How many CPUs a list such as `0-3,8` holds."""
    total = 0
    for part in cpus.split(","):
        first, _, last = part.partition("-")
        if first.isdigit():
            total += int(last) - int(first) + 1 if last.isdigit() else 1
    return total


def _line(root: Path) -> int:
    text = _read(root / "sys/devices/system/cpu/cpu0/cache/index0/coherency_line_size") or ""
    return int(text) if text.isdigit() and int(text) > 0 else 64


def _clock_ghz(root: Path) -> float:
    """The highest frequency that the system names, in GHz: sustained clocks are near it on the machines that tell."""
    text = _read(root / "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq") or ""
    if text.isdigit() and int(text) > 0:
        return int(text) / 1e6
    rates = re.findall(r"^cpu MHz\s*:\s*([\d.]+)", _read(root / "proc/cpuinfo") or "", re.MULTILINE)
    fastest = max((float(rate) for rate in rates), default=0.0)
    return fastest / 1e3 if fastest > 0 else FALLBACK_CLOCK_GHZ


def _model_name(root: Path) -> str:
    match = re.search(r"^model name\s*:\s*(.+)$", _read(root / "proc/cpuinfo") or "", re.MULTILINE)
    return match[1].strip() if match else platform.processor()


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None
