"""Each mistake that a code generator for GPUs can make, planted into a source that it emitted, has to be caught."""

import functools
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pipeline.codegen.cuda.build import emit_kernel
from pipeline.codegen.cuda.check_outputs import ExecutionVerdict, check_outputs
from pipeline.codegen.cuda.execute import execute
from pipeline.codegen.cuda.execute_build import find_compiler
from pipeline.codegen.cuda.execution import Execution
from pipeline.codegen.cuda.kernel import CudaSource
from pipeline.ir.graph import Graph
from pipeline.ir.graph_builder import GraphBuilder
from pipeline.ir.program_parse import from_text
from pipeline.verification.tolerance import Reference, evaluate_with_bound
from tests.codegen.cuda.gpu_targets import gpu_target

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="there is no C++ compiler")

FOLDER = Path(__file__).parent
M, N, K = 100, 96, 256


def unwrapped(source: CudaSource) -> CudaSource:
    """With each statement on one line, for the patterns below."""
    lines: list[str] = []
    for line in source.source.splitlines():
        last = lines[-1].partition("//")[0].strip() if lines else ""
        if last and last[-1] not in ";{}" and not last.startswith("#"):
            lines[-1] += " " + line.strip()
        else:
            lines.append(line)
    return replace(source, source="\n".join(lines) + "\n")


@functools.cache
def tensor_source() -> CudaSource:
    """C[100, 96] = A · B, the sum over 256, in halves: three stages ahead by cp.async, ldmatrix and mma."""
    text = (FOLDER / "tensor_gemm.txt").read_text(encoding="utf-8")
    text = (
        text.replace("[100, 64]", f"[{M}, {K}]").replace("[64, 96]", f"[{K}, {N}]").replace("range(64)", f"range({K})")
    )
    text = text.replace("serial(2) with software_pipeline=2", f"serial({K // 32}) with software_pipeline=3")
    return unwrapped(emit_kernel(from_text(text), gpu_target()))


@functools.cache
def simt_source() -> CudaSource:
    """C[70, 64] = A · B, the sum over 32, in float32."""
    program = from_text((FOLDER / "simt_gemm.txt").read_text(encoding="utf-8"))
    return unwrapped(emit_kernel(program, gpu_target()))


def product(m: int, n: int, k: int, dtype: str) -> Graph:
    b = GraphBuilder()
    left, right = b.input("A", (m, k), dtype), b.input("B", (k, n), dtype)
    wide = b.matmul(left, right, dtype="float32")
    return b.finish([("C", wide if dtype == "float32" else b.cast(wide, dtype))])


@functools.cache
def reference(tensor: bool) -> tuple[dict[str, np.ndarray], Reference]:
    m, n, k, dtype = (M, N, K, "float16") if tensor else (70, 64, 32, "float32")
    rng = np.random.default_rng(0)
    feeds = {"A": rng.standard_normal((m, k)).astype(dtype), "B": rng.standard_normal((k, n)).astype(dtype)}
    return feeds, evaluate_with_bound(product(m, n, k, dtype), feeds)["C"]


def judged(source: CudaSource) -> tuple[Execution, ExecutionVerdict]:
    feeds, want = reference("Cf" in source.source)
    execution = execute(source, feeds, count=False)
    return execution, check_outputs(execution, {"C": want.value}, {"C": want.bound})


def planted(source: CudaSource, old: str, new: str, *, which: int | None = None) -> CudaSource:
    """The source with every match of a pattern replaced, or one of them."""
    found = list(re.finditer(old, source.source))
    assert found, f"nothing matches {old} in\n{source.source}"
    chosen = found if which is None else [found[which]]
    text = source.source
    for match in reversed(chosen):
        text = text[: match.start()] + match.expand(new) + text[match.end() :]
    assert text != source.source
    return replace(source, source=text)


def kinds(execution: Execution) -> set[str]:
    return {fault.kind for fault in execution.faults}


@pytest.mark.parametrize("source", [tensor_source, simt_source])
def test_what_is_emitted_has_no_fault(source: Callable[[], CudaSource]) -> None:
    execution, verdict = judged(source())
    assert execution.faults == () and verdict.ok and verdict.checked == verdict.elements


def test_every_barrier_that_is_emitted_is_needed() -> None:
    for source in (tensor_source(), simt_source()):
        barriers = len(re.findall(r"ms::sync\(\);", source.source))
        assert barriers
        for number in range(barriers):
            execution, verdict = judged(planted(source, r"ms::sync\(\);", "", which=number))
            assert "race" in kinds(execution) and not verdict.ok


