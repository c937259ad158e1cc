"""Tests of what is said of a compiled kernel: the model's word on what was made, and not on estimates."""

from __future__ import annotations

import pytest

from pipeline.codegen.cuda.kernel import CudaKernel, CudaSource, Launch, Resources
from pipeline.ir.program import Program
from pipeline.search.gpu_model import GpuModel
from pipeline.search.gpu_prediction import SPILLING, predict
from tests.known_gpus import gpu
from tests.search.gpu_programs import elementwise, simt_gemm, tensor_gemm

A100 = gpu("a100")
PROGRAMS = {
    "tensor": tensor_gemm(), "simt": simt_gemm(), "elementwise": elementwise(1 << 26, threads=1024, vector=1)
}  # fmt: skip


def compiled(registers: int, *, spilled: int = 0, launches: int = 1) -> CudaKernel:
    """A kernel of which only what the compiler says of it is read."""
    made = tuple(Launch(f"part{n}", (1, 1, 1), 256, 1024, ()) for n in range(launches))
    resources = {launch.symbol: Resources(registers, spilled, spilled, stack=0, static_shared=0) for launch in made}
    return CudaKernel(CudaSource("whole", "", made, (), (), "sm_80"), b"", resources)


@pytest.mark.parametrize("registers", [24, 64, 168])
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_seconds_bound_and_share_are_those_of_the_compiled_kernel(program: Program, registers: int) -> None:
    model = GpuModel(program, A100)
    (expected,) = model.explain(compiled=[(registers, 0)])
    found = predict(program, compiled(registers), A100)
    assert found.seconds == expected.seconds == model.refined([(registers, 0)])
    assert (found.bound, found.registers, found.spill_bytes) == (expected.bound, registers, 0)
    shares = {"tensor": expected.tensor_share, "memory": expected.memory_share, "fma": expected.fma_share}
    others = {name: busy / expected.seconds for name, busy in expected.units.items()}
    assert found.of_peak == (others | shares).get(found.bound, max(shares.values()))


def test_a_kernel_that_takes_more_registers_than_estimated_is_a_smaller_share_of_the_peak() -> None:
    program = PROGRAMS["elementwise"]
    few, many = (predict(program, compiled(registers), A100) for registers in (32, 64))
    assert many.seconds > few.seconds
    assert many.of_peak < few.of_peak


def test_a_kernel_that_spills_counts_for_slower_beyond_what_the_model_sees() -> None:
    program = PROGRAMS["simt"]
    seen = GpuModel(program, A100).refined([(128, 128)])
    assert predict(program, compiled(128, spilled=64), A100).seconds == seen * SPILLING


def test_where_a_region_is_no_launch_the_estimates_have_to_do() -> None:
    program = PROGRAMS["simt"]
    (estimated,) = GpuModel(program, A100).explain()
    found = predict(program, compiled(200, launches=2), A100)
    assert (found.seconds, found.bound, found.launches) == (estimated.seconds, estimated.bound, 2)
