"""The thread team: every thread runs, the barrier keeps regions apart, idle workers park and wake."""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np
import pytest

from pipeline.codegen.llvm.compile import LoadedObject, assembly, compile_ir, function_attributes
from pipeline.codegen.llvm.team import Team
from pipeline.codegen.llvm.team_ir import team_ir
from pipeline.errors import CodegenError, PipelineError
from pipeline.ir.target import Target

ROOT = Path(__file__).resolve().parents[2]


def _target(triple: str, cpu: str, features: tuple[str, ...]) -> Target:
    return Target(
        kind="cpu", name=cpu, triple=triple, cpu=cpu, features=features, cores=2, vector_bits=128, vector_registers=16,
        fma_per_cycle=2, fma_latency=4, clock_ghz=3.0, bandwidth_gbs=20.0, caches=(),
    )  # fmt: skip


NATIVE = _target(
    llvm.get_process_triple(),
    llvm.get_host_cpu_name(),
    tuple(("+" if on else "-") + name for name, on in sorted(llvm.get_host_cpu_features().items())),
)

# identify: out[thread] += threads + thread.
# rounds: {ptr counters, i64 rounds, ptr errors}. In each round every thread writes its counter, and after a barrier
# reads everybody's; a second barrier keeps the next round's writes away. A wrong value is counted.
# share: {ptr counts, i64 total, ptr by, i64 loops, i64 wanted}. Goes through a loop of `total` iterations so often,
# with no barrier between; counts each iteration, and those of each thread. Thread 0 goes on with its first piece only
# when thread 1 has done as many as wanted, or after a second or so.
JOBS = """
declare void @muschedule_barrier(ptr, i64)
declare void @muschedule_enter(ptr, i64, i64, i64, ptr)
declare i64 @muschedule_take(ptr, i64, i64, i64, ptr)
declare i32 @sched_yield()

define void @share(ptr %buffers, i64 %thread, i64 %threads, ptr %barrier) ATTRIBUTES {
entry:
  %counts = load ptr, ptr %buffers
  %total.at = getelementptr ptr, ptr %buffers, i64 1
  %total = load i64, ptr %total.at
  %by.at = getelementptr ptr, ptr %buffers, i64 2
  %by = load ptr, ptr %by.at
  %loops.at = getelementptr ptr, ptr %buffers, i64 3
  %loops = load i64, ptr %loops.at
  %wanted.at = getelementptr ptr, ptr %buffers, i64 4
  %wanted = load i64, ptr %wanted.at
  %mine = alloca [3 x i64], align 8
  %by.mine = getelementptr i64, ptr %by, i64 %thread
  %by.one = getelementptr i64, ptr %by, i64 1
  %first.thread = icmp eq i64 %thread, 0
  %waits = icmp ne i64 %wanted, 0
  %patient = and i1 %first.thread, %waits
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %i.next, %after ]
  %more = icmp slt i64 %i, %loops
  br i1 %more, label %enter, label %done
enter:
  call void @muschedule_enter(ptr %barrier, i64 %thread, i64 %threads, i64 %total, ptr %mine)
  br label %take
take:
  %first = call i64 @muschedule_take(ptr %barrier, i64 %thread, i64 %threads, i64 %total, ptr %mine)
  %none = icmp slt i64 %first, 0
  br i1 %none, label %after, label %piece
piece:
  %end.at = getelementptr i64, ptr %mine, i64 2
  %end = load i64, ptr %end.at
  br i1 %patient, label %wait, label %count
wait:
  %spins = phi i64 [ 0, %piece ], [ %spins.next, %spin ]
  %theirs = load atomic i64, ptr %by.one monotonic, align 8
  %enough = icmp sge i64 %theirs, %wanted
  %tired = icmp sge i64 %spins, 2000000
  %go = or i1 %enough, %tired
  br i1 %go, label %count, label %spin
spin:
  %ignored = call i32 @sched_yield()
  %spins.next = add i64 %spins, 1
  br label %wait
count:
  %j = phi i64 [ %first, %piece ], [ %first, %wait ], [ %j.next, %count ]
  %at = getelementptr i64, ptr %counts, i64 %j
  %old = atomicrmw add ptr %at, i64 1 monotonic
  %own = atomicrmw add ptr %by.mine, i64 1 monotonic
  %j.next = add i64 %j, 1
  %inside = icmp slt i64 %j.next, %end
  br i1 %inside, label %count, label %take
after:
  %i.next = add i64 %i, 1
  br label %loop
done:
  ret void
}

define void @identify(ptr %buffers, i64 %thread, i64 %threads, ptr %barrier) ATTRIBUTES {
  %out = load ptr, ptr %buffers
  %at = getelementptr i64, ptr %out, i64 %thread
  %old = load i64, ptr %at
  %add = add i64 %threads, %thread
  %new = add i64 %old, %add
  store i64 %new, ptr %at
  ret void
}

define void @rounds(ptr %buffers, i64 %thread, i64 %threads, ptr %barrier) ATTRIBUTES {
entry:
  %counters = load ptr, ptr %buffers
  %rounds.at = getelementptr ptr, ptr %buffers, i64 1
  %rounds = load i64, ptr %rounds.at
  %errors.at = getelementptr ptr, ptr %buffers, i64 2
  %errors = load ptr, ptr %errors.at
  %mine = getelementptr i64, ptr %counters, i64 %thread
  br label %round
round:
  %i = phi i64 [ 0, %entry ], [ %i.next, %after ]
  %more = icmp slt i64 %i, %rounds
  br i1 %more, label %write, label %done
write:
  store i64 %i, ptr %mine
  call void @muschedule_barrier(ptr %barrier, i64 %threads)
  br label %read
read:
  %j = phi i64 [ 0, %write ], [ %j.next, %next ]
  %their.at = getelementptr i64, ptr %counters, i64 %j
  %their = load i64, ptr %their.at
  %right = icmp eq i64 %their, %i
  br i1 %right, label %next, label %wrong
wrong:
  %ignored = atomicrmw add ptr %errors, i64 1 monotonic
  br label %next
next:
  %j.next = add i64 %j, 1
  %reading = icmp slt i64 %j.next, %threads
  br i1 %reading, label %read, label %after
after:
  call void @muschedule_barrier(ptr %barrier, i64 %threads)
  %i.next = add i64 %i, 1
  br label %round
done:
  ret void
}
""".replace("ATTRIBUTES", function_attributes(NATIVE))