@pytest.mark.parametrize("source", [tensor_source, simt_source])
def test_a_tail_that_is_one_too_long_is_caught(source: Callable[[], CudaSource]) -> None:
    for match in set(re.findall(r"< (100|70)\b", source().source)):
        execution, verdict = judged(planted(source(), rf"< {match}\b", f"< {int(match) + 1}"))
        assert "out of bounds" in kinds(execution) and not verdict.ok


@pytest.mark.parametrize("source", [tensor_source, simt_source])
def test_a_tail_that_is_one_too_short_is_caught(source: Callable[[], CudaSource]) -> None:
    for match in set(re.findall(r"< (100|70)\b", source().source)):
        _, verdict = judged(planted(source(), rf"< {match}\b", f"< {int(match) - 1}"))
        assert not verdict.ok


def test_a_swizzle_that_reads_other_places_than_were_written_is_caught() -> None:
    _, verdict = judged(
        planted(tensor_source(), r"(ldmatrix\w*\([^;]*)ms::swizzled<32, 2>", r"\1ms::swizzled<64, 2, 32>")
    )
    assert not verdict.ok


def test_a_swizzle_that_is_left_out_where_tiles_are_written_is_caught() -> None:
    old = r"(copy_async[^;]*)ms::swizzled<32, 2>\(([^,]*), (ca \* 8)\)"
    _, verdict = judged(planted(tensor_source(), old, r"\1((\2) * 32 + \3)"))
    assert not verdict.ok


def test_a_wait_for_one_stage_too_few_is_caught() -> None:
    execution, verdict = judged(planted(tensor_source(), r"ms::wait<1>", "ms::wait<2>"))
    assert "copy in flight read" in kinds(execution) and not verdict.ok


def test_a_buffer_with_one_stage_too_few_is_caught() -> None:
    execution, verdict = judged(planted(tensor_source(), r"% 3;", "% 2;"))
    assert kinds(execution) & {"copy in flight read", "copy in flight overwritten", "race"} and not verdict.ok


def test_copies_that_are_never_waited_for_are_caught() -> None:
    execution, verdict = judged(planted(tensor_source(), r"ms::wait<1>\(\);", ""))
    assert "copy in flight read" in kinds(execution) and not verdict.ok


def test_copies_that_are_not_committed_are_caught() -> None:
    execution, verdict = judged(planted(tensor_source(), r"ms::commit\(\);", ""))
    assert "copy in flight read" in kinds(execution) and not verdict.ok


def test_a_fragment_that_is_loaded_transposed_is_caught() -> None:
    _, verdict = judged(planted(tensor_source(), r"ldmatrix_x4\(", "ldmatrix_x4_trans("))
    assert not verdict.ok


def test_a_fragment_that_is_not_transposed_is_caught() -> None:
    _, verdict = judged(planted(tensor_source(), r"ldmatrix_x4_trans\(", "ldmatrix_x4("))
    assert not verdict.ok


def test_an_accumulator_in_half_precision_is_caught() -> None:
    old = r"(ms::mma_m16n8k16_f16f16f32\((Cf\[[^,]*\]), .*\);)"
    half = r"\1 for (int e = 0; e < 4; ++e) \2[e] = ms::to_float(ms::to<ms::f16>(\2[e]));"
    execution, verdict = judged(planted(tensor_source(), old, half))
    assert execution.faults == () and not verdict.ok


def test_a_barrier_that_some_warps_skip_is_caught() -> None:
    execution, verdict = judged(planted(tensor_source(), r"ms::sync\(\);", "if (warp < 3) ms::sync();"))
    assert "barrier" in kinds(execution) and not verdict.ok


def test_a_copy_of_sixteen_bytes_to_an_odd_place_is_caught() -> None:
    execution, verdict = judged(planted(tensor_source(), r"ca \* 8 \+ k0", "ca * 8 + 2 + k0"))
    assert "misaligned" in kinds(execution) and not verdict.ok


def test_a_tile_whose_ragged_end_is_not_filled_is_caught() -> None:
    text = r"(ms::copy_async<16>\(As[^;]*),\s+(gr < 100)\);"
    execution, verdict = judged(planted(tensor_source(), text, r"if (\2) \1);"))
    assert "unwritten" in kinds(execution) and not verdict.ok


def test_a_lane_that_takes_no_part_in_a_product_is_caught() -> None:
    execution, verdict = judged(planted(tensor_source(), r"(ms::mma_)", r"if (lane != 5) \1"))
    assert "warp" in kinds(execution) and not verdict.ok


@pytest.mark.parametrize("source", [tensor_source, simt_source])
def test_an_accumulator_that_is_not_set_to_zero_first_is_caught(source: Callable[[], CudaSource]) -> None:
    _, verdict = judged(planted(source(), r"\bC[fl]\[[^=;]*\] = 0\.0f;", ""))
    assert not verdict.ok
