"""The peak kernels: registers only in the one, every word in the other."""

import re
from dataclasses import replace

import numpy as np
import pytest

from pipeline.codegen.llvm.compile import LoadedObject, assembly, compile_ir
from pipeline.codegen.llvm.team import Team
from pipeline.codegen.llvm.team_ir import team_object
from pipeline.errors import MeasureError
from pipeline.ir.target import Target
from pipeline.measurement import peak
from pipeline.measurement.host import detect_host
from pipeline.measurement.peak import accumulators, fma_ir, measure_peak, stream_ir

HOST = detect_host()
AVX2 = Target(
    kind="cpu",
    name="x86-64-v3",
    triple="x86_64-unknown-linux-gnu",
    cpu="x86-64-v3",
    features=("+avx2", "+fma"),
    cores=2,
    vector_bits=256,
    vector_registers=16,
    fma_per_cycle=2.0,
    fma_latency=5,
    clock_ghz=3.0,
    bandwidth_gbs=20.0,
    caches=(),
)
ARM = replace(
    AVX2,
    triple="aarch64-unknown-linux-gnu",
    cpu="neoverse-n1",
    features=("+neon",),
    vector_bits=128,
    vector_registers=32,
)


@pytest.mark.parametrize(("target", "fma"), [(AVX2, r"vfn?m(add|sub)\d+ps.*%ymm"), (ARM, r"fml[as]\s+v\d+\.4s")])
def test_the_loop_holds_one_multiply_add_per_accumulator_and_touches_no_memory(target, fma):
    text = assembly(fma_ir(target), target)
    loops = re.findall(r"^(\.LBB0_\d+):(.*?)^\s+(?:j\w+|b\.\w+)\s+\1", text, re.M | re.S)
    ((_, loop),) = loops
    assert len(re.findall(fma, loop)) == accumulators(target)
    assert "(%" not in loop
    assert "[" not in loop


def test_the_accumulators_cover_the_latency_and_fit_the_registers():
    for target in (AVX2, ARM, HOST):
        assert accumulators(target) <= target.vector_registers - 3
        assert accumulators(target) >= min(target.vector_registers - 3, target.fma_per_cycle * target.fma_latency)


@pytest.mark.parametrize("threads", [1, 2])
def test_every_word_of_the_buffer_is_read(threads):
    data = np.random.default_rng(0).integers(0, 2**60, 4096 * threads, dtype=np.int64)
    outs = np.zeros(64 * threads, np.int64)
    counts = np.array([data.size], np.int64)
    table = np.array([data.ctypes.data, counts.ctypes.data, outs.ctypes.data], np.uint64)
    loaded = LoadedObject(compile_ir(stream_ir(HOST), HOST))
    with Team(threads, LoadedObject(team_object(HOST))) as team:
        team.run(loaded.address("stream_peak"), table.ctypes.data)
    assert np.bitwise_xor.reduce(outs) == np.bitwise_xor.reduce(data)


def test_this_machine_has_a_peak():
    peak = measure_peak(HOST, 1, memory_bytes=1 << 24)
    assert peak.gflops > 0
    assert peak.bandwidth_gbs > 0
    assert peak.threads == 1


def test_no_threads_is_an_error():
    with pytest.raises(MeasureError, match="needs a thread"):
        measure_peak(HOST, 0)


@pytest.mark.parametrize(
    ("told", "wanted", "asked"),
    [
        ([180.0, 185.0, 100.0], 185.0, [2, 2, 1]),
        ([95.0, 180.0, 100.0], 180.0, [2, 2, 1]),
        ([95.0, 96.0, 100.0, 97.0, 190.0], 190.0, [2, 2, 1, 2, 2]),
        ([95.0, 96.0, 100.0, 97.0, 98.0, 94.0, 93.0], 98.0, [2, 2, 1, 2, 2, 2, 2]),
    ],
    ids=["at once", "busy at first", "busy for a while", "busy all the time"],
)
def test_cores_that_are_busy_are_looked_at_again(told, wanted, asked, monkeypatch):
    threads, answers = [], iter(told)

    def gflops(team, *_):
        threads.append(team.threads)
        return next(answers)

    monkeypatch.setattr(peak, "_gflops", gflops)
    monkeypatch.setattr(peak, "_bandwidth", lambda *_: 20.0)
    monkeypatch.setattr(peak.time, "sleep", lambda _: None)
    assert measure_peak(HOST, 2) == peak.Peak(wanted, 20.0, 2)
    assert threads == asked
