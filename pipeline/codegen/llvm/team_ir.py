"""The thread team in LLVM IR: a barrier, shared loops, workers that spin and park, the launch of a job, a stop watch.

The module is compiled once for a process and put into every artifact. Its functions:

    void muschedule_barrier(ptr barrier, i64 threads)    all threads of a job have come here before any goes on
    void muschedule_enter(ptr barrier, i64 thread, i64 threads, i64 total, ptr mine)
                                                         begins to share out the iterations 0 to total - 1 of a loop
    i64 muschedule_take(ptr barrier, i64 thread, i64 threads, i64 total, ptr mine)
                                                         the first iteration of the next piece, -1 after the last one
    void muschedule_worker(ptr team, i64 thread)         the life of a worker thread: runs jobs until the team stops
    void muschedule_run(ptr team, ptr job, ptr buffers)  all threads run the job; the caller is thread 0
    void muschedule_time(ptr team, ptr job, ptr buffers, i64 repeats, i64 inner, ptr samples)
                                                         nanoseconds of each of `repeats` blocks of `inner` runs, as i64
    void muschedule_time_cold(…, ptr flush, i64 bytes)   the same, and before each block all threads overwrite `flush`
    void muschedule_stop(ptr team)                       the workers return
"""

from __future__ import annotations

from functools import cache

from pipeline.codegen.llvm.compile import compile_ir, function_attributes
from pipeline.errors import CodegenError
from pipeline.ir.target import Target

# Fields that different threads write are two cache lines apart: CPUs fetch lines in pairs.
LINE = 128
BARRIER_BYTES = 2 * LINE
"""Zeroed, LINE-aligned memory of one barrier: {i32 arrived, pad, i32 generation, pad}. Several threads need a line each
behind it: see `team_bytes`."""
TEAM_BYTES = 6 * LINE
"""Zeroed, LINE-aligned memory of one team, without what `team_bytes` adds: {i64 threads, i64 spin_ns, i64 stopped, pad,
i32 epoch, ptr job, ptr buffers, pad, i32 parked, pad, i32 done, pad, barrier}. The owner fills in the first two before
workers start."""
OTHERS = 8  # whose work a thread that is done with its own looks at
SHARING = ("muschedule_barrier", "muschedule_enter", "muschedule_take")  # functions that kernels call
MINE_BYTES = 24  # of the memory in which a thread keeps where it is in one loop: {i64 whose, i64 round, i64 end}


def team_bytes(threads: int) -> int:
    """Of a team: behind its barrier lies a line for each thread, with what is left of its share of a loop."""
    return TEAM_BYTES + threads * LINE


@cache
def team_object(target: Target) -> bytes:
    """Object code of `team_ir`, compiled once for each target."""
    return compile_ir(team_ir(target), target)


def team_ir(target: Target) -> str:
    """The module that defines the functions above."""
    machine, _, system = target.triple.partition("-")
    if "windows" in system:
        raise CodegenError(
            "threads are not supported on this system",
            where=target.triple,
            why="the team parks and yields through POSIX calls",
            todo="Use a Linux or macOS target",
        )
    match machine:
        case "x86_64" | "amd64":
            pause, declare_pause = "call void @llvm.x86.sse2.pause()", "declare void @llvm.x86.sse2.pause()"
        case "aarch64" | "arm64":
            # `yield` does nothing on most cores; an instruction barrier waits as long as x86's pause.
            pause, declare_pause = "call void @llvm.aarch64.isb(i32 15)", "declare void @llvm.aarch64.isb(i32)"
        case _:
            pause, declare_pause = "fence seq_cst", ""
    futex = {"x86_64": 202, "amd64": 202, "aarch64": 98, "arm64": 98, "riscv64": 98}.get(machine)
    park = _FUTEX.replace("FUTEX", str(futex)) if "linux" in system and futex is not None else _SLEEP
    clock = "6" if any(name in system for name in ("darwin", "macos")) else "1"
    text = _TEAM + _SHARE + park + declare_pause + "\n"
    values = {"PAUSE": pause, "CLOCK": clock, "ATTRIBUTES": function_attributes(target)}
    values |= {"BARRIER_BYTES": str(BARRIER_BYTES), "LINE_BYTES": str(LINE), "OTHERS": str(OTHERS + 1)}
    for word, value in values.items():
        text = text.replace(word, value)
    return text


