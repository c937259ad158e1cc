"""Copies that transpose compute what they did, in squares of registers where there is room for one."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.codegen.llvm import emit
from pipeline.codegen.llvm.build import build_kernel, emit_kernel
from pipeline.codegen.llvm.compile import assembly
from pipeline.codegen.llvm.ir_builder import IrBuilder, Value
from pipeline.codegen.llvm.transpose_lanes import transpose
from pipeline.errors import CodegenError
from pipeline.ir.graph import DType
from pipeline.ir.graph_types import numpy_dtype
from pipeline.ir.interpret import interpret
from pipeline.ir.program import Program
from pipeline.ir.program_check import check
from pipeline.ir.program_parse import from_text
from pipeline.ir.program_text import to_text
from pipeline.ir.target import Target
from pipeline.schedule.steps import DecomposeReduction, Pack, Reorder, Split, Vectorize
from tests.codegen.kernel_runs import avx512, described, native, run_kernel, sse2
from tests.schedule.programs import applied, matmul

X86 = native().triple.startswith(("x86_64", "amd64"))
TARGETS: dict[str, Callable[[], Target]] = {
    "native": native,
    "avx2": lambda: described("avx2"),
    "sse2": sse2,
    "avx512": avx512,
}
DTYPES: tuple[DType, ...] = ("float32", "float16", "bfloat16", "int8", "float64", "int64", "bool")

PLAIN = """
program turn():
    input B: {dtype}[{lanes}, {pitch}]
    output P: {dtype}[{rows}, {lanes}]
    body:
        for u in serial({rows}):
            for v in vectorized({lanes}):
                block copy:
                    spatial i in range({rows}) = u
                    spatial j in range({lanes}) = v
                    P[i, j] = B[j, i + {first}]
"""

PANELS = """
program panels():
    input B: {dtype}[{n}, {k}]
    output P: {dtype}[{count}, {k}, {width}]
    body:
        for n0 in {kind}({count}):
            for k in serial({k}):
                for n1 in vectorized({width}):
                    block pack:
                        spatial i in range({count}) = n0
                        spatial j in range({k}) = k
                        spatial l in range({width}) = n1
                        P[i, j, l] = guard(i * {width} + l < {n}, B[i * {width} + l, j], {zero}:{dtype})
"""

PARTS = """
program parts():
    input B: float32[{n}, {k}]
    output P: float32[{outer}, {inner}, {n}]
    body:
        for k0 in serial({outer}):
            for k1 in serial({inner}):
                for v in vectorized({n}):
                    block pack:
                        spatial i in range({outer}) = k0
                        spatial j in range({inner}) = k1
                        spatial l in range({n}) = v
                        P[i, j, l] = guard(i * {inner} + j < {k}, B[l, i * {inner} + j], 0.0:float32)
"""

HEADS = """
program heads():
    input B: float32[{n}, 3, {k}]
    output P: float32[{outer}, {inner}, 3, {n}]
    body:
        for k0 in serial({outer}):
            for {first} in serial({first_extent}):
                for {second} in serial({second_extent}):
                    for v in vectorized({n}):
                        block pack:
                            spatial i in range({outer}) = k0
                            spatial j in range({inner}) = k1
                            spatial m in range(3) = h
                            spatial l in range({n}) = v
                            P[i, j, m, l] = guard(i * {inner} + j < {k}, B[l, m, i * {inner} + j], 0.0:float32)
"""

VALUE = """
program value():
    input A: float16[{n}, {n}]
    input B: float32[{n}, {n}]
    input C: float32[{n}, {n}]
    input s: float32[{n}]
    output P: float32[{n}, {n}]
    body:
        for u in {row}({n}){note}:
            for v in vectorized({n}):
                block compute:
                    {kind} i in range({n}) = u
                    spatial j in range({n}) = v
                    P[{store}] = {value}
