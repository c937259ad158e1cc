"""The measured limits of this machine: multiply-adds and bytes per second, of all threads together."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from pipeline.codegen.llvm.compile import LoadedObject, compile_ir, function_attributes
from pipeline.codegen.llvm.team import Team, own_cores
from pipeline.codegen.llvm.team_ir import team_object
from pipeline.errors import MeasureError
from pipeline.ir.target import Target

_ROUNDS = 15
_SAMPLE_NS = 3e6  # shorter than a time slice, so that some samples have the cores to themselves
_STREAMS = 8
_TOGETHER = 0.75  # of what one thread computes, times their number: what all together do where the cores are theirs
_AGAIN, _PAUSE_S = 4, 0.2


@dataclass(frozen=True, slots=True)
class Peak:
    """gflops          float32, a multiply-add counts two, in 10^9 per second
    bandwidth_gbs   streaming reads from memory, in 10^9 bytes per second
    threads         that ran together
    """

    gflops: float
    bandwidth_gbs: float
    threads: int


def measure_peak(target: Target, threads: int | None = None, *, memory_bytes: int | None = None) -> Peak:
    """Run two small kernels on this machine, which must be able to run the target's code; takes two seconds at most.

    Where all threads together compute far less than so many times one of them does, the cores are others' too at that
    moment (virtual cores may share a real one for a while): it is looked at again a little later, a few times.

    threads       by default the target's cores
    memory_bytes  of the buffer that is read; by default four times all caches together, at most 1 GiB
    """
    count = target.cores if threads is None else threads
    if count < 1:
        raise MeasureError("a peak needs a thread", why=f"threads is {count}", todo="Ask for 1 or more")
    loaded = LoadedObject([compile_ir(text, target) for text in (fma_ir(target), stream_ir(target))], target=target)
    code = LoadedObject(team_object(target))
    with Team(count, code, cores=own_cores(count)) as team:
        gflops = _gflops(team, loaded, target)
        bandwidth = _bandwidth(team, loaded, target, memory_bytes)
        gflops = max(gflops, _gflops(team, loaded, target))
    if count > 1:
        with Team(1, code, cores=own_cores(1)) as one:
            alone = _gflops(one, loaded, target)
        for _ in range(_AGAIN):
            if gflops > _TOGETHER * count * alone:
                break
            time.sleep(_PAUSE_S)
            with Team(count, code, cores=own_cores(count)) as team:
                gflops = max(gflops, _gflops(team, loaded, target))
    return Peak(gflops, bandwidth, count)


def accumulators(target: Target) -> int:
    """Independent chains: enough to cover the latency of a multiply-add, and few enough to stay in registers."""
    needed = int(target.fma_per_cycle * target.fma_latency + 0.5)
    return max(1, min(target.vector_registers - 3, needed + 2))


def fma_ir(target: Target) -> str:
    """Multiply-adds on registers only: `repeats` times one on each accumulator."""
    lanes, chains = target.lanes(4), accumulators(target)
    vector = f"<{lanes} x float>"
    phis = "\n".join(f"  %a{c} = phi {vector} [ %s{c}, %entry ], [ %n{c}, %loop ]" for c in range(chains))
    # Two factors that the compiler cannot know keep it from folding; they leave each accumulator near 1.
    starts = "\n".join(f"  %s{c} = fmul {vector} %x, splat (float {float(c + 1)})" for c in range(chains))
    steps = "\n".join(
        f"  %n{c} = call {vector} @llvm.fma.v{lanes}f32({vector} %a{c}, {vector} %x, {vector} %y)"
        for c in range(chains)
    )
    sums = [f"  %t0 = fadd {vector} %n0, %n0"]
    sums += [f"  %t{c} = fadd {vector} %t{c - 1}, %n{c}" for c in range(1, chains)]
    newline = "\n"
    return f"""
declare {vector} @llvm.fma.v{lanes}f32({vector}, {vector}, {vector})

