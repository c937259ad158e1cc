"""Tests of the functions that programs become: their text, their launches, and what is refused."""

from __future__ import annotations

from dataclasses import replace
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
    depth = min(stages, 4) if arch == "sm_80" else 2
    assert (f"ms::wait<{depth - 2}>();" in source) == ("ms::copy_async<8>" in source) == (arch == "sm_80")
    assert f"k0 % {depth}" in source
    rng = np.random.default_rng(0)
    feeds = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in (("A", (70, 32)), ("B", (32, 64)))}
    got = run_on_host(program, feeds, gpu_target(arch), compiled=True)["C"]
    np.testing.assert_allclose(got, feeds["A"] @ feeds["B"], rtol=1e-4, atol=1e-5)


WIDE = """
program wide():
    input x: float32[{n}, 3]
    output y: float32[{n}]
    body:
        for b in blockIdx.x({blocks}):
            for t in threadIdx.x(256):
                block pick:
                    spatial i in range({n}) = b*256 + t
                    y[i] = x[i, 2]
"""


def test_indices_have_64_bits_where_32_are_not_enough() -> None:
    text = emit_kernel(from_text(WIDE.format(n=1 << 20, blocks=1 << 12)), gpu_target()).source
    assert "long long" not in text
    text = emit_kernel(from_text(WIDE.format(n=1 << 30, blocks=1 << 22)), gpu_target()).source
    assert "x[(long long)i * 3LL + 2LL]" in text and "y[i]" in text


def test_a_grid_that_is_too_large_along_y_is_counted_along_x() -> None:
    text = WIDE.format(n=70000 * 256, blocks=70000).replace("blockIdx.x", "blockIdx.y")
    (launch,) = emit_kernel(from_text(text), gpu_target()).launches
    assert launch.grid == (70000, 1, 1)


def test_regions_are_functions_and_the_prologue_has_its_own() -> None:
    text = """
program two():
    input x: float32[4]
    constant w: float32[4]
    packed p: float32[4]
    intermediate z: float32[4]
    output y: float32[4]
    prologue:
        for i in serial(4):
            block pack:
                spatial a in range(4) = i
                p[a] = w[a] * 2.0:float32
    body:
        for j in threadIdx.x(4):
            block first:
                spatial a in range(4) = j
                z[a] = x[a] * p[a]
        for k in blockIdx.x(0):
            block nothing:
                spatial a in range(4) = k
                y[a] = 0.0:float32
        for l in threadIdx.x(4):
            block second:
                spatial a in range(4) = l
                y[a] = z[3 - a]
"""
    source = emit_kernel(from_text(text), gpu_target(), "two")
    assert [launch.symbol for launch in source.launches] == ["two_0", "two_2"]
    assert [launch.arguments for launch in source.launches] == [("x", "p", "z"), ("z", "y")]
    (pack,) = source.prologue
    assert (pack.symbol, pack.arguments, pack.threads) == ("two_pack", ("w", "p"), 1)
    assert [argument.role for argument in source.arguments] == ["input", "constant", "packed", "workspace", "output"]
    x, w = np.arange(4, dtype=np.float32), np.ones(4, np.float32)
    got = run_on_host(from_text(text), {"x": x, "w": w}, compiled=True)["y"]
    np.testing.assert_array_equal(got, 2 * x[::-1])


def test_a_cpu_is_no_target_for_it() -> None:
    with pytest.raises(CodegenError, match="is no GPU"):
        emit_kernel(GEMM, replace(gpu_target(), gpu=None))
