"""Plans of modules for GPUs whose kernels are written by hand, small enough to be run whole on this host."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pipeline.codegen.cuda.kernel import CudaKernel, CudaSource, Launch, Resources
from pipeline.codegen.kernel import Argument
from pipeline.codegen.module import Buffer, Call, ModulePlan
from tests.codegen.cuda.gpu_targets import gpu_target
from tests.codegen.cuda.hand_sources import HEAD, argument

N = 100

ADD = """extern "C" MS_KERNEL(32) add(MS_IN(float) a, MS_IN(float) b, MS_OUT(float) c) {
    const int i = ms::block_x() * 32 + ms::thread();
    if (i < 100) c[i] = a[i] + b[i];
}
"""
# the constant w is doubled once into p; each run sums through a workspace between two launches
PACKED = """extern "C" MS_KERNEL(32) twice(MS_IN(float) w, MS_OUT(float) p) {
    for (int i = ms::thread(); i < 100; i += 32) p[i] = 2.0f * w[i];
}
extern "C" MS_KERNEL(32) first(MS_IN(float) x, MS_IN(float) p, MS_OUT(float) t) {
    for (int i = ms::thread(); i < 100; i += 32) t[i] = x[i] * p[i];
}
extern "C" MS_KERNEL(32) second(MS_IN(float) t, MS_OUT(float) y) {
    for (int i = ms::thread(); i < 100; i += 32) y[i] = t[99 - i];
}
"""


def add_kernel() -> CudaKernel:
    launch = Launch("add", (4, 1, 1), 32, 0, ("a", "b", "c"))
    arguments = (argument("a", (N,), "input"), argument("b", (N,), "input"), argument("c", (N,), "output"))
    return CudaKernel(CudaSource("add", HEAD + ADD, (launch,), (), arguments, "sm_80"), b"cubin of add", {
        "add": Resources(10, 0, 0, 0, 0)})  # fmt: skip


def packed_kernel() -> CudaKernel:
    arguments: tuple[Argument, ...] = (
        argument("x", (N,), "input"), argument("w", (N,), "constant"), argument("p", (N,), "packed"),
        argument("t", (N,), "workspace"), argument("y", (N,), "output"),
    )  # fmt: skip
    launches = (Launch("first", (1, 1, 1), 32, 0, ("x", "p", "t")), Launch("second", (1, 1, 1), 32, 0, ("t", "y")))
    prologue = (Launch("twice", (1, 1, 1), 32, 0, ("w", "p")),)
    source = CudaSource("packed", HEAD + PACKED, launches, prologue, arguments, "sm_80")
    return CudaKernel(source, b"cubin of packed", {})


def tensor(name: str, role: str) -> Buffer:
    return Buffer(name, (N,), "float32", role)  # type: ignore[arg-type]


W, V = np.arange(N, dtype=np.float32), np.full(N, 0.5, np.float32)


def plan() -> ModulePlan[CudaKernel]:
    """z = reversed(2 w (x + y)) + (x + y); s is another name of x + y, v one of a constant, y of the input.

    The calls of the packed kernel are two, with the same constant: u = reversed(2 w z) is thrown away."""
    buffers = (
        tensor("x", "input"), tensor("y", "input"), tensor("w", "constant"), tensor("v", "constant"),
        tensor("sum", "intermediate"), tensor("back", "intermediate"), tensor("z", "intermediate"),
        tensor("u", "intermediate"),
    )  # fmt: skip
    calls = (
        Call(0, ("x", "y", "sum"), "sum"), Call(1, ("sum", "w", "back"), "back"), Call(0, ("back", "sum", "z"), "z"),
        Call(1, ("z", "w", "u"), "u"),
    )  # fmt: skip
    return ModulePlan(
        kernels=(add_kernel(), packed_kernel()), calls=calls, buffers=buffers, inputs=("x", "y"),
        outputs=("z", "s", "v.out", "y.out", "z.again"), constants={"w": W, "v": V}, threads=1, target=gpu_target(),
        aliases={"s": "sum", "v.out": "v", "y.out": "y", "z.again": "z"}, shapes={"z.again": (10, 10)},
        provenance={"workload": "by hand", "predicted": True},
    )  # fmt: skip


def chain(length: int) -> ModulePlan[CudaKernel]:
    """x added to itself again and again: only two intermediates live at a time."""
    names = [f"t{i}" for i in range(length)]
    return replace(
        plan(),
        calls=tuple(Call(0, (a, a, b), b) for a, b in zip(["x", *names], names, strict=False)),
        buffers=(tensor("x", "input"), *(tensor(name, "intermediate") for name in names)),
        inputs=("x",), outputs=(names[-1],), constants={}, aliases={}, shapes={},
    )  # fmt: skip


def expected(x: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
    total = x + y
    z = (2 * W * total)[::-1] + total
    return {"z": z, "s": total, "v.out": V, "y.out": y, "z.again": z.reshape(10, 10)}