"""


def drawn(program: Program) -> dict[str, np.ndarray]:
    random = np.random.default_rng(7)
    given = {}
    for buffer in program.buffers:
        if buffer.role == "input":
            shape = tuple(extent.value for extent in buffer.shape)
            numbers = (
                random.standard_normal(shape) * 50 > 0 if buffer.dtype == "bool" else random.standard_normal(shape) * 50
            )
            given[buffer.name] = np.asarray(numbers).astype(numpy_dtype(buffer.dtype))
    return given


def ran(program: Program, feeds: dict[str, np.ndarray], target: Target) -> np.ndarray:
    """P, computed by code for the target between pages that may not be touched."""
    try:
        return run_kernel(build_kernel(program, target), feeds, target, page_ends=sys.platform == "linux")["P"]
    except CodegenError as error:
        if "this CPU cannot run" not in str(error):
            raise
        pytest.skip(str(error))


def ir(program: Program, target: Target) -> str:
    check(program)
    return emit_kernel(program, target).text


def turned(program: Program, target: Target) -> bool:
    """Are there shuffles of two vectors? A splat is one of one vector, and an index takes no part in squares."""
    return re.search(r"shufflevector <\d+ x \w+> %\w+, <\d+ x \w+> %", ir(program, target)) is not None


def same(got: np.ndarray, want: np.ndarray) -> None:
    assert got.dtype == want.dtype and got.shape == want.shape
    assert got.tobytes() == np.ascontiguousarray(want).tobytes()


def side_lengths(target: Target, dtype: DType) -> list[int]:
    lanes = target.lanes(numpy_dtype(dtype).itemsize)
    return sorted({1, lanes - 1, lanes, lanes + 1, 3, 37} - {0})


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_is_transposed_whatever_the_sides(dtype: DType) -> None:
    sides = side_lengths(native(), dtype)
    for rows, lanes in zip(sides, reversed(sides), strict=True):
        program = from_text(PLAIN.format(dtype=dtype, rows=rows, lanes=lanes, pitch=rows, first=0))
        feeds = drawn(program)
        same(ran(program, feeds, native()), feeds["B"].T)


@pytest.mark.skipif(not X86, reason="runs x86 code")
@pytest.mark.parametrize("target", ["avx2", "sse2", "avx512"])
@pytest.mark.parametrize("dtype", ["float32", "int8", "bfloat16", "float64"])
def test_code_for_another_x86_transposes_alike_here(dtype: DType, target: str) -> None:
    for rows, lanes in ((37, 37), (TARGETS[target]().lanes(), 19)):
        program = from_text(PLAIN.format(dtype=dtype, rows=rows, lanes=lanes, pitch=rows + 5, first=2))
        feeds = drawn(program)
        same(ran(program, feeds, TARGETS[target]()), feeds["B"][:, 2 : 2 + rows].T)


@pytest.mark.parametrize("lanes", [1, 3, 4, 15, 16, 17, 31, 33, 48])
@pytest.mark.parametrize("rows", [1, 5, 16, 23])
def test_rows_that_are_part_of_longer_ones_are_transposed(rows: int, lanes: int) -> None:
    """The last row ends where the buffer does."""
    program = from_text(PLAIN.format(dtype="float32", rows=rows, lanes=lanes, pitch=rows + 7, first=7))
    feeds = drawn(program)
    same(ran(program, feeds, native()), feeds["B"][:, 7:].T)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("target", ["avx2", "sse2", "avx512", "aarch64"])
def test_squares_are_shuffled_and_nothing_is_gathered(target: str, dtype: DType) -> None:
    machine = described("aarch64") if target == "aarch64" else TARGETS[target]()
    for rows, lanes in ((64, 64), (37, 41)):
        program = from_text(PLAIN.format(dtype=dtype, rows=rows, lanes=lanes, pitch=rows, first=0))
        assert turned(program, machine) and "gather" not in ir(program, machine)


@pytest.mark.parametrize(
    ("target", "mnemonics"),
    [("avx2", ("vunpcklps", "vunpcklpd", "vperm2f128")), ("avx512", ("punpckldq", "punpcklqdq", "vshufi64x2")),
     ("sse2", ("unpcklps", "movlhps")), ("aarch64", ("zip1", "zip2"))],
)  # fmt: skip
def test_each_stage_is_an_instruction_of_the_machine(target: str, mnemonics: tuple[str, ...]) -> None:
    machine = described("aarch64") if target == "aarch64" else TARGETS[target]()
    program = from_text(PLAIN.format(dtype="float32", rows=64, lanes=64, pitch=64, first=0))
    text = assembly(emit_kernel(program, machine).text, machine)
    assert all(name in text for name in mnemonics)
    assert not re.search(r"\b(v?pinsr|v?insertps|vpermt2|call)", text) and not re.search(r"\(%rsp\)|\[sp", text)


@settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.integers(1, 70), st.integers(1, 40), st.sampled_from((1, 8, 15, 16, 24, 48)), st.booleans())
def test_panels_hold_zero_beyond_the_end(n: int, k: int, width: int, shared: bool) -> None:
    kind = "parallel" if shared else "serial"
    program = from_text(
        PANELS.format(dtype="float32", n=n, k=k, width=width, count=-(-n // width), kind=kind, zero="0.0")
    )
    feeds = drawn(program)
    want = np.zeros((-(-n // width) * width, k), np.float32)
    want[:n] = feeds["B"]
    same(ran(program, feeds, native()), want.reshape(-1, width, k).transpose(0, 2, 1))


@pytest.mark.parametrize("dtype", ["float16", "int8", "float64"])
def test_panels_of_other_dtypes_hold_zero_beyond_the_end(dtype: DType) -> None:
    zero = "0" if dtype == "int8" else "0.0"
    program = from_text(PANELS.format(dtype=dtype, n=53, k=19, width=48, count=2, kind="serial", zero=zero))
    assert turned(program, native())
    feeds = drawn(program)
    same(ran(program, feeds, native()), interpret(program, feeds)["P"])


def test_where_a_tile_is_whole_only_sometimes_it_is_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop over panels is not split at its ragged end once there are copies enough."""
    program = from_text(PANELS.format(dtype="float32", n=53, k=19, width=16, count=4, kind="serial", zero="0.0"))
    apart = ir(program, native())
    monkeypatch.setattr(emit, "COPIES", 1)
    text = ir(program, native())
    assert text != apart and "gather" in text and turned(program, native())
    feeds = drawn(program)
    same(ran(program, feeds, native()), interpret(program, feeds)["P"])