@pytest.fixture(scope="module")
def code() -> LoadedObject:
    return LoadedObject((compile_ir(team_ir(NATIVE), NATIVE), compile_ir(JOBS, NATIVE)), target=NATIVE)


class Identify:
    """The arguments of the job `identify`."""

    def __init__(self, threads: int) -> None:
        self.out = np.zeros(threads, np.int64)
        self.buffers = np.array([self.out.ctypes.data], np.uint64)
        self.once = threads + np.arange(threads)

    @property
    def address(self) -> int:
        return self.buffers.ctypes.data


@pytest.mark.parametrize("threads", [1, 2, 3, 4])
def test_every_thread_runs_its_share_of_every_job(code: LoadedObject, threads: int) -> None:
    job = Identify(threads)
    with Team(threads, code) as team:
        for _ in range(500):
            team.run(code.address("identify"), job.address)
    assert job.out.tolist() == (500 * job.once).tolist()


@pytest.mark.parametrize(("threads", "rounds"), [(1, 10_000), (2, 10_000), (4, 1_000)])
def test_the_barrier_keeps_rounds_apart(code: LoadedObject, threads: int, rounds: int) -> None:
    counters, errors = np.zeros(threads, np.int64), np.zeros(1, np.int64)
    buffers = np.array([counters.ctypes.data, rounds, errors.ctypes.data], np.uint64)
    with Team(threads, code) as team:
        team.run(code.address("rounds"), buffers.ctypes.data)
    assert errors[0] == 0
    assert counters.tolist() == [rounds - 1] * threads


