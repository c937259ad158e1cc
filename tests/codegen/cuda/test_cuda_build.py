"""Tests of the functions that programs become: their text, their launches, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.codegen.cuda.build import build_kernel, emit_kernel
from pipeline.errors import CodegenError
from pipeline.ir.program_parse import from_text
from tests.codegen.cuda.gpu_targets import gpu_target

GEMM = from_text((Path(__file__).parent / "simt_gemm.txt").read_text(encoding="utf-8"))


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_100"])
def test_a_tiled_product_compiles_without_spills(arch: str) -> None:
    kernel = build_kernel(GEMM, gpu_target(arch))
    (launch,) = kernel.program.launches
    assert (launch.grid, launch.threads, launch.shared_bytes) == ((3, 1, 1), 256, 3072)
    assert launch.arguments == ("A", "B", "C")
    resources = kernel.resources[launch.symbol]
    assert resources.spill_stores == resources.stack == 0


def test_a_kernel_is_named_for_its_program_and_what_it_is_made_for() -> None:
    names = [emit_kernel(GEMM, gpu_target(arch)).symbol for arch in ("sm_80", "sm_90")]
    assert all(name.startswith("gemm_") for name in names) and names[0] != names[1]


def test_a_block_of_more_threads_or_shared_memory_than_there_are_is_refused() -> None:
    with pytest.raises(CodegenError, match="3072 bytes of shared memory"):
        emit_kernel(GEMM, gpu_target(shared_per_block=1024))
    text = "program p():\n    output y: float32[2048]\n    body:\n        for t in threadIdx.x(2048):\n"
    text += "            block b:\n                spatial i in range(2048) = t\n                y[i] = 0.0:float32\n"
    with pytest.raises(CodegenError, match="2048 threads in a block"):
        emit_kernel(from_text(text), gpu_target())
