"""Tensorized nests become their instruction, which computes what the nest does; other CPUs are refused."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from pipeline.codegen.llvm.build import emit_kernel
from pipeline.codegen.llvm.compile import assembly
from pipeline.codegen.llvm.emit_tensor import INSTRUCTIONS
from pipeline.errors import CodegenError
from pipeline.ir.interpret import interpret
from pipeline.ir.program import Program
from pipeline.ir.program_parse import from_text
from pipeline.ir.program_text import to_text
from pipeline.ir.target import Target
from pipeline.schedule.intrinsics import DOTS, INTRINSICS
from pipeline.schedule.steps import Blockize, CacheWrite, Parallel, Split, Tensorize, Unroll
from tests.codegen.kernel_runs import avx512, described, native, run_program
from tests.schedule.byte_products import byte_feeds, byte_product, exact, tiled, united
from tests.schedule.programs import applied

VNNI, AVX, NEON = "avx512vnni.dot_u8i8i32", "avxvnni.dot_u8i8i32", "neon.dot_i8i8i32"
CASES = {VNNI: (16, "uint8", "vpdpbusd"), AVX: (8, "uint8", "vpdpbusd"), NEON: (4, "int8", "sdot")}
HERE = [name for name in CASES if INTRINSICS[name].lacking(native()) is None]


def target_of(name: str) -> Target:
    """A described target that has the instruction."""
    if name == NEON:
        return described("aarch64")
    if name == AVX:
        return replace(described("avx2"), features=(*described("avx2").features, "+avxvnni"))
    return replace(avx512(), features=(*avx512().features, "+avx512vnni"))


def tensorized(name: str, m: int = 3, n: int = 32, k: int = 12) -> Program:
    lanes, left, _ = CASES[name]
    return applied(byte_product(m, n, k, left), *united(lanes), Tensorize("n1", name))


def register_tile(name: str, m: int = 7, n: int = 64, k: int = 40) -> Program:
    """Two rows at a time, their sums in registers."""
    lanes, left, _ = CASES[name]
    before = (Split("mm_m", (2,), ("mm_m", "m1")), *tiled(lanes)[:2])
    program = applied(byte_product(m, n, k, left), *before)
    from_here = tiled(lanes)
    reorder = replace(from_here[2], order=("mm_m", "n0", "k0", "m1", "n1", "k1"))  # type: ignore[call-arg]
    return applied(program, reorder, from_here[3], CacheWrite("mm", "local", "n0"), from_here[4], Unroll("m1"),
                   Blockize("n1"), Tensorize("n1", name), Parallel("mm_m"))  # fmt: skip


def test_every_intrinsic_has_an_instruction() -> None:
    assert set(INSTRUCTIONS) == {intrinsic.name for intrinsic in DOTS} == set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_the_assembly_holds_the_instruction(name: str) -> None:
    lanes, _, mnemonic = CASES[name]
    target = target_of(name)
    text = assembly(emit_kernel(tensorized(name), target).text, target)
    found = [line for line in text.splitlines() if re.search(rf"\b{mnemonic}\b", line)]
    register = {16: "%zmm", 8: "%ymm", 4: ".4s"}[lanes]
    assert found and all(register in line for line in found), found


@pytest.mark.parametrize("name", CASES)
def test_the_sums_of_a_register_tile_stay_in_registers(name: str) -> None:
    _, _, mnemonic = CASES[name]
    target = target_of(name)
    lines = assembly(emit_kernel(register_tile(name), target).text, target).splitlines()
    at = [number for number, line in enumerate(lines) if re.search(rf"\b{mnemonic}\b", line)]
    assert len(at) >= 2
    between = lines[at[0] : at[1]]
    stores = [line for line in between if re.search(r"\bstr\b|mov\w+\s+%[xyz]mm\d+, \S*\(", line)]
    assert not stores, between


@pytest.mark.skipif(not HERE, reason="this machine has none of the instructions")
@pytest.mark.parametrize("name", HERE)
@pytest.mark.parametrize(("m", "n", "k"), [(3, 32, 12), (1, 16, 4), (2, 37, 13), (3, 5, 3), (4, 64, 257)])
def test_the_instruction_computes_what_the_nest_does(name: str, m: int, n: int, k: int) -> None:
    program = tensorized(name, m, n, k)
    feeds = byte_feeds(program)
    np.testing.assert_array_equal(run_program(program, feeds, native())["C"], exact(feeds))


@pytest.mark.skipif(not HERE, reason="this machine has none of the instructions")
@pytest.mark.parametrize("name", HERE)
@pytest.mark.parametrize(("m", "n", "k"), [(7, 64, 40), (8, 40, 41)])
def test_register_tiles_are_right_at_their_ragged_ends(name: str, m: int, n: int, k: int) -> None:
    program = register_tile(name, m, n, k)
    feeds = byte_feeds(program)
    np.testing.assert_array_equal(run_program(program, feeds, native())["C"], exact(feeds))


@pytest.mark.skipif(not HERE, reason="this machine has none of the instructions")
@pytest.mark.parametrize("name", HERE)
def test_sums_wrap_around_and_do_not_saturate(name: str) -> None:
    """The steps between 16 and 32 bits are exact, and those beyond 32 bits wrap, as NumPy's do."""
    program = tensorized(name, 1, 16, 4)
    text = to_text(program).replace("= 0:int32", "= 2147483647:int32")
    start = from_text(text)
    assert start != program
    feeds = {"A": np.full((1, 4), 255, np.uint8), "B": np.full((4, 16), 127, np.int8)}
    feeds["B"][:, 8:] = -128
    wanted = (exact(feeds) + 2147483647).astype(np.int32)
    np.testing.assert_array_equal(run_program(start, feeds, native())["C"], wanted)