@dataclass
class Share:
    """The arguments of the job `share`."""

    threads: int
    total: int
    loops: int = 1
    wanted: int = 0

    def __post_init__(self) -> None:
        self.counts, self.by = np.zeros(self.total, np.int64), np.zeros(max(self.threads, 2), np.int64)
        given = [self.counts.ctypes.data, self.total, self.by.ctypes.data, self.loops, self.wanted]
        self.buffers = np.array(given, np.uint64)

    def run(self, code: LoadedObject) -> None:
        with Team(self.threads, code) as team:
            team.run(code.address("share"), self.buffers.ctypes.data)


@pytest.mark.parametrize(
    ("threads", "total", "loops"),
    [(1, 10, 3), (2, 1, 2000), (2, 2, 2000), (2, 100, 2000), (3, 7, 500), (4, 1001, 100), (12, 40, 20)],
)
def test_each_iteration_of_a_shared_loop_is_done_once(code: LoadedObject, threads: int, total: int, loops: int) -> None:
    job = Share(threads, total, loops)
    job.run(code)
    assert job.counts.tolist() == [loops] * total
    assert job.by.sum() == loops * total


def test_a_thread_that_is_done_takes_from_the_share_of_one_that_is_not(code: LoadedObject) -> None:
    piece = 17  # a third of one half
    job = Share(2, 100, wanted=100 - piece)
    job.run(code)
    assert job.counts.tolist() == [1] * 100
    assert job.by.tolist() == [piece, 100 - piece]


def test_the_round_check_fails_where_the_barrier_does_nothing() -> None:
    idle = JOBS.replace(
        "declare void @muschedule_barrier(ptr, i64)", "define void @idle(ptr %b, i64 %n) {\n ret void\n}"
    )
    idle = (
        idle.replace("@muschedule_barrier", "@idle")
        .replace("  store i64 %i, ptr %mine\n", "  store volatile i64 %i, ptr %mine\n")
        .replace("%their = load i64", "%their = load volatile i64")
    )
    broken = LoadedObject((compile_ir(team_ir(NATIVE), NATIVE), compile_ir(idle, NATIVE)))
    counters, errors = np.zeros(2, np.int64), np.zeros(1, np.int64)
    buffers = np.array([counters.ctypes.data, 200_000, errors.ctypes.data], np.uint64)
    with Team(2, broken) as team:
        team.run(broken.address("rounds"), buffers.ctypes.data)
    assert errors[0] > 0


@pytest.mark.parametrize("spin_us", [0, 20])
def test_parked_workers_wake(code: LoadedObject, spin_us: float) -> None:
    job = Identify(3)
    with Team(3, code, spin_us=spin_us) as team:
        for turn in range(20):
            time.sleep(0.005 if turn % 2 else 0)
            team.run(code.address("identify"), job.address)
    assert job.out.tolist() == (20 * job.once).tolist()


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")
def test_idle_workers_use_no_cpu(code: LoadedObject) -> None:
    def ticks(thread: int) -> int:
        fields = Path(f"/proc/self/task/{thread}/stat").read_text().rsplit(")", 1)[1].split()
        return int(fields[11]) + int(fields[12])

    others = set(threading.enumerate())  # teams that other tests still hold
    with Team(2, code) as team:
        job = Identify(2)
        team.run(code.address("identify"), job.address)
        (worker,) = set(threading.enumerate()) - others
        assert worker.native_id is not None
        time.sleep(0.05)
        before = ticks(worker.native_id)
        time.sleep(0.3)
        assert ticks(worker.native_id) - before <= 1


def test_a_team_stops_and_another_starts(code: LoadedObject) -> None:
    before = threading.active_count()
    for _ in range(20):
        job = Identify(3)
        with Team(3, code) as team:
            team.run(code.address("identify"), job.address)
        assert job.out.tolist() == job.once.tolist()
    assert threading.active_count() == before


def test_a_team_that_never_ran_stops(code: LoadedObject) -> None:
    team = Team(4, code)
    team.close()
    team.close()


def test_a_forgotten_team_ends_its_workers(code: LoadedObject) -> None:
    before = threading.active_count()
    team = Team(3, code)
    assert threading.active_count() == before + 2
    del team
    gc.collect()
    assert threading.active_count() == before


