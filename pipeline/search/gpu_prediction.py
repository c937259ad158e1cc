"""What the analytic model says of a compiled kernel, once its registers and spills are known."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.codegen.cuda.kernel import CudaKernel, Launch
from pipeline.ir.program import Program
from pipeline.ir.target import Target
from pipeline.search.gpu_model import GpuModel, RegionReport

SPILLING = 1.5  # how much slower a kernel that spills counts, beside what the model says: traffic that it cannot see


@dataclass(frozen=True, slots=True)
class Prediction:
    """seconds    of one run
    bound      what its longest launch waits for most
    of_peak    the share of the rate of that, or of the tensor cores or memory where it waits for latencies
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
    model = GpuModel(program, target)
    launches = kernel.program.launches
    compiled = [_compiled(kernel, launch) for launch in launches]
    spilled = max((stores for _, stores in compiled), default=0)
    alike = len(launches) == len(model.regions)  # a region that has nothing to do is no launch
    regions = model.explain(compiled=compiled if alike else None)
    seconds = sum(region.seconds for region in regions)
    longest = max(regions, key=lambda region: region.seconds, default=None)
    return Prediction(
        seconds * (SPILLING if spilled else 1.0), "launch" if longest is None else longest.bound, _of_peak(longest),
        max((registers for registers, _ in compiled), default=0), spilled,
        max((launch.shared_bytes for launch in launches), default=0), len(launches),
    )  # fmt: skip


def _compiled(kernel: CudaKernel, launch: Launch) -> tuple[int, int]:
    """Registers of a thread, and bytes that it stores and loads for want of more."""
    found = kernel.resources.get(launch.symbol)
    return (0, 0) if found is None else (found.registers, found.spill_stores + found.spill_loads)


def _of_peak(region: RegionReport | None) -> float:
    if region is None:
        return 0.0
    match region.bound:
        case "tensor":
            return region.tensor_share
        case "memory":
            return region.memory_share
        case "fma":
            return region.fma_share
        case _:
            busy = region.units.get(region.bound)
            if busy is not None:
                return busy / region.seconds
            return max(region.tensor_share, region.memory_share, region.fma_share)
