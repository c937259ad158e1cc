"""Kernels written by hand in LLVM IR, so that linking and running are tested without the code generator."""

from __future__ import annotations

from functools import cache

from pipeline.codegen.kernel import Argument, Kernel
from pipeline.codegen.llvm.compile import compile_ir, function_attributes
from pipeline.codegen.module import Buffer, Call, ModulePlan
from pipeline.ir.target import Target
from pipeline.measurement.host import detect_host


@cache
def native() -> Target:
    return detect_host()


RANGE = """
  %low.n = mul i64 %thread, {n}
  %low = sdiv i64 %low.n, %threads
  %next = add i64 %thread, 1
  %high.n = mul i64 %next, {n}
  %high = sdiv i64 %high.n, %threads
"""


def elementwise(symbol: str, op: str, n: int, parallel: bool = True, mirrored: bool = False) -> Kernel:
    """out = a op b over n floats; `op` is an LLVM instruction such as fadd; mirrored reads b from its end."""
    text = f"""
define void @{symbol}(ptr %buffers, i64 %thread, i64 %threads, ptr %barrier) {function_attributes(native())} {{
entry:
  %a = load ptr, ptr %buffers
  %b.at = getelementptr ptr, ptr %buffers, i64 1
  %b = load ptr, ptr %b.at
  %c.at = getelementptr ptr, ptr %buffers, i64 2
  %c = load ptr, ptr %c.at
  {RANGE.format(n=n)}
  br label %head
head:
  %i = phi i64 [ %low, %entry ], [ %i.next, %body ]
  %more = icmp slt i64 %i, %high
  br i1 %more, label %body, label %done
body:
  %far = sub i64 {n - 1 if mirrored else "%i"}, {"%i" if mirrored else 0}
  %a.i = getelementptr float, ptr %a, i64 %i
  %b.i = getelementptr float, ptr %b, i64 %far
  %c.i = getelementptr float, ptr %c, i64 %i
  %x = load float, ptr %a.i
  %y = load float, ptr %b.i
  %z = {op} float %x, %y
  store float %z, ptr %c.i
  %i.next = add i64 %i, 1
  br label %head
done:
  ret void
}}
"""
    arguments = (
        Argument("a", (n,), "float32", "input"),
        Argument("b", (n,), "float32", "input"),
        Argument("c", (n,), "float32", "output"),
    )
    return Kernel(symbol, None, compile_ir(text, native()), arguments, 8, parallel)


def reversal(symbol: str, n: int) -> Kernel:
    """out[i] = x[n-1-i], through a workspace and a barrier between the threads."""
    text = f"""
declare void @muschedule_barrier(ptr, i64)
define void @{symbol}(ptr %buffers, i64 %thread, i64 %threads, ptr %barrier) {function_attributes(native())} {{
entry:
  %a = load ptr, ptr %buffers
  %w.at = getelementptr ptr, ptr %buffers, i64 1
  %w = load ptr, ptr %w.at
  %c.at = getelementptr ptr, ptr %buffers, i64 2
  %c = load ptr, ptr %c.at
  {RANGE.format(n=n)}
  br label %head
head:
  %i = phi i64 [ %low, %entry ], [ %i.next, %body ]
  %more = icmp slt i64 %i, %high
  br i1 %more, label %body, label %meet
body:
  %a.i = getelementptr float, ptr %a, i64 %i
  %w.i = getelementptr float, ptr %w, i64 %i
  %x = load float, ptr %a.i
  store float %x, ptr %w.i
  %i.next = add i64 %i, 1
  br label %head
meet:
  call void @muschedule_barrier(ptr %barrier, i64 %threads)
  br label %head2
head2:
  %j = phi i64 [ %low, %meet ], [ %j.next, %body2 ]
  %more2 = icmp slt i64 %j, %high
  br i1 %more2, label %body2, label %done
body2:
  %mirror = sub i64 {n - 1}, %j
  %w.j = getelementptr float, ptr %w, i64 %mirror
  %c.j = getelementptr float, ptr %c, i64 %j
  %y = load float, ptr %w.j
  store float %y, ptr %c.j
  %j.next = add i64 %j, 1
  br label %head2
done:
  ret void
}}
"""
    arguments = (
        Argument("x", (n,), "float32", "input"),
        Argument("w", (n,), "float32", "workspace"),
        Argument("out", (n,), "float32", "output"),
    )
    return Kernel(symbol, None, compile_ir(text, native()), arguments, 8, True)