def test_a_closed_team_refuses_to_run(code: LoadedObject) -> None:
    team = Team(2, code)
    team.close()
    with pytest.raises(PipelineError, match="closed"):
        team.run(code.address("identify"), Identify(2).address)


def test_two_python_threads_share_a_team(code: LoadedObject) -> None:
    jobs = [Identify(2), Identify(2)]
    with Team(2, code) as team:

        def many(job: Identify) -> None:
            for _ in range(300):
                team.run(code.address("identify"), job.address)

        callers = [threading.Thread(target=many, args=(job,)) for job in jobs]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
    for job in jobs:
        assert job.out.tolist() == (300 * job.once).tolist()


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("cold", [False, True])
def test_timing_runs_the_job_as_often_as_asked(code: LoadedObject, threads: int, cold: bool) -> None:
    job = Identify(threads)
    flush = np.zeros(1 << 16, np.uint8) if cold else None
    with Team(threads, code) as team:
        samples = team.time(code.address("identify"), job.address, repeats=7, inner=5, flush=flush)
    assert job.out.tolist() == (35 * job.once).tolist()
    assert samples.shape == (7,) and (samples > 0).all()
    if flush is not None:
        assert flush.view(np.int64)[::8].tolist() == [7] * (flush.size // 64)


def test_the_clock_counts_nanoseconds(code: LoadedObject) -> None:
    usleep = ctypes.cast(ctypes.CDLL(None).usleep, ctypes.c_void_p).value
    assert usleep is not None
    with Team(1, code) as team:
        # usleep(useconds) as a job: its first argument, the buffers, is the number of microseconds.
        assert team.time(usleep, 3000, repeats=2).min() >= 3_000_000


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs thread affinity")
def test_pinned_threads_have_one_core_and_the_caller_gets_its_cores_back(code: LoadedObject) -> None:
    before = os.sched_getaffinity(0)
    cores = [min(before), max(before)]
    job = Identify(2)
    others = set(threading.enumerate())  # teams that other tests still hold
    with Team(2, code, cores=cores) as team:
        team.run(code.address("identify"), job.address)
        (worker,) = set(threading.enumerate()) - others
        assert worker.native_id is not None
        assert os.sched_getaffinity(worker.native_id) == {cores[1]}
        assert os.sched_getaffinity(0) == {cores[0]}
    assert os.sched_getaffinity(0) == before


def test_a_core_for_each_thread_or_none(code: LoadedObject) -> None:
    with pytest.raises(PipelineError, match="2 threads and 1 cores"):
        Team(2, code, cores=[0])
    with pytest.raises(PipelineError, match="threads is 0"):
        Team(0, code)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_process_is_refused(code: LoadedObject) -> None:
    with Team(2, code) as team:
        child = os.fork()
        if child == 0:
            try:
                team.run(0, 0)
            except PipelineError as error:
                os._exit(7 if "fork" in str(error) else 8)
            os._exit(9)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_the_interpreter_exits_while_workers_wait() -> None:
    script = f"""
import sys; sys.path.insert(0, {str(ROOT)!r}); sys.path.insert(0, {str(Path(__file__).parent)!r})
import test_team as t
code = t.LoadedObject((t.compile_ir(t.team_ir(t.NATIVE), t.NATIVE), t.compile_ir(t.JOBS, t.NATIVE)))
team = t.Team(3, code, spin_us=1e6)
job = t.Identify(3)
team.run(code.address("identify"), job.address)
print(job.out.tolist())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "[3, 4, 5]", "")


@pytest.mark.parametrize("triple", ["aarch64-unknown-linux-gnu", "x86_64-unknown-linux-gnu", "arm64-apple-macosx13.0"])
def test_the_team_compiles_for_other_systems(triple: str) -> None:
    target = _target(triple, "", ())
    text = assembly(team_ir(target), target)
    assert "isb" in text if triple.startswith(("aarch64", "arm64")) else "pause" in text
    assert ("syscall" in text) == ("linux" in triple)


def test_a_system_without_posix_is_refused() -> None:
    with pytest.raises(CodegenError, match="threads are not supported"):
        team_ir(_target("x86_64-pc-windows-msvc", "", ()))
