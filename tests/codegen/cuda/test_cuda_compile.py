"""Tests of the compiler for GPUs: which cubins it makes, what it says of them, and what it says where it cannot."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from pipeline.codegen.cuda import compile as subject
from pipeline.codegen.cuda.compile import compile_ptx, compile_source, resources_of
from pipeline.errors import CodegenError, UserError

SCALE = """
#include "muschedule.cuh"
extern "C" MS_KERNEL(64) scale(MS_IN(ms::f16) A, MS_OUT(ms::bf16) C) {
    const int t = ms::thread();
    C[t] = ms::to<ms::bf16>(ms::exp(ms::to_float(A[t])));
}
"""
SPILLING = """
#include "muschedule.cuh"
extern "C" __global__ void __launch_bounds__(1024) spill(const float *__restrict__ a, float *b, int n) {
    float kept[128];
#pragma unroll
    for (int i = 0; i < 128; ++i) kept[i] = a[i * 7 + threadIdx.x];
    __syncthreads();
    for (int k = 0; k < n; ++k)
#pragma unroll
        for (int i = 0; i < 128; ++i) kept[i] += kept[(i * 5 + 3) % 128] * a[k];
#pragma unroll
    for (int i = 0; i < 128; ++i) b[i * 9 + threadIdx.x] = kept[i];
}
extern "C" __global__ void holds(float *b) {
    __shared__ float row[100];
    row[threadIdx.x] = b[threadIdx.x];
    __syncthreads();
    b[threadIdx.x] = row[99 - threadIdx.x];
}
"""


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100"])
def test_every_target_gets_a_cubin_without_a_device(arch: str) -> None:
    cubin, resources = compile_source(SCALE, arch)
    assert cubin.startswith(b"\x7fELF")
    assert set(resources) == {"scale"}
    assert 0 < resources["scale"].registers <= 255
    assert resources["scale"].spill_loads == resources["scale"].stack == 0


def test_spills_and_static_shared_memory_are_read_back() -> None:
    _, resources = compile_source(SPILLING, "sm_80")
    assert set(resources) == {"spill", "holds"}
    assert resources["spill"].spill_stores > 0 and resources["spill"].stack > 0
    assert resources["spill"].registers <= 64
    assert resources["holds"].static_shared == 400 and resources["holds"].spill_stores == 0


def test_the_log_of_the_assembler_is_read_line_by_line() -> None:
    log = """ptxas info    : Compiling entry function 'f' for 'sm_80'
ptxas info    : Function properties for f
ptxas         .     40 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 32 registers, used 1 barriers, 40 bytes cumulative stack size, 512 bytes smem, 368 bytes cmem[0]"""
    found = resources_of(log)["f"]
    assert (found.registers, found.spill_stores, found.spill_loads, found.stack, found.static_shared) == (
        32, 8, 12, 40, 512)  # fmt: skip


def test_the_intermediate_text_shows_the_instructions() -> None:
    assert "cvt.rn.bf16.f32" in compile_ptx(SCALE, "sm_80")
    assert "cvt.rn.bf16.f32" not in compile_ptx(SCALE, "sm_75")


def test_an_empty_log_is_not_read_into_bytes_that_all_of_python_shares() -> None:
    """b" " is one object: a log of one byte, the zero at its end, once made it a zero in the whole process."""
    for _ in range(2):
        assert compile_ptx(SCALE, "sm_80")
    assert [(32).to_bytes(1, "little")[0], *b"a b"[1:2]] == [32, 32]


def test_the_log_is_in_the_error_of_a_wrong_source() -> None:
    with pytest.raises(CodegenError, match=r"kernel.cu.1.: error: expected an expression"):
        compile_source("int x = ;", "sm_80")
    with pytest.raises(CodegenError, match="expected an expression"):
        compile_ptx("int x = ;", "sm_80")


def test_an_architecture_that_the_compiler_does_not_know_is_named_with_those_that_it_does() -> None:
    with pytest.raises(UserError, match=r"sm_35.*sm_80"):
        compile_source(SCALE, "sm_35")
    with pytest.raises(UserError, match=r"NVRTC cannot compile for sm_35"):
        compile_ptx(SCALE, "sm_35")


@pytest.mark.parametrize("fault", [ImportError("no module"), RuntimeError("libnvrtc.so was not found")])
def test_a_missing_compiler_is_one_error_that_names_the_packages(
    fault: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> Any:
        raise fault

    monkeypatch.setattr(importlib, "import_module", missing)
    subject.load_nvrtc.cache_clear()
    try:
        with pytest.raises(UserError, match="pip install nvidia-cuda-nvrtc cuda-python"):
            compile_source(SCALE, "sm_80")
    finally:
        subject.load_nvrtc.cache_clear()