@pytest.mark.parametrize(
    ("outer", "inner", "k"), [(4, 4, 16), (5, 4, 18), (16, 1, 16), (1, 17, 17), (3, 2, 5), (8, 3, 24)]
)
def test_the_parts_of_a_split_row_are_transposed_as_one(outer: int, inner: int, k: int) -> None:
    program = from_text(PARTS.format(n=21, k=k, outer=outer, inner=inner))
    feeds = drawn(program)
    same(ran(program, feeds, native()), interpret(program, feeds)["P"])
    assert turned(program, native())


@pytest.mark.parametrize("heads_last", [True, False])
@pytest.mark.parametrize(("outer", "inner", "k"), [(32, 2, 64), (2, 17, 33), (1, 20, 20), (20, 1, 18)])
def test_a_loop_between_the_rows_and_the_lanes_goes_around_both(
    outer: int, inner: int, k: int, heads_last: bool
) -> None:
    names = [("k1", inner), ("h", 3)] if heads_last else [("h", 3), ("k1", inner)]
    program = from_text(
        HEADS.format(n=21, k=k, outer=outer, inner=inner, first=names[0][0], first_extent=names[0][1],
                     second=names[1][0], second_extent=names[1][1])
    )  # fmt: skip
    assert turned(program, native()) and turned(program, described("aarch64"))
    feeds = drawn(program)
    same(ran(program, feeds, native()), interpret(program, feeds)["P"])