_TEAM = """
%muschedule.barrier = type { i32, [124 x i8], i32, [124 x i8] }
%muschedule.team = type { i64, i64, i64, [104 x i8], i32, ptr, ptr, [104 x i8], i32, [124 x i8], i32, [124 x i8],
                          %muschedule.barrier }

declare i32 @sched_yield()
declare i32 @clock_gettime(i32, ptr)

define internal i64 @muschedule.now() ATTRIBUTES {
  %time = alloca { i64, i64 }
  %status = call i32 @clock_gettime(i32 CLOCK, ptr %time)
  %seconds = load i64, ptr %time
  %rest = getelementptr { i64, i64 }, ptr %time, i64 0, i32 1
  %nanoseconds = load i64, ptr %rest
  %whole = mul i64 %seconds, 1000000000
  %sum = add i64 %whole, %nanoseconds
  ret i64 %sum
}

; Returns when *word is no longer `old`: spins first, then gives the core to whoever else wants it.
define internal void @muschedule.await(ptr %word, i32 %old) ATTRIBUTES {
entry:
  br label %look
look:
  %spins = phi i32 [ 0, %entry ], [ %more, %pause ], [ %spins, %yield ]
  %now = load atomic i32, ptr %word acquire, align 4
  %same = icmp eq i32 %now, %old
  br i1 %same, label %wait, label %done
wait:
  %patient = icmp ult i32 %spins, 1024
  br i1 %patient, label %pause, label %yield
pause:
  PAUSE
  %more = add i32 %spins, 1
  br label %look
yield:
  %ignored = call i32 @sched_yield()
  br label %look
done:
  ret void
}

; The last thread to arrive starts the next generation; the others wait for it.
define void @muschedule_barrier(ptr %barrier, i64 %threads) ATTRIBUTES {
entry:
  %alone = icmp sle i64 %threads, 1
  br i1 %alone, label %done, label %arrive
arrive:
  %generation.at = getelementptr %muschedule.barrier, ptr %barrier, i64 0, i32 2
  %generation = load atomic i32, ptr %generation.at monotonic, align 4
  %before = atomicrmw add ptr %barrier, i32 1 acq_rel
  %arrived = zext i32 %before to i64
  %count = add i64 %arrived, 1
  %last = icmp eq i64 %count, %threads
  br i1 %last, label %open, label %wait
open:
  store atomic i32 0, ptr %barrier monotonic, align 4
  %next = add i32 %generation, 1
  store atomic i32 %next, ptr %generation.at release, align 4
  br label %done
wait:
  call void @muschedule.await(ptr %generation.at, i32 %generation)
  br label %done
done:
  ret void
}

define void @muschedule_worker(ptr %team, i64 %thread) ATTRIBUTES {
entry:
  %threads = load i64, ptr %team
  %spin.at = getelementptr %muschedule.team, ptr %team, i64 0, i32 1
  %spin.ns = load i64, ptr %spin.at
  %stopped.at = getelementptr %muschedule.team, ptr %team, i64 0, i32 2
  %epoch.at = getelementptr %muschedule.team, ptr %team, i64 0, i32 4
  %job.at = getelementptr %muschedule.team, ptr %team, i64 0, i32 5
  %buffers.at = getelementptr %muschedule.team, ptr %team, i64 0, i32 6
  %parked.at = getelementptr %muschedule.team, ptr %team, i64 0, i32 8
  %done.at = getelementptr %muschedule.team, ptr %team, i64 0, i32 10
  %barrier = getelementptr %muschedule.team, ptr %team, i64 0, i32 12
  br label %idle
idle:
  ; A team begins at epoch 0 and waits for all workers in each, so that one which starts late misses nothing.
  %seen = phi i32 [ 0, %entry ], [ %epoch, %work ]
  %began = call i64 @muschedule.now()
  br label %look
look:
  %spins = phi i32 [ 0, %idle ], [ %more, %pause ], [ 0, %clock ]
  %now = load atomic i32, ptr %epoch.at acquire, align 4
  %same = icmp eq i32 %now, %seen
  br i1 %same, label %wait, label %wake
wait:
  %patient = icmp ult i32 %spins, 64
  br i1 %patient, label %pause, label %clock
pause:
  PAUSE
  %more = add i32 %spins, 1
  br label %look
clock:
  ; Whoever shares this core may be the one that we wait for.
  %ignored = call i32 @sched_yield()
  %time = call i64 @muschedule.now()
  %waited = sub i64 %time, %began
  %early = icmp slt i64 %waited, %spin.ns
  br i1 %early, label %look, label %park
park:
  ; The launch writes the epoch and then reads `parked`; we write `parked` and then read the epoch. One of the two sees
  ; the other, so no wake-up is lost.
  %registered = atomicrmw add ptr %parked.at, i32 1 seq_cst
  br label %sleep
sleep:
  %still = load atomic i32, ptr %epoch.at seq_cst, align 4
  %unchanged = icmp eq i32 %still, %seen
  br i1 %unchanged, label %nap, label %unpark
nap:
  call void @muschedule.park(ptr %epoch.at, i32 %seen)
  br label %sleep
unpark:
  %unregistered = atomicrmw sub ptr %parked.at, i32 1 seq_cst
  br label %wake
wake:
  %epoch = load atomic i32, ptr %epoch.at acquire, align 4
  %stopped = load atomic i64, ptr %stopped.at monotonic, align 8
  %stop = icmp ne i64 %stopped, 0
  br i1 %stop, label %leave, label %work
work:
  %job = load ptr, ptr %job.at
  %buffers = load ptr, ptr %buffers.at
  call void %job(ptr %buffers, i64 %thread, i64 %threads, ptr %barrier)
  %finished = atomicrmw add ptr %done.at, i32 1 release
  br label %idle
leave:
  ret void
}

; Starts the next epoch, in which workers either run the published job or leave.
define internal void @muschedule.launch(ptr %team) ATTRIBUTES {
  %epoch.at = getelementptr %muschedule.team, ptr %team, i64 0, i32 4
  %parked.at = getelementptr %muschedule.team, ptr %team, i64 0, i32 8
  %last = atomicrmw add ptr %epoch.at, i32 1 seq_cst
  %parked = load atomic i32, ptr %parked.at seq_cst, align 4
  %none = icmp eq i32 %parked, 0
  br i1 %none, label %done, label %wake
wake:
  call void @muschedule.wake(ptr %epoch.at)
  br label %done
done:
  ret void
}

define void @muschedule_run(ptr %team, ptr %job, ptr %buffers) ATTRIBUTES {
entry:
  %threads = load i64, ptr %team
  %barrier = getelementptr %muschedule.team, ptr %team, i64 0, i32 12
  %alone = icmp sle i64 %threads, 1
  br i1 %alone, label %direct, label %publish
direct:
  call void %job(ptr %buffers, i64 0, i64 1, ptr %barrier)
  ret void
publish:
  %job.at = getelementptr %muschedule.team, ptr %team, i64 0, i32 5
  %buffers.at = getelementptr %muschedule.team, ptr %team, i64 0, i32 6
  %done.at = getelementptr %muschedule.team, ptr %team, i64 0, i32 10
  store ptr %job, ptr %job.at
  store ptr %buffers, ptr %buffers.at
  store atomic i32 0, ptr %done.at monotonic, align 4
  call void @muschedule.launch(ptr %team)
  call void %job(ptr %buffers, i64 0, i64 %threads, ptr %barrier)
  %workers.wide = sub i64 %threads, 1
  %workers = trunc i64 %workers.wide to i32
  br label %look
look:
  %done = load atomic i32, ptr %done.at acquire, align 4
  %all = icmp eq i32 %done, %workers
  br i1 %all, label %return, label %wait
wait:
  call void @muschedule.await(ptr %done.at, i32 %done)
  br label %look
return:
  ret void
}

; A job: each thread rewrites its part of {ptr memory, i64 bytes}, one word of each 64 bytes.
define internal void @muschedule.sweep(ptr %what, i64 %thread, i64 %threads, ptr %barrier) ATTRIBUTES {
entry:
  %memory = load ptr, ptr %what
  %bytes.at = getelementptr { ptr, i64 }, ptr %what, i64 0, i32 1
  %bytes = load i64, ptr %bytes.at
  %lines = lshr i64 %bytes, 6
  %low = mul i64 %lines, %thread
  %first = udiv i64 %low, %threads
  %next.thread = add i64 %thread, 1
  %high = mul i64 %lines, %next.thread
  %last = udiv i64 %high, %threads
  br label %look
look:
  %line = phi i64 [ %first, %entry ], [ %next, %body ]
  %inside = icmp ult i64 %line, %last
  br i1 %inside, label %body, label %done
body:
  %offset = shl i64 %line, 6
  %word = getelementptr i8, ptr %memory, i64 %offset
  %value = load volatile i64, ptr %word, align 1
  %changed = add i64 %value, 1
  store volatile i64 %changed, ptr %word, align 1
  %next = add i64 %line, 1
  br label %look
done:
  ret void
}

define void @muschedule_time_cold(ptr %team, ptr %job, ptr %buffers, i64 %repeats, i64 %inner, ptr %samples,
                                  ptr %flush, i64 %bytes) ATTRIBUTES {
entry:
  %what = alloca { ptr, i64 }
  store ptr %flush, ptr %what
  %bytes.at = getelementptr { ptr, i64 }, ptr %what, i64 0, i32 1
  store i64 %bytes, ptr %bytes.at
  %warm = icmp eq i64 %bytes, 0
  br label %look
look:
  %sample = phi i64 [ 0, %entry ], [ %next, %stop ]
  %inside = icmp slt i64 %sample, %repeats
  br i1 %inside, label %prepare, label %done
prepare:
  br i1 %warm, label %start, label %sweep
sweep:
  call void @muschedule_run(ptr %team, ptr @muschedule.sweep, ptr %what)
  br label %start
start:
  %began = call i64 @muschedule.now()
  br label %again
again:
  %turn = phi i64 [ 0, %start ], [ %turn.next, %body ]
  %turning = icmp slt i64 %turn, %inner
  br i1 %turning, label %body, label %stop
body:
  call void @muschedule_run(ptr %team, ptr %job, ptr %buffers)
  %turn.next = add i64 %turn, 1
  br label %again
stop:
  %ended = call i64 @muschedule.now()
  %took = sub i64 %ended, %began
  %sample.at = getelementptr i64, ptr %samples, i64 %sample
  store i64 %took, ptr %sample.at
  %next = add i64 %sample, 1
  br label %look
done:
  ret void
}

define void @muschedule_time(ptr %team, ptr %job, ptr %buffers, i64 %repeats, i64 %inner, ptr %samples) ATTRIBUTES {
  call void @muschedule_time_cold(ptr %team, ptr %job, ptr %buffers, i64 %repeats, i64 %inner, ptr %samples,
                                  ptr null, i64 0)
  ret void
}

define void @muschedule_stop(ptr %team) ATTRIBUTES {
  %stopped.at = getelementptr %muschedule.team, ptr %team, i64 0, i32 2
  store atomic i64 1, ptr %stopped.at release, align 8
  call void @muschedule.launch(ptr %team)
  ret void
}
"""

