"""Annotated loops ask for the memory of a later iteration, and compute what they did."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from pipeline.codegen.llvm.build import emit_kernel
from pipeline.codegen.llvm.compile import assembly
from pipeline.codegen.llvm.emit_prefetch import SHARE
from pipeline.ir.program import Program
from pipeline.ir.program_check import check
from pipeline.ir.program_parse import from_text
from pipeline.ir.program_text import to_text
from pipeline.ir.target import Cache
from pipeline.schedule.steps import Annotate, CacheWrite, DecomposeReduction, Pack, Reorder, Split, Step, Vectorize
from tests.codegen.kernel_runs import described, native, run_program
from tests.schedule.programs import applied, feeds, matmul

COPIES = 2  # of the loop: for whole panels, and for the last one


def packed(*hint: Step) -> Program:
    """Panels of 32 columns of B, 128 bytes for each k, their sums in registers."""
    steps = (
        Split("mm_n", (32,), ("n0", "n1")),
        Reorder(("n0", "mm_m", "mm_k", "n1")),
        Pack("mm", "B", ("n0", "mm_k", "n1"), "P"),
        CacheWrite("mm", "local", "mm_m"),
        DecomposeReduction("mm", "mm_k"),
        Vectorize("n1"),
    )
    return applied(matmul(6, 70, 50), *steps, *hint)


def asked(program: Program) -> list[str]:
    text = emit_kernel(program, described("avx2")).text
    return [line for line in text.splitlines() if "call void @llvm.prefetch" in line]


def test_without_the_annotation_nothing_is_asked_for() -> None:
    assert not asked(packed())


def test_an_iteration_asks_for_each_line_of_the_panel_and_for_its_own_row() -> None:
    lines = asked(packed(Annotate("mm_k", "prefetch", 8)))
    bases = [re.search(r"ptr (%\w+), i32 0, i32 3, i32 1\)", line) for line in lines]
    assert all(bases) and len(lines) == COPIES * 3  # two lines of the panel, one of the row


def test_what_is_the_same_in_each_iteration_is_not_asked_for() -> None:
    """Of the loop over the panels, P moves but A does not; a whole panel is longer than what is asked for."""
    assert not asked(packed(Annotate("n0", "prefetch", 1)))


def test_the_distance_is_in_iterations() -> None:
    near, far = (emit_kernel(packed(Annotate("mm_k", "prefetch", d)), described("avx2")).text for d in (1, 8))
    assert near != far
    assert "add nsw i64" in far and re.search(rf", {8 * 32 * 4}\b", far)  # eight rows of 32 floats of the panel
    assert not re.search(rf", {8 * 32 * 4}\b", near) and re.search(rf", {32 * 4}\b", near)


@pytest.mark.parametrize(("cpu", "mnemonic"), [("avx2", "prefetcht0"), ("aarch64", "prfm")])
def test_the_assembly_holds_prefetches(cpu: str, mnemonic: str) -> None:
    target = described(cpu)
    program = packed(Annotate("mm_k", "prefetch", 4))
    assert mnemonic in assembly(emit_kernel(program, target).text, target)


@pytest.mark.parametrize("distance", [1, 4, 200])
def test_a_prefetch_changes_nothing_even_beyond_the_end(distance: int) -> None:
    given = feeds(packed())
    wanted = run_program(packed(), given, native())["C"]
    found = run_program(packed(Annotate("mm_k", "prefetch", distance)), given, native())["C"]
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(found, given["A"] @ given["B"])


def test_a_loop_asks_for_what_it_reads_when_the_loop_around_it_is_one_further() -> None:
    """The tile that follows, asked for line by line while this one is computed with, into the second level."""
    text = to_text(packed()).replace("for mm_k in serial(50):", 'for mm_k in serial(50) with prefetch_next="n0":')
    program = from_text(text)
    check(program)
    lines = asked(program)
    assert lines and all("i32 0, i32 2, i32 1)" in line for line in lines)
    given = feeds(program)
    np.testing.assert_array_equal(run_program(program, given, native())["C"], given["A"] @ given["B"])


def test_a_panel_that_rows_share_is_asked_for_in_parts() -> None:
    """Each of the six rows asks for a sixth of the panel that follows, instead of all of it again."""
    text = to_text(packed()).replace("for mm_k in serial(50):", 'for mm_k in serial(50) with prefetch_next="n0":')
    assert "for mm_m in serial(6):" in text
    run = 50 * 32 * 4
    step = -(-run // (6 * 50))
    code = emit_kernel(from_text(text), described("avx2")).text
    assert step < 64 and re.search(rf"mul nsw i64 %\w+, {step}\b", code) and re.search(rf", {50 * step}\b", code)
    assert len(asked(from_text(text))) == COPIES  # one line at a time


def test_a_tile_that_would_push_what_is_in_use_out_of_the_cache_is_not_asked_for() -> None:
    text = to_text(packed()).replace("for mm_k in serial(50):", 'for mm_k in serial(50) with prefetch_next="n0":')
    tile = 50 * 32 * 4  # bytes
    target = described("avx2")
    for caches, wanted in ((tile * SHARE, COPIES), (tile * (SHARE - 1), 0)):
        small = replace(target, caches=(Cache(1, 32 << 10), Cache(2, caches)))
        code = emit_kernel(from_text(text), small).text
        assert code.count("call void @llvm.prefetch") == wanted


def test_what_is_not_packed_is_asked_for_row_by_row() -> None:
    """The rows of B lie apart: each iteration asks for its own, whatever loops are around it."""
    steps = (Split("mm_n", (32,), ("n0", "n1")), Reorder(("n0", "mm_m", "mm_k", "n1")),
             CacheWrite("mm", "local", "mm_m"),
             DecomposeReduction("mm", "mm_k"), Vectorize("n1"))  # fmt: skip
    program = applied(matmul(6, 70, 50), *steps, Annotate("mm_k", "prefetch_next", "n0"))
    code = emit_kernel(program, described("avx2")).text
    assert re.search(rf", {70 * 4}\b", code)
    given = feeds(program)
    np.testing.assert_array_equal(run_program(program, given, native())["C"], given["A"] @ given["B"])