def test_a_pack_of_a_transposed_operand_is_transposed_in_registers() -> None:
    """As rules make it: panels of B transposed, at a ragged end, in the product that reads them."""
    text = matmul(7, 53, 21)
    source = (
        to_text(text).replace("constant B: float32[21, 53]", "input B: float32[53, 21]").replace("B[k, n]", "B[n, k]")
    )
    steps = (
        Split("mm_n", (16,), ("n0", "n1")), Split("mm_k", (4,), ("k0", "k1")),
        Reorder(("n0", "mm_m", "k0", "k1", "n1")),
        Pack("mm", "B", ("k0", "k1", "n1"), "packed", "n0"), DecomposeReduction("mm", "k0"), Vectorize("n1"),
        Vectorize("packed_n1"),
    )  # fmt: skip
    program = applied(from_text(source), *steps)
    assert turned(program, native())
    feeds = drawn(program)
    got = run_kernel(build_kernel(program, native()), feeds, native(), page_ends=sys.platform == "linux")["C"]
    np.testing.assert_allclose(got, feeds["A"] @ feeds["B"].T, rtol=1e-4, atol=1e-2)


def value(
    n: int, of: str, *, store: str = "i, j", kind: str = "spatial", row: str = "serial", note: str = ""
) -> Program:
    return from_text(VALUE.format(n=n, value=of, store=store, kind=kind, row=row, note=note))


VALUES = {
    "a cast": "cast(A[j, i]):float32",
    "a product with a number": "B[j, i] * 0.5:float32",
    "a product with one of each row": "B[j, i] * s[i]",
    "a product with one of each column": "B[j, i] * s[j]",
    "two transposed": "B[j, i] * C[j, i]",
    "two transposed, with one of each row and one of each column": "max(B[j, i] * C[j, i], max(s[i], s[j]))",
    "two transposed, and their place": "max(max(B[j, i], C[j, i]), cast(i * 8 - j * 8):float32)",
    "two transposed, one of them padded": "guard(i >= 1 and i < {n}, B[j, i - 1], 0.0:float32) + C[j, i]",
    "two transposed and one not": "max(B[j, i] * C[j, i], B[i, j])",
    "one transposed and one not": "max(B[j, i], C[i, j])",
    "the same twice": "B[j, i] * B[j, i]",
    "a padded copy": "guard(i >= 1 and i < {n} and j >= 2, B[j - 2, i - 1], 0.0:float32)",
    "all but a corner": "guard(i + j < {n} + 9, B[j, i], 1.0:float32)",
    "mirrored": "B[{n} - 1 - j, i]",
    "a guard in a guard": "guard(i >= 3, guard(j < {n} - 1, B[j + 1, i - 3], 2.0:float32), 3.0:float32)",
    "a loop in the value": "B[j, i] * cast(i):float32",
}


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("n", [29, 40])
def test_what_is_computed_from_a_transposed_load_is_what_it_was(name: str, n: int) -> None:
    program = value(n, VALUES[name].replace("{n} - 1 - j", f"j * -1 + {n - 1}").replace("{n}", str(n)))
    assert turned(program, native())
    feeds = drawn(program)
    np.testing.assert_array_equal(ran(program, feeds, native()), interpret(program, feeds)["P"])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int8"])
def test_results_of_every_dtype_are_turned(dtype: DType) -> None:
    text = to_text(value(29, "cast(B[j, i] * C[j, i]):float32")).replace("P: float32", f"P: {dtype}")
    program = from_text(text.replace("cast(B[j, i] * C[j, i]):float32", f"cast(B[j, i] * C[j, i]):{dtype}"))
    assert turned(program, native())
    feeds = drawn(program)
    np.testing.assert_array_equal(ran(program, feeds, native()), interpret(program, feeds)["P"])


