"""Tests of the description of this machine: what the system tells is used, and what it does not tell has a fallback."""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path

import pytest

from pipeline.ir.target import Cache
from pipeline.measurement import host
from pipeline.measurement.host import detect_host, fingerprint, vectors, with_overrides

ZEN4 = ("+avx", "+avx2", "+avx512f", "+fma")
HASWELL = ("+avx", "+avx2", "-avx512f", "+fma")
X86, ARM = "x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"


def write(root: Path, files: dict[str, str]) -> Path:
    """A file system with these files."""
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text + "\n", encoding="utf-8")
    return root


def cache(index: int, level: int, kind: str, size: str, shared: str) -> dict[str, str]:
    folder = f"sys/devices/system/cpu/cpu0/cache/index{index}"
    return {
        f"{folder}/level": str(level), f"{folder}/type": kind, f"{folder}/size": size,
        f"{folder}/ways_of_associativity": "12", f"{folder}/shared_cpu_list": shared,
        f"{folder}/coherency_line_size": "64",
    }  # fmt: skip


def test_this_machine_is_described() -> None:
    target = detect_host()
    assert target.kind == "cpu"
    assert target.cpu and target.triple
    assert 1 <= target.cores <= (os.cpu_count() or 1)
    assert target.vector_bits in (128, 256, 512)
    assert target.cache(1) > 0
    assert target.clock_ghz > 0 and target.bandwidth_gbs > 0 and target.peak_gflops() > 0
    assert detect_host() == target


def test_a_machine_that_tells_nothing_gets_conservative_figures(tmp_path: Path) -> None:
    target = detect_host(tmp_path)
    assert target.caches == host.FALLBACK_CACHES
    assert target.clock_ghz == host.FALLBACK_CLOCK_GHZ
    assert (target.line, target.cores >= 1) == (64, True)


def test_data_caches_are_read_and_instruction_caches_are_not(tmp_path: Path) -> None:
    files = cache(0, 1, "Data", "48K", "0") | cache(1, 1, "Instruction", "32K", "0")
    files |= cache(2, 2, "Unified", "1024K", "0-1") | cache(3, 3, "Unified", "32M", "0-3,8")
    target = detect_host(write(tmp_path, files))
    assert target.caches == (Cache(1, 48 << 10, 12, 1), Cache(2, 1 << 20, 12, 2), Cache(3, 32 << 20, 12, 5))


@pytest.mark.parametrize("text", ["", "many", "-3K", "0K", "12X"])
def test_a_cache_with_a_size_that_is_none_is_passed_over(tmp_path: Path, text: str) -> None:
    files = cache(0, 1, "Data", text, "0") | cache(2, 2, "Unified", "1024K", "0")
    assert [found.level for found in detect_host(write(tmp_path, files)).caches] == [2]


@pytest.mark.parametrize("file", ["level", "type", "size"])
def test_a_cache_that_lacks_a_file_is_passed_over(tmp_path: Path, file: str) -> None:
    write(tmp_path, cache(0, 1, "Data", "48K", "0"))
    (tmp_path / f"sys/devices/system/cpu/cpu0/cache/index0/{file}").unlink()
    assert detect_host(tmp_path).caches == host.FALLBACK_CACHES


@pytest.mark.skipif(sys.platform != "linux", reason="cgroups are Linux's")
@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"sys/fs/cgroup/cpu.max": "max 100000"}, 8),
        ({"sys/fs/cgroup/cpu.max": "300000 100000"}, 3),
        ({"sys/fs/cgroup/cpu.max": "50000 100000"}, 1),
        ({"sys/fs/cgroup/cpu.max": "9900000 100000"}, 8),
        ({"sys/fs/cgroup/cpu.max": "nonsense"}, 8),
        ({"sys/fs/cgroup/cpu.max": "100000 0"}, 8),
        ({"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "200000", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"}, 2),
        ({"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"}, 8),
        ({}, 8),
    ],
)
def test_cores_are_limited_by_affinity_and_by_the_cgroup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], cores: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    assert detect_host(write(tmp_path, files)).cores == cores


@pytest.mark.parametrize(
    ("files", "clock"),
    [
        ({"sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq": "4100000"}, 4.1),
        ({"proc/cpuinfo": "cpu MHz\t\t: 2596.100\ncpu MHz\t\t: 3100.000"}, 3.1),
        ({"proc/cpuinfo": "processor : 0"}, host.FALLBACK_CLOCK_GHZ),
    ],
)
def test_the_clock_is_the_highest_that_the_system_names(tmp_path: Path, files: dict[str, str], clock: float) -> None:
    assert detect_host(write(tmp_path, files)).clock_ghz == pytest.approx(clock)


@pytest.mark.parametrize(
    ("triple", "features", "expected"),
    [
        (X86, ZEN4, (512, 32)),
        (X86, HASWELL, (256, 16)),
        (X86, ("+sse2",), (128, 16)),
        (X86, (), (128, 16)),
        (ARM, ("+neon",), (128, 32)),
        ("arm64-apple-darwin24", (), (128, 32)),
        ("riscv64-unknown-linux-gnu", (), (128, 32)),
    ],
)
def test_vectors_follow_from_the_features(triple: str, features: tuple[str, ...], expected: tuple[int, int]) -> None:
    assert vectors(triple, features) == expected


def test_llvm_that_cannot_tell_the_features_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses() -> dict[str, bool]:
        raise RuntimeError("unsupported")

    monkeypatch.setattr(host.llvm, "get_host_cpu_features", refuses)
    assert detect_host(tmp_path).vector_bits == 128


def test_features_that_are_given_bring_their_vectors() -> None:
    target = with_overrides(detect_host(), triple=X86, features=HASWELL)
    assert (target.vector_bits, target.vector_registers) == (256, 16)


def test_a_narrower_vector_keeps_the_registers_unless_they_are_given() -> None:
    wide = with_overrides(detect_host(), triple=X86, features=ZEN4)
    narrow = with_overrides(wide, vector_bits=256)
    assert (narrow.vector_bits, narrow.vector_registers) == (256, 32)
    assert with_overrides(wide, vector_bits=256, vector_registers=16).vector_registers == 16


def test_what_is_given_is_kept_and_the_rest_is_not_touched() -> None:
    target = detect_host()
    assert with_overrides(target) == target
    assert with_overrides(target, cores=7, bandwidth_gbs=3.0) == dataclasses.replace(target, cores=7, bandwidth_gbs=3.0)


def test_the_fingerprint_names_the_machine_and_not_its_estimates() -> None:
    target = detect_host()
    assert fingerprint(target) == fingerprint(dataclasses.replace(target, clock_ghz=9.0, bandwidth_gbs=1.0))
    assert len(fingerprint(target)) == 16
    for change in (
        {"cores": target.cores + 1},
        {"vector_bits": 64},
        {"features": ()},
        {"cpu": "other"},
        {"caches": ()},
    ):
        assert fingerprint(dataclasses.replace(target, **change)) != fingerprint(target)
