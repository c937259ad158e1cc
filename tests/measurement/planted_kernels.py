"""Kernels written by hand in LLVM IR: one that is right, and one for each way to go wrong. Workers import this."""

from __future__ import annotations

import time

import numpy as np

from pipeline.codegen.kernel import Argument, Kernel
from pipeline.codegen.llvm.compile import compile_ir, function_attributes
from pipeline.measurement.protocol import Case, Reference

N = 1000

_HEAD = """
declare ptr @malloc(i64)
declare void @muschedule_barrier(ptr, i64)
declare i32 @usleep(i32)

define void @kernel(ptr %buffers, i64 %thread, i64 %threads, ptr %barrier) ATTRIBUTES {
entry:
  %pw = getelementptr ptr, ptr %buffers, i64 1
  %py = getelementptr ptr, ptr %buffers, i64 2
  %x = load ptr, ptr %buffers
  %w = load ptr, ptr %pw
  %y = load ptr, ptr %py
"""

# y[i] = 2 * x[i] + w[i] from `first` to `last`, every thread its share, between two barriers
_LOOP = """
  call void @muschedule_barrier(ptr %barrier, i64 %threads)
  %start = add i64 %thread, FIRST
  br label %loop
loop:
  %i = phi i64 [ %start, %entry ], [ %next, %body ]
  %more = icmp slt i64 %i, LAST
  br i1 %more, label %body, label %done
body:
  %ax = getelementptr float, ptr %x, i64 %i
  %aw = getelementptr float, ptr %w, i64 %i
  %ay = getelementptr float, ptr %y, i64 %i
  %vx = load float, ptr %ax
  %vw = load float, ptr %aw
  %double = fmul float %vx, 2.0
  %sum = fadd float %double, %vw
  store float VALUE, ptr TO
  %next = add i64 %i, %threads
  br label %loop
done:
  call void @muschedule_barrier(ptr %barrier, i64 %threads)
  ret void
}
"""


def _loop(first: int = 0, last: int | str = N, value: str = "%sum", to: str = "%ay") -> str:
    return _LOOP.replace("FIRST", str(first)).replace("LAST", str(last)).replace("VALUE", value).replace("TO", to)


def _only_at(offset: int) -> str:
    """Right where x begins so many bytes behind a line, and leaves the result as it was elsewhere."""
    return (
        "  %address = ptrtoint ptr %x to i64\n  %offset = and i64 %address, 63\n"
        f"  %there = icmp eq i64 %offset, {offset}\n  %last = select i1 %there, i64 {N}, i64 0\n" + _loop(last="%last")
    )


BODIES = {
    "right": _loop(),
    "right on a line": _only_at(0),
    "right 16 bytes behind": _only_at(16),
    "slow": "  %ignored = call i32 @usleep(i32 5000)\n" + _loop(),
    "null": "  store volatile i64 1, ptr inttoptr (i64 8 to ptr)\n" + _loop(),
    "spin": "  br label %again\nagain:\n  %v = load volatile i64, ptr %x\n  br label %again\n}\n",
    "exhaust": (
        "  br label %again\nagain:\n  %m = call ptr @malloc(i64 16777216)\n"
        "  br label %touch\ntouch:\n  %o = phi i64 [ 0, %again ], [ %o2, %touch ]\n"
        "  %p = getelementptr i8, ptr %m, i64 %o\n  store volatile i8 1, ptr %p\n  %o2 = add i64 %o, 4096\n"
        "  %whole = icmp eq i64 %o2, 16777216\n  br i1 %whole, label %again, label %touch\n}\n"
    ),
    "nan": _loop(value="0x7FF8000000000000"),
    "too far": _loop(last=N + 1),
    "too early": _loop(first=-1),
    "forgetful": _loop(last=N - 1),
    "inexact": _loop(value="%double"),
    "greedy": _loop(to="%ax"),
    "unlinked": "  call void @nowhere()\n  ret void\n}\ndeclare void @nowhere()\n",
    "broken ir": "  ret i32 0\n}\n",
}

PROLOGUE = """
define void @prologue(ptr %buffers, i64 %thread, i64 %threads, ptr %barrier) ATTRIBUTES {
entry:
  %pc = getelementptr ptr, ptr %buffers, i64 3
  %pw = getelementptr ptr, ptr %buffers, i64 1
  %c = load ptr, ptr %pc
  %w = load ptr, ptr %pw
  call void @muschedule_barrier(ptr %barrier, i64 %threads)
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %ac = getelementptr float, ptr %c, i64 %i
  %aw = getelementptr float, ptr %w, i64 %i
  %v = load float, ptr %ac
  %n = fneg float %v
  store float %n, ptr %aw
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, 1000
  br i1 %more, label %loop, label %done
done:
  ret void
}
"""


def build(program, target, *, threads=1):
    """The kernel of that name; or the build itself goes wrong."""
    match program:
        case "build raises":
            raise ValueError("no such tile")
        case "build hangs":
            time.sleep(1000)
        case "build exhausts":
            kept = []
            while True:
                kept.append(bytearray(1 << 26))
        case "build gives nothing":
            return None
    prepared = program == "prepared"
    text = _HEAD + BODIES["right" if prepared else program] + (PROLOGUE if prepared else "")
    text = text.replace("ATTRIBUTES", function_attributes(target))
    arguments = (
        Argument("x", (N,), "float32", "input"),
        Argument("w", (N,), "float32", "packed" if prepared else "constant"),
        Argument("y", (N,), "float32", "output"),
        *((Argument("c", (N,), "float32", "constant"),) if prepared else ()),
    )
    prologue = "prologue" if prepared else None
    return Kernel("kernel", prologue, compile_ir(text, target), arguments, threads, threads > 1)


def reference(task_id="task", seed=0, cases=2, fed=()):
    rng = np.random.default_rng(seed)
    w = rng.standard_normal(N).astype(np.float32)
    made = []
    for _ in range(cases):
        x = rng.standard_normal(N).astype(np.float32)
        expected = 2.0 * x.astype(np.float64) + w
        made.append(Case({"x": x}, {"y": expected}, {"y": 1e-6 * (np.abs(expected) + 2)}))
    return Reference(task_id, {"w": w, "c": -w}, tuple(made), frozenset(fed))