def test_what_several_loads_lead_to_is_turned_once() -> None:
    one, two = (
        ir(value(32, text), avx512()).count("shufflevector") for text in ("B[j, i] * 2.0:float32", "B[j, i] * C[j, i]")
    )
    assert 0 < one == two


REFUSED = {
    "lanes that are neighbours already": value(32, "B[i, j]"),
    "one element for all lanes": value(32, "s[i]"),
    "rows that step by two": value(20, "guard(i * 2 < 20, B[j, i * 2], 0.0:float32)"),
    "rows of the result that lie apart along the lanes": value(32, "B[i, j]", store="j, i"),
    "iterations in order": value(32, "B[j, i]", kind="scan"),
    "an unrolled loop": value(20, "B[j, i]", row="unrolled"),
    "a loop with a hint": value(32, "B[j, i]", note=' with prefetch=4'),
    "too few rows": value(3, "B[j, i]"),
    "a condition that is not affine": value(32, "guard(i % 3 < 2, B[j, i], 0.0:float32)"),
    "a load where the guard says no": value(32, "guard(i < 16 and j < 16, 0.0:float32, B[j, i])"),
    "a condition on data": value(32, "guard(s[i] < 0.0:float32, B[j, i], 0.0:float32)"),
    "a sum": from_text(to_text(value(32, "B[j, i]")).replace("P[i, j] = ", "P[i, j] += ")),
    "a triangle": value(32, "guard(i + j < 32, B[j, i], 1.0:float32)"),
    "a guard that never holds": value(32, "guard(i >= 32, B[j, i], 0.0:float32)"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_transposed_copy_is_emitted_as_it_was(name: str) -> None:
    assert not turned(REFUSED[name], avx512())


@pytest.mark.parametrize(
    "name", [n for n in REFUSED if n not in ("a sum", "rows of the result that lie apart along the lanes")]
)
def test_what_is_refused_computes_what_it_did(name: str) -> None:
    feeds = drawn(REFUSED[name])
    np.testing.assert_array_equal(ran(REFUSED[name], feeds, native()), interpret(REFUSED[name], feeds)["P"])


def test_a_tile_that_is_to_become_registers_is_left_alone() -> None:
    text = PLAIN.format(dtype="float32", rows=16, lanes=16, pitch=16, first=0)
    head, nest = text.split("    body:\n")
    nest = nest.replace("P[i, j]", "T[i, j]").replace("\n", "\n    ").rstrip()
    back = nest.replace("T[i, j] = B[j, i + 0]", "P[i, j] = T[i, j]").replace("copy", "back")
    back = back.replace("for u", "for w").replace("= u", "= w").replace("for v", "for x").replace("= v", "= x")
    program = from_text(f"{head}    body:\n        alloc T: float32[16, 16] in local:\n    {nest}\n    {back}\n")
    assert not turned(program, avx512())
    feeds = drawn(program)
    same(ran(program, feeds, native()), feeds["B"].T)


@pytest.mark.parametrize(
    ("count", "bytes_"), [(1, 4), (2, 8), (4, 4), (8, 2), (8, 1), (16, 4), (16, 1), (32, 1), (8, 8)]
)
def test_the_stages_turn_squares_of_every_size(count: int, bytes_: int) -> None:
    """One shuffle for each vector in each stage."""
    b = IrBuilder()
    rows = [Value(f"%r{i}", f"i{8 * bytes_}", count) for i in range(count)]
    assert len(transpose(b, rows, bytes_)) == count
    assert len(b.lines) == count * (count.bit_length() - 1)


@pytest.mark.parametrize(("count", "lanes"), [(3, 3), (4, 8), (8, 4)])
def test_no_square_of_another_kind_is_turned(count: int, lanes: int) -> None:
    with pytest.raises(AssertionError, match="square"):
        transpose(IrBuilder(), [Value(f"%r{i}", "i32", lanes) for i in range(count)], 4)
