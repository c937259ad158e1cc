"""What the analytic model says of a compiled kernel, once its registers and spills are known."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.codegen.cuda.kernel import CudaKernel
from pipeline.ir.program import Program
from pipeline.ir.target import Target
from pipeline.search.nest_model import NestModel

SPILLED = 4.0  # how many times slower a kernel counts whose registers went to memory, at least


@dataclass(frozen=True, slots=True)
class Prediction:
    """seconds    of one run
    bound      the pipe that it waits for most, and `of_peak` the share of that pipe's rate that it reaches
    registers, spill_bytes, shared_bytes   the most of its launches
    """

    seconds: float
    bound: str
    of_peak: float
    registers: int
    spill_bytes: int
    shared_bytes: int
    launches: int


def predict(program: Program, kernel: CudaKernel, target: Target) -> Prediction:
    """The prediction for a concrete program and what it was compiled to."""
    seconds, _ = NestModel(program, target).evaluate({}, 1)
    found = list(kernel.resources.values())
    spilled = max((one.spill_stores + one.spill_loads for one in found), default=0)
    factor = SPILLED if spilled else 1.0
    launches = kernel.program.launches
    return Prediction(
        float(seconds[0]) * factor + 1e-6 * len(launches), "memory", 0.0,
        max((one.registers for one in found), default=0), spilled,
        max((launch.shared_bytes for launch in launches), default=0), len(launches),
    )  # fmt: skip
