"""Tests of what a GPU kernel allocates: by scope, with the free ends of padded rows, as polynomials in parameters."""

from __future__ import annotations

import pytest

from pipeline.ir.graph import DType
from pipeline.ir.poly import Poly
from pipeline.ir.program import Alloc, Buffer, Scope, Seq, Stmt
from rules.schedule.gpu_allocated import ALIGNMENT, GpuAllocated

NOTHING = Seq(())


def allocated(scope: Scope, *shape: Poly | int, dtype: DType = "float32", pad: int = 0, body: Stmt = NOTHING) -> Alloc:
    return Alloc(Buffer("b", tuple(Poly.of(e) for e in shape), dtype, scope, pad=Poly.of(pad)), body)


def test_nothing_is_allocated_where_nothing_is_declared() -> None:
    assert GpuAllocated.of(NOTHING) == GpuAllocated(Poly.of(0), Poly.of(0))


@pytest.mark.parametrize("scope", ["local", "fragment"])
def test_what_threads_and_warps_hold_is_counted_in_bytes_of_its_dtype(scope: Scope) -> None:
    found = GpuAllocated.of(Seq((allocated(scope, 3, 5), allocated(scope, 7, dtype="float16"))))
    assert found == GpuAllocated(Poly.of(0), Poly.of(4 * 15 + 2 * 7))


def test_buffers_in_shared_memory_count_the_bytes_that_their_alignment_may_cost() -> None:
    found = GpuAllocated.of(allocated("shared", 3, 5, body=allocated("shared", 7, dtype="float16")))
    assert found == GpuAllocated(Poly.of(4 * 15 + ALIGNMENT + 2 * 7 + ALIGNMENT), Poly.of(0))


def test_padded_rows_are_counted_with_what_they_leave_free() -> None:
    assert GpuAllocated.of(allocated("shared", 3, 8, pad=4)).shared.value == 4 * 3 * 12 + ALIGNMENT


def test_a_number_takes_one_element() -> None:
    assert GpuAllocated.of(allocated("local")).held.value == 4


def test_extents_stay_parameters() -> None:
    p = Poly.symbol("p")
    assert GpuAllocated.of(allocated("local", p, 2)).held == 8 * p
