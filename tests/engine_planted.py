"""A builder and a runner that the engine is given: candidates that go wrong, and a user who interrupts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from pipeline.codegen.kernel import Kernel
from pipeline.codegen.llvm.build import build_kernel
from pipeline.codegen.llvm.compile import compile_ir, function_attributes
from pipeline.ir.program import Program
from pipeline.ir.target import Target
from pipeline.measurement.local_builder import LocalBuilder
from pipeline.measurement.local_runner import LocalRunner
from pipeline.measurement.protocol import Built, MeasureRequest, MeasureResult, Reference
from pipeline.measurement.sampling import SamplingPolicy

HEAD = """
declare ptr @malloc(i64)

define void @kernel(ptr %buffers, i64 %thread, i64 %threads, ptr %barrier) ATTRIBUTES {
entry:
  %slot = getelementptr ptr, ptr %buffers, i64 OUTPUT
  %y = load ptr, ptr %slot
"""

BODIES = {
    "segfault": "  store volatile i64 1, ptr inttoptr (i64 8 to ptr)\n  ret void\n}\n",
    "spin": "  br label %again\nagain:\n  %v = load volatile i8, ptr %y\n  br label %again\n}\n",
    "exhaust": (
        "  br label %again\nagain:\n  %m = call ptr @malloc(i64 16777216)\n"
        "  br label %touch\ntouch:\n  %o = phi i64 [ 0, %again ], [ %o2, %touch ]\n"
        "  %p = getelementptr i8, ptr %m, i64 %o\n  store volatile i8 1, ptr %p\n  %o2 = add i64 %o, 4096\n"
        "  %whole = icmp eq i64 %o2, 16777216\n  br i1 %whole, label %again, label %touch\n}\n"
    ),
    "nan": (
        "  br label %again\nagain:\n  %i = phi i64 [ 0, %entry ], [ %n, %again ]\n"
        "  %p = getelementptr float, ptr %y, i64 %i\n  store float 0x7FF8000000000000, ptr %p\n"
        "  %n = add i64 %i, 1\n  %more = icmp slt i64 %n, SIZE\n"
        "  br i1 %more, label %again, label %done\ndone:\n  ret void\n}\n"
    ),
}

# what is planted, and the reason under which it must be recorded
REASONS = {
    "segfault": "crash", "spin": "timeout", "exhaust": "memory", "nan": "wrong",
    "build raises": "build", "build spins": "timeout", "build exhausts": "memory",
}  # fmt: skip


def build(planted: tuple[str, Program], target: Target) -> Kernel:
    """The right kernel, or one that goes wrong in the named way. Workers import this."""
    kind, program = planted
    match kind:
        case "build raises":
            raise ValueError("planted")
        case "build spins":
            while True:
                time.sleep(0)
        case "build exhausts":
            kept = []
            while True:
                kept.append(bytearray(1 << 26))
    right = build_kernel(program, target)
    if kind not in BODIES:
        return right
    number = next(i for i, argument in enumerate(right.arguments) if argument.role == "output")
    size = 1
    for extent in right.arguments[number].shape:
        size *= extent
    text = HEAD.replace("OUTPUT", str(number)) + BODIES[kind].replace("SIZE", str(size))
    code = compile_ir(text.replace("ATTRIBUTES", function_attributes(target)), target)
    return replace(right, symbol="kernel", prologue=None, object_code=code)


class PlantedBuilder(LocalBuilder):
    """The local builder, but the first candidates go wrong, each in the way that `kinds` says."""

    def __init__(self, target: Target, workers: int, kinds: list[str], memory_mb: int = 1024) -> None:
        super().__init__("tests.engine_planted:build", target, workers=workers, timeout_s=6.0, memory_mb=memory_mb)
        self._kinds = list(kinds)

    def build(self, requests: Sequence[MeasureRequest]) -> list[Built]:
        kinds = [self._kinds.pop(0) if self._kinds else "right" for _ in requests]
        wrapped = [replace(r, program=(kind, r.program)) for kind, r in zip(kinds, requests, strict=True)]
        return super().build(wrapped)


class InterruptedRunner(LocalRunner):
    """The local runner, on which the user presses Ctrl-C at each of the named batches, counted from 1."""

    def __init__(self, target: Target, at: list[int]) -> None:
        super().__init__(target, SamplingPolicy(samples=3, min_sample_ms=0.1))
        self._at, self._batch = at, 0

    def run(self, built: Sequence[Built], reference: Reference, best_ns: float | None = None) -> list[MeasureResult]:
        self._batch += 1
        if self._batch in self._at:
            raise KeyboardInterrupt
        return super().run(built, reference, best_ns)


class InterruptedBuilder(LocalBuilder):
    """The local builder, on which the user presses Ctrl-C at each of the named batches, counted from 1."""

    def __init__(self, function: str, target: Target, workers: int, at: list[int]) -> None:
        super().__init__(function, target, workers=workers)
        self._at, self._batch = at, 0

    def build(self, requests: Sequence[MeasureRequest]) -> list[Built]:
        self._batch += 1
        if self._batch in self._at:
            raise KeyboardInterrupt
        return super().build(requests)
