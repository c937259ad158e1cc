"""Tests of the functions that programs become: their text, their launches, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pipeline.codegen.cuda.build import build_kernel, emit_kernel
from pipeline.errors import CodegenError
from pipeline.ir.program_parse import from_text
from pipeline.ir.program_text import to_text
from tests.codegen.cuda.gpu_runs import run_on_host
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


@pytest.mark.parametrize("stages", [2, 3, 5])
@pytest.mark.parametrize("arch", ["sm_75", "sm_80"])
def test_a_pipeline_computes_the_same_at_any_depth(stages: int, arch: str) -> None:
    text = to_text(GEMM).replace("for k0 in serial(4):", f"for k0 in serial(4) with software_pipeline={stages}:")
    program = from_text(text)
    source = emit_kernel(program, gpu_target(arch)).source
    depth = min(stages, 4)
    assert (f"ms::wait<{depth - 2}>();" in source) == ("ms::copy_async<8>" in source) == (arch == "sm_80")
    assert f"k0 % {depth}" in source
    rng = np.random.default_rng(0)
    feeds = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in (("A", (70, 32)), ("B", (32, 64)))}
    got = run_on_host(program, feeds, gpu_target(arch), compiled=True)["C"]
    np.testing.assert_allclose(got, feeds["A"] @ feeds["B"], rtol=1e-4, atol=1e-5)