def matmul(symbol: str, m: int, n: int, k: int) -> Kernel:
    """out = x @ weight + bias; the prologue transposes the weight."""
    attributes = function_attributes(native())
    text = f"""
define void @{symbol}_prologue(ptr %buffers, i64 %thread, i64 %threads, ptr %barrier) {attributes} {{
entry:
  %w.at = getelementptr ptr, ptr %buffers, i64 1
  %w = load ptr, ptr %w.at
  %p.at = getelementptr ptr, ptr %buffers, i64 3
  %p = load ptr, ptr %p.at
  br label %head
head:
  %i = phi i64 [ 0, %entry ], [ %i.next, %body ]
  %more = icmp slt i64 %i, {n * k}
  br i1 %more, label %body, label %done
body:
  %r = sdiv i64 %i, {n}
  %c = srem i64 %i, {n}
  %to.row = mul i64 %c, {k}
  %to = add i64 %to.row, %r
  %w.i = getelementptr float, ptr %w, i64 %i
  %p.i = getelementptr float, ptr %p, i64 %to
  %x = load float, ptr %w.i
  store float %x, ptr %p.i
  %i.next = add i64 %i, 1
  br label %head
done:
  ret void
}}

define void @{symbol}(ptr %buffers, i64 %thread, i64 %threads, ptr %barrier) {attributes} {{
entry:
  %x = load ptr, ptr %buffers
  %b.at = getelementptr ptr, ptr %buffers, i64 2
  %b = load ptr, ptr %b.at
  %p.at = getelementptr ptr, ptr %buffers, i64 3
  %p = load ptr, ptr %p.at
  %o.at = getelementptr ptr, ptr %buffers, i64 4
  %o = load ptr, ptr %o.at
  {RANGE.format(n=m * n)}
  br label %head
head:
  %i = phi i64 [ %low, %entry ], [ %i.next, %store ]
  %more = icmp slt i64 %i, %high
  br i1 %more, label %row, label %done
row:
  %r = sdiv i64 %i, {n}
  %c = srem i64 %i, {n}
  %x.row = mul i64 %r, {k}
  %p.row = mul i64 %c, {k}
  %b.i = getelementptr float, ptr %b, i64 %c
  %start = load float, ptr %b.i
  br label %inner
inner:
  %j = phi i64 [ 0, %row ], [ %j.next, %step ]
  %sum = phi float [ %start, %row ], [ %sum.next, %step ]
  %go = icmp slt i64 %j, {k}
  br i1 %go, label %step, label %store
step:
  %x.j = add i64 %x.row, %j
  %p.j = add i64 %p.row, %j
  %x.e = getelementptr float, ptr %x, i64 %x.j
  %p.e = getelementptr float, ptr %p, i64 %p.j
  %u = load float, ptr %x.e
  %v = load float, ptr %p.e
  %uv = fmul float %u, %v
  %sum.next = fadd float %sum, %uv
  %j.next = add i64 %j, 1
  br label %inner
store:
  %o.i = getelementptr float, ptr %o, i64 %i
  store float %sum, ptr %o.i
  %i.next = add i64 %i, 1
  br label %head
done:
  ret void
}}
"""
    arguments = (
        Argument("x", (m, k), "float32", "input"),
        Argument("weight", (k, n), "float32", "constant"),
        Argument("bias", (n,), "float32", "constant"),
        Argument("panel", (n, k), "float32", "packed"),
        Argument("out", (m, n), "float32", "output"),
    )
    return Kernel(symbol, f"{symbol}_prologue", compile_ir(text, native()), arguments, 8, True, ("weight",))


def add_plan(n: int = 64, parallel: bool = False) -> ModulePlan:
    """y = a + b."""
    return ModulePlan(
        kernels=(elementwise("add", "fadd", n, parallel),),
        calls=(Call(0, ("a", "b", "y"), "add", "add_task"),),
        buffers=(
            Buffer("a", (n,), "float32", "input"),
            Buffer("b", (n,), "float32", "input"),
            Buffer("y", (n,), "float32", "output"),
        ),
        inputs=("a", "b"),
        outputs=("y",),
        constants={},
        threads=2,
        target=native(),
    )