@pytest.mark.parametrize("name", CASES)
def test_points_that_conditions_may_leave_out_run_as_the_nest(name: str) -> None:
    """Three columns are less than any vector, so that nothing is left for the instruction."""
    lanes, _, mnemonic = CASES[name]
    target = target_of(name)
    assert lanes > 3
    text = assembly(emit_kernel(tensorized(name, n=3), target).text, target)
    assert not re.search(rf"\b{mnemonic}\b", text)


def where(program: Program, condition: str) -> Program:
    """The update under one more condition."""
    store = "                                C[m, n] +="
    text = to_text(program).replace(store, f"                                where {condition}\n{store}")
    assert condition in text
    return from_text(text)


CONDITIONS = [
    ("mm_m < 3 and n0 * 16 + n1 <= 31 and k1 >= 0 and k0 > -1", True),
    ("mm_m < 2", True),
    ("n0 * 16 + n1 <= 30", True),
    ("1 < 2", True),
    ("2 < 1", False),
    ("2 < 1 and mm_m < 3", False),
    ("mm_m < 3 and 1 < 2", True),
    ("k1 >= 1", False),
    ("n1 < 15", False),
    ("k1 != 2", False),
    ("k0 > 0 and (n1 + mm_m) // 2 < 8", False),
]


@pytest.mark.parametrize(("condition", "used"), CONDITIONS)
def test_the_instruction_is_used_where_conditions_are_known_to_hold(condition: str, used: bool) -> None:
    program = where(tensorized(VNNI), condition)
    target = target_of(VNNI)
    assert ("vpdpbusd" in assembly(emit_kernel(program, target).text, target)) == used
    if VNNI in HERE:
        feeds = byte_feeds(program)
        wanted = interpret(program, feeds)["C"]
        np.testing.assert_array_equal(run_program(program, feeds, native())["C"], wanted)


@pytest.mark.parametrize("name", CASES)
def test_a_target_without_the_instruction_is_refused(name: str) -> None:
    other = described("avx2") if name == NEON else described("aarch64")
    for target in (replace(target_of(name), features=()), other):
        with pytest.raises(CodegenError, match="the target cannot execute") as caught:
            emit_kernel(tensorized(name), target)
        assert caught.value.why and "has not the features" in caught.value.why


def test_a_nest_that_has_become_another_is_refused() -> None:
    changed = to_text(tensorized(VNNI)).replace("* cast(P", "+ cast(P")
    with pytest.raises(CodegenError, match=r"loop n1 is not what avx512vnni\.dot_u8i8i32 computes") as caught:
        emit_kernel(from_text(changed), target_of(VNNI))
    assert caught.value.why and "the value of block mm" in caught.value.why


def test_an_unknown_intrinsic_is_refused() -> None:
    changed = to_text(tensorized(VNNI)).replace(VNNI, "avx1024.dot")
    with pytest.raises(CodegenError, match=r"there is no intrinsic avx1024.dot"):
        emit_kernel(from_text(changed), target_of(VNNI))