# How the iterations of a loop are shared out. Each thread begins with a contiguous share of its own, as large as all
# others, and takes it in pieces; one that has done its share takes pieces of the shares of others. So nobody waits for
# a thread on a slow core (an efficiency core, or one whose other half another program has), and as long as all are as
# fast no memory is touched but each thread's own line.
#
# The line of a thread is one word, {i32 next iteration, i32 round}, lower half first; it counts loops in the upper
# half. All threads go through the same loops, so that equal rounds are the same loop. Others take from a share only in
# their own round: a thread that is behind or ahead has nothing to give, since who leaves a loop has seen its share
# taken. What is computed does not depend on who does it.
_SHARE = """
define void @muschedule_enter(ptr %barrier, i64 %thread, i64 %threads, i64 %total, ptr %mine) ATTRIBUTES {
entry:
  store i64 0, ptr %mine
  %alone = icmp sle i64 %threads, 1
  br i1 %alone, label %done, label %begin
begin:
  %lines = mul i64 %thread, LINE_BYTES
  %offset = add i64 %lines, BARRIER_BYTES
  %word.at = getelementptr i8, ptr %barrier, i64 %offset
  %old = load atomic i64, ptr %word.at monotonic, align 8
  %last = lshr i64 %old, 32
  %next = add i64 %last, 1
  %round = and i64 %next, 4294967295
  %upper = shl i64 %round, 32
  %scaled = mul i64 %thread, %total
  %first = udiv i64 %scaled, %threads
  %word = or i64 %upper, %first
  store atomic i64 %word, ptr %word.at release, align 8
  %round.at = getelementptr i64, ptr %mine, i64 1
  store i64 %round, ptr %round.at
  br label %done
done:
  ret void
}

define i64 @muschedule_take(ptr %barrier, i64 %thread, i64 %threads, i64 %total, ptr %mine) ATTRIBUTES {
entry:
  %start = load i64, ptr %mine
  %round.at = getelementptr i64, ptr %mine, i64 1
  %end.at = getelementptr i64, ptr %mine, i64 2
  %alone = icmp sle i64 %threads, 1
  br i1 %alone, label %all, label %share
all:
  %again = icmp ne i64 %start, 0
  br i1 %again, label %none, label %whole
whole:
  store i64 1, ptr %mine
  store i64 %total, ptr %end.at
  ret i64 0
share:
  %round = load i64, ptr %round.at
  %few = icmp ult i64 %threads, OTHERS
  %most = select i1 %few, i64 %threads, i64 OTHERS
  br label %whose
whose:
  %other = phi i64 [ %start, %share ], [ %other.next, %leave ]
  %left = icmp ult i64 %other, %most
  br i1 %left, label %find, label %end
find:
  %sum = add i64 %thread, %other
  %owner = urem i64 %sum, %threads
  %lines = mul i64 %owner, LINE_BYTES
  %offset = add i64 %lines, BARRIER_BYTES
  %word.at = getelementptr i8, ptr %barrier, i64 %offset
  %following = add i64 %owner, 1
  %scaled = mul i64 %following, %total
  %share.end = udiv i64 %scaled, %threads
  br label %look
look:
  %word = load atomic i64, ptr %word.at acquire, align 8
  %their.round = lshr i64 %word, 32
  %same = icmp eq i64 %their.round, %round
  br i1 %same, label %measure, label %leave
measure:
  %next = and i64 %word, 4294967295
  %some = icmp ult i64 %next, %share.end
  br i1 %some, label %claim, label %leave
claim:
  ; a third of what is left: large pieces first, whose data are neighbours, and small ones at the end
  %rest = sub i64 %share.end, %next
  %up = add i64 %rest, 2
  %piece = udiv i64 %up, 3
  %claimed = add i64 %word, %piece
  %pair = cmpxchg ptr %word.at, i64 %word, i64 %claimed acq_rel acquire
  %won = extractvalue { i64, i1 } %pair, 1
  br i1 %won, label %got, label %look
got:
  store i64 %other, ptr %mine
  %piece.end = add i64 %next, %piece
  store i64 %piece.end, ptr %end.at
  ret i64 %next
leave:
  %other.next = add i64 %other, 1
  br label %whose
end:
  store i64 %most, ptr %mine
  br label %none
none:
  ret i64 -1
}
"""

# futex(word, FUTEX_WAIT | FUTEX_PRIVATE_FLAG, old) sleeps only while *word is `old`; FUTEX_WAKE wakes every sleeper.
_FUTEX = """
declare i64 @syscall(i64, ...)

define internal void @muschedule.park(ptr %word, i32 %old) ATTRIBUTES {
  %value = zext i32 %old to i64
  %status = call i64 (i64, ...) @syscall(i64 FUTEX, ptr %word, i64 128, i64 %value, ptr null, ptr null, i64 0)
  ret void
}

define internal void @muschedule.wake(ptr %word) ATTRIBUTES {
  %status = call i64 (i64, ...) @syscall(i64 FUTEX, ptr %word, i64 129, i64 2147483647, ptr null, ptr null, i64 0)
  ret void
}
"""

# Without a futex a parked worker looks every 50 microseconds.
_SLEEP = """
declare i32 @usleep(i32)

define internal void @muschedule.park(ptr %word, i32 %old) ATTRIBUTES {
  %status = call i32 @usleep(i32 50)
  ret void
}

define internal void @muschedule.wake(ptr %word) ATTRIBUTES {
  ret void
}
"""
