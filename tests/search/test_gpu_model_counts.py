"""Tests of what the analytic model counts against what an execution of the emitted source counts."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.codegen.cuda.build import emit_kernel
from pipeline.codegen.cuda.execute import execute
from pipeline.codegen.cuda.execute_build import find_compiler
from pipeline.ir.program import Program
from pipeline.search.gpu_model import GpuModel
from tests.known_gpus import gpu
from tests.search.gpu_programs import elementwise, simt_gemm, tensor_gemm

A100 = gpu("a100")
PROGRAMS = {
    "tensor": tensor_gemm(128, 128, 128, tile=(64, 64, 32), stages=2),
    "tensor padded": tensor_gemm(128, 128, 64, tile=(64, 128, 32), stages=2, swizzled=False, pad=8),
    "tensor conflicts": tensor_gemm(128, 128, 64, tile=(64, 64, 64), stages=1, swizzled=False),
    "simt": simt_gemm(128, 128, 32, threads=(8, 8), own=(4, 4)),
    "simt scalar": simt_gemm(64, 64, 32, threads=(8, 8), own=(2, 2), fetch=1, pad=1),
    "elementwise": elementwise(10000, threads=128),
    "narrow": elementwise(10000, vector=1, dtype="float16"),
    "apart": elementwise(1000, stride=8, touched=1),
}

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="there is no C++ compiler")


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_model_counts_what_an_execution_counts(name: str) -> None:
    program: Program = PROGRAMS[name]
    source = emit_kernel(program, A100)
    rng = np.random.default_rng(0)
    given = {a.name: rng.standard_normal(a.shape).astype(a.dtype) for a in source.arguments if a.role == "input"}
    executed = execute(source, given)
    assert executed.faults == ()
    model = GpuModel(program, A100)
    for launch, counts, report, accesses in zip(
        source.launches, executed.counts, model.explain(), model.accesses(), strict=True
    ):
        assert (launch.threads, launch.shared_bytes) == (report.threads, report.shared_bytes)
        assert np.prod(launch.grid) == report.grid
        for access in accesses:
            met = (counts.stores if access.store else counts.loads)[access.buffer]
            assert access.sectors == pytest.approx(met.sectors, rel=0.1), access
            if "simt" in name and not access.store:
                # the source says it in each iteration of the unrolled loops; the compiler loads once for all of them
                assert access.wavefronts <= met.wavefronts
            else:
                assert access.wavefronts == pytest.approx(met.wavefronts, rel=0.1), access


def test_a_model_that_counts_wrong_would_be_found() -> None:
    """The tolerance is finer than the difference that placing makes."""
    plain, conflicts = (
        {a.buffer: a.wavefronts for a in GpuModel(program, A100).accesses()[0] if not a.store}
        for program in (PROGRAMS["tensor"], tensor_gemm(128, 128, 128, tile=(64, 64, 32), stages=2, swizzled=False))
    )
    assert conflicts["As"] > 3 * plain["As"] and conflicts["Bs"] > 3 * plain["Bs"]
