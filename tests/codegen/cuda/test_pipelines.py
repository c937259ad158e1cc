"""Tests of pipelines: which loops become ones, where they lie in shared memory, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pipeline.codegen.cuda.build import emit_kernel
from pipeline.codegen.cuda.execute_build import find_compiler
from pipeline.codegen.cuda.pipelines import pipelines
from pipeline.ir.program import Loop
from pipeline.ir.program_parse import from_text
from tests.codegen.cuda.gpu_runs import run_on_host
from tests.codegen.cuda.gpu_targets import gpu_target

FOLDER = Path(__file__).parent
GEMM = (FOLDER / "simt_gemm.txt").read_text(encoding="utf-8")


def staged(stages: int, text: str = GEMM) -> str:
    return text.replace("for k0 in serial(4):", f"for k0 in serial(4) with software_pipeline={stages}:")


def found(text: str) -> list[int]:
    (region,) = from_text(text).body.body
    assert isinstance(region, Loop)
    return [parts.stages for parts in pipelines(region.body, most=9, alignment=128).values()]


@pytest.mark.parametrize(("asked", "given"), [(1, []), (2, [2]), (4, [4]), (5, [4])])
def test_there_are_no_more_stages_than_iterations(asked: int, given: list[int]) -> None:
    assert found(staged(asked)) == given


def test_a_loop_of_one_iteration_is_a_plain_one() -> None:
    text = (
        staged(3)
        .replace("serial(4) with", "serial(1) with")
        .replace("[70, 32]", "[70, 8]")
        .replace("[32, 64]", "[8, 64]")
    )
    assert found(text.replace("range(32) = k0*8", "range(8) = k0*8")) == []


def test_a_buffer_that_an_iteration_writes_later_on_is_not_filled_ahead() -> None:
    """Neither is one whose source the loop writes."""
    text = staged(3).replace("Bs[r, c] = B[gr, gc]", "Bs[r, c] = B[gr, gc] + As[0, 0]")
    (region,) = from_text(text).body.body
    assert isinstance(region, Loop)
    (parts,) = pipelines(region.body, most=9, alignment=128).values()
    assert [buffer.name for buffer, _ in parts.buffers] == ["As"]


def test_stages_lie_one_after_another() -> None:
    (plain,) = emit_kernel(from_text(GEMM), gpu_target()).launches
    (three,) = emit_kernel(from_text(staged(3)), gpu_target()).launches
    assert three.shared_bytes == 3 * plain.shared_bytes


def test_an_older_architecture_copies_at_once_into_one_of_two_stages() -> None:
    source = emit_kernel(from_text(staged(3)), gpu_target("sm_75")).source
    assert "copy_async" not in source and "ms::commit" not in source and "k0 % 2" in source


def test_where_there_is_no_room_stages_lie_closer_together() -> None:
    text = staged(2, GEMM.replace("Bs: float32[8, 64] in shared", "Bs: float32[8, 64] in shared padded(1)"))
    (wide,) = emit_kernel(from_text(text), gpu_target()).launches
    tight = 2 * (32 * 8 + 8 * 65) * 4
    assert wide.shared_bytes > tight
    (close,) = emit_kernel(from_text(text), gpu_target(shared_per_block=tight)).launches
    assert close.shared_bytes == tight


@pytest.mark.skipif(find_compiler() is None, reason="there is no C++ compiler")
@pytest.mark.parametrize("value", ["guard(gr < 40, A[gr, gc], 0.0:float32)", "guard(gr < 40, A[gr, gc], 1.0:float32)",
                                   "A[gr, gc] * 2.0:float32"])  # fmt: skip
def test_copies_may_fill_what_lies_outside_and_may_compute(value: str) -> None:
    program = from_text(staged(3, GEMM.replace("As[r, c] = A[gr, gc]", f"As[r, c] = {value}")))
    source = emit_kernel(program, gpu_target()).source
    assert ("ms::copy_async<4>(As" in source) == ("0.0:" in value and "guard" in value)
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((70, 32)).astype(np.float32), rng.standard_normal((32, 64)).astype(np.float32)
    outside = np.float32(1 if "1.0:" in value else 0)
    left = np.where(np.arange(70)[:, None] < 40, a, outside) if "guard" in value else a * 2
    got = run_on_host(program, {"A": a, "B": b}, compiled=True)["C"]
    np.testing.assert_allclose(got, left @ b, rtol=1e-4, atol=1e-5)


def test_the_source_reads_as_it_should() -> None:
    """After a change on purpose: write `source` over the golden file, and read it."""
    text = GEMM.replace("As[r, c] = A[gr, gc]", "As[r, c] = guard(gr < 70, A[gr, gc], 0.0:float32)")
    text = text.replace("spatial gr in range(70)", "spatial gr in range(96)")
    text = text.replace("gi in range(70) = b0*32 + ti1*2 + i1", "gi in range(96) = b0*32 + ti1*2 + i1")
    program = from_text(staged(3, text))
    source = emit_kernel(program, gpu_target(), "gemm").source
    assert source == (FOLDER / "golden" / "simt_gemm.cu").read_text(encoding="utf-8")