define void @fma_peak(ptr %buffers, i64 %thread, i64 %threads, ptr %barrier) {function_attributes(target)} {{
entry:
  %data = load ptr, ptr %buffers
  %x = load {vector}, ptr %data, align 4
  %py = getelementptr float, ptr %data, i64 64
  %y = load {vector}, ptr %py, align 4
  %pr = getelementptr ptr, ptr %buffers, i64 1
  %counts = load ptr, ptr %pr
  %repeats = load i64, ptr %counts
{starts}
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
{phis}
{steps}
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, %repeats
  br i1 %more, label %loop, label %done
done:
{newline.join(sums)}
  %place = mul i64 %thread, 64
  %skipped = add i64 %place, 128
  %out = getelementptr float, ptr %data, i64 %skipped
  store {vector} %t{chains - 1}, ptr %out, align 4
  ret void
}}
"""


def stream_ir(target: Target) -> str:
    """The exclusive or of a buffer: each thread reads its own part, a few vectors at a time."""
    lanes = max(1, target.vector_bits // 64)
    vector = f"<{lanes} x i64>"
    step = lanes * _STREAMS
    phis = "\n".join(f"  %a{s} = phi {vector} [ zeroinitializer, %entry ], [ %n{s}, %body ]" for s in range(_STREAMS))
    loads = "\n".join(
        f"  %i{s} = add i64 %i, {s * lanes}\n  %p{s} = getelementptr i64, ptr %data, i64 %i{s}\n"
        f"  %v{s} = load {vector}, ptr %p{s}, align 8\n  %n{s} = xor {vector} %a{s}, %v{s}"
        for s in range(_STREAMS)
    )
    sums = [f"  %t1 = xor {vector} %a0, %a1"]
    sums += [f"  %t{s} = xor {vector} %t{s - 1}, %a{s}" for s in range(2, _STREAMS)]
    newline = "\n"
    return f"""
define void @stream_peak(ptr %buffers, i64 %thread, i64 %threads, ptr %barrier) {function_attributes(target)} {{
entry:
  %data = load ptr, ptr %buffers
  %pc = getelementptr ptr, ptr %buffers, i64 1
  %counts = load ptr, ptr %pc
  %words = load i64, ptr %counts
  %share = udiv i64 %words, %threads
  %steps = udiv i64 %share, {step}
  %length = mul i64 %steps, {step}
  %begin = mul i64 %thread, %share
  %end = add i64 %begin, %length
  br label %check
check:
  %i = phi i64 [ %begin, %entry ], [ %next, %body ]
{phis}
  %more = icmp ult i64 %i, %end
  br i1 %more, label %body, label %done
body:
{loads}
  %next = add i64 %i, {step}
  br label %check
done:
{newline.join(sums)}
  %pout = getelementptr ptr, ptr %buffers, i64 2
  %outs = load ptr, ptr %pout
  %place = mul i64 %thread, 64
  %out = getelementptr i64, ptr %outs, i64 %place
  store {vector} %t{_STREAMS - 1}, ptr %out, align 8
  ret void
}}
"""


def _gflops(team: Team, loaded: LoadedObject, target: Target) -> float:
    data = np.full(128 + 64 * team.threads, 0.5, np.float32)
    repeats = np.array([1000], np.int64)
    table = np.array([data.ctypes.data, repeats.ctypes.data], np.uint64)
    entry = loaded.address("fma_peak")
    once = float(team.time(entry, table.ctypes.data, repeats=3)[-1])
    repeats[0] = max(1000, int(1000 * _SAMPLE_NS / max(once, 1.0)))
    best = float(team.time(entry, table.ctypes.data, repeats=_ROUNDS).min())
    flops = 2.0 * target.lanes(4) * accumulators(target) * float(repeats[0]) * team.threads
    return flops / best


def _bandwidth(team: Team, loaded: LoadedObject, target: Target, memory_bytes: int | None) -> float:
    caches = sum(cache.size * max(1, target.cores // max(1, cache.shared_by)) for cache in target.caches)
    size = memory_bytes or min(max(4 * caches, 64 << 20), 1 << 30)
    data = np.ones(size // 8, np.int64)
    outs = np.zeros(64 * team.threads, np.int64)
    counts = np.array([data.size], np.int64)
    table = np.array([data.ctypes.data, counts.ctypes.data, outs.ctypes.data], np.uint64)
    entry = loaded.address("stream_peak")
    team.run(entry, table.ctypes.data)
    best = float(team.time(entry, table.ctypes.data, repeats=_ROUNDS).min())
    return data.nbytes / best
