"""Tests of the checks of programs: each invariant accepts what is legal and refuses what is not, with its reason."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pipeline.errors import CheckError
from pipeline.ir.expr import Const
from pipeline.ir.poly import Poly
from pipeline.ir.program import Axis, Buffer, Loop, Program, Seq, instantiate
from pipeline.ir.program_check import CHECKS, check
from pipeline.ir.program_parse import from_text

LEGAL = """\
program matmul(t, u):
    derived n = ceildiv(100, t)
    input a: float32[100, 64]
    constant b: float32[64, u]
    packed bp: float32[64, u]
    output c: float32[100, u]
    prologue:
        for p0, p1 in serial(64, u):
            block pack:
                spatial i in range(64) = p0
                spatial j in range(u) = p1
                bp[i, j] = b[i, j]
    body:
        for i0 in parallel(n):
            alloc acc: float32[t, u] in local:
                for k, i2 in serial(64, t):
                    for j2 in vectorized(u):
                        block multiply:
                            spatial i in range(100) = i0 * {t} + i2
                            spatial i_tile in range(t) = i2
                            spatial j in range(u) = j2
                            reduce r in range(64) = k
                            where i0 * {t} + i2 < 100
                            init 0.0:float32
                            acc[i_tile, j] += a[i, r] * bp[r, j]
                for i3, j3 in serial(t, u):
                    block copy:
                        spatial w in range(100) = i0 * {t} + i3
                        spatial w_tile in range(t) = i3
                        spatial q in range(u) = j3
                        c[w, q] = acc[w_tile, q]
"""

GPU = """\
program double():
    output y: float32[64]
    body:
        for b in blockIdx.x(2):
            alloc s: float32[32] in shared:
                for i in threadIdx.x(32):
                    block one:
                        spatial v in range(32) = i
                        s[v] = 1.0:float32
                for j in threadIdx.x(32):
                    block two:
                        spatial v in range(64) = b * 32 + j
                        spatial w in range(32) = j
                        y[v] = s[w]
"""


@pytest.mark.parametrize("text", [LEGAL, GPU])
def test_a_legal_program_is_accepted(text: str) -> None:
    check(from_text(text))


def test_a_concrete_program_is_accepted() -> None:
    check(instantiate(from_text(LEGAL), {"t": 6, "u": 16}))


REFUSED = [
    ("names_are_unique", "for k, i2", "for k, i3", "loop variable i3 is there 2 times"),
    ("names_are_unique", "block copy", "block pack", "block pack is there 2 times"),
    (
        "names_are_unique",
        "output c: float32[100, u]",
        "output c: float32[100, u]\n    output c: int8[]",
        "buffer c is there 2",
    ),
    ("names_are_unique", "    packed bp", "    packed acc: int8[]\n    packed bp", "buffer acc is there 2 times"),
    ("names_are_unique", "(t, u):\n", "(t, n):\n", "symbol n is there 2 times"),
    ("names_are_unique", "spatial w in", "spatial q in", "block copy has two iteration variables q"),
    (
        "names_are_unique",
        "spatial w in",
        "spatial k in",
        "k is an iteration variable of block copy and a loop variable",
    ),
    ("symbols_are_defined_before_use", "ceildiv(100, t)", "ceildiv(100, n)", "derived symbol n uses n"),
    ("symbols_are_defined_before_use", "ceildiv(100, t)", "ceildiv(100, 0)", "derived symbol n divides by 0"),
    ("symbols_are_defined_before_use", "program matmul(t, u)", 'program matmul(t, "u v")', "the name of symbol 'u v'"),
    ("symbols_are_defined_before_use", "bp: float32[64, u]", "bp: float32[64, z]", "the shape of bp uses symbol z"),
    ("symbols_are_defined_before_use", "serial(64, t)", "serial(64, s)", "the extent of loop i2 uses symbol s"),
    (
        "symbols_are_defined_before_use",
        "i0 * {t} + i2 < 100",
        "i0 * {s} + i2 < 100",
        "expression of block multiply uses",
    ),
    (
        "symbols_are_defined_before_use",
        "r in range(64)",
        "r in range(x)",
        "the extent of r in block multiply uses symbol x",
    ),
    ("symbols_are_defined_before_use", "serial(64, t)", "serial(-1*64, t)", "the extent of loop k is -64"),
    ("variables_are_bound", "range(64) = k", "range(64) = i3", "the binding of r in block multiply uses i3"),
    (
        "variables_are_bound",
        "range(64) = k",
        "range(64) = i",
        "the binding of r in block multiply uses i, which no loop",
    ),
    ("variables_are_bound", "= i0 * {t} + i3", "= a[i0, i3]", "the binding of w in block copy reads a buffer"),
    ("variables_are_bound", "{t} + i2 < 100", "{t} + r < 100", "a condition of block multiply uses r, which no loop"),
    ("variables_are_bound", "a[i, r]", "a[i, k]", "block multiply uses k, which is not one of its iteration variables"),
    ("variables_are_bound", "c[w, q] =", "c[w, j] =", "block copy uses j, which is not one of its iteration variables"),
    ("buffers_are_in_scope", "output c: float32[100, u]", "output c: float32[100, u] in shared", "has scope shared"),
    ("buffers_are_in_scope", "in local:", "in global:", "allocated buffer acc is global and intermediate"),
    ("buffers_are_in_scope", "in local:", "in local as packed:", "allocated buffer acc is local and packed"),
    ("buffers_are_in_scope", "c[w, q] =", "d[w, q] =", "uses buffer d, which is not declared around it"),
    ("buffers_are_in_scope", "a[i, r]", "a[i]", "uses a with 1 indices; it has 2 dimensions"),
    ("buffers_are_in_scope", "a[i, r]", "a[i, r]:float16", "reads a as float16; it is float32"),
    ("buffers_are_in_scope", "= b[i, j]", "= acc[i, j]:float32", "block pack uses buffer acc, which is not declared"),
    ("dtypes_agree", "= acc[w_tile, q]", "= w_tile", "block copy stores int64 into c, which is float32"),
    ("dtypes_agree", "init 0.0:float32", "init 0", "the init of block multiply is int64, its buffer is float32"),
    ("dtypes_agree", "+ i2 < 100", "+ i2", "the condition i0 * {t} + i2 of block multiply is int64, not bool"),
    ("dtypes_agree", "acc[w_tile, q]", "acc[cast(w_tile):int32, q]", "the index cast(w_tile):int32 of acc is int32"),
    ("dtypes_agree", "c[w, q] =", "c[cast(w):int32, q] =", "the index cast(w):int32 of block copy is int32, not int64"),
    ("dtypes_agree", "a[i, r] * bp", "a[i, r] * r * bp", "operands of mul have different dtypes: float32, int64"),
    ("dtypes_agree", "= acc[w_tile, q]", "= exq(acc[w_tile, q])", "no such scalar function: 'exq'"),
    ("dtypes_agree", "= acc[w_tile, q]", "= exp(acc[w_tile, q], acc[w_tile, q])", "2 operands given, 1 expected"),
    ("dtypes_agree", "= acc[w_tile, q]", "= guard(w, acc[w_tile, q], 0:float32)", "guard of int64, float32, float32"),
    ("dtypes_agree", "= acc[w_tile, q]", "= acc[w_tile, q] // acc[w_tile, q]", "floordiv of float32, float32"),
    ("dtypes_agree", "= acc[w_tile, q]", "= cast(300:int8):float32", "block copy: 300 is no int8"),
    (
        "blocks_combine_over_reduced_iterations_only",
        "acc[i_tile, j] +=",
        "acc[i_tile, r] +=",
        "reduces over r and uses it",
    ),
    ("blocks_combine_over_reduced_iterations_only", "acc[i_tile, j] +=", "acc[i_tile, j] =", "but no combine"),
    (
        "blocks_combine_over_reduced_iterations_only",
        "acc[i_tile, j] +=",
        "acc[i_tile, 0] +=",
        "loop j2, behind j in block",
    ),
    ("parallel_loops_are_outermost", "serial(64, t)", "parallel(64, t)", "parallel loop k is not the outermost"),
    ("parallel_loops_are_outermost", "serial(64, t)", "blockIdx.x(64, t)", "blockIdx.x loop k is not the outermost"),
    ("vectorized_loops_are_innermost", "serial(64, t)", "vectorized(64, t)", "loop j2 is inside the vectorized loop k"),
    ("annotations_are_known", "serial(64, t)", "serial(64, t) with swizzle=1", "there is no annotation swizzle"),
    ("annotations_are_known", "serial(64, t)", 'serial(64, t) with prefetch="a"', "prefetch is 'a', not a positive"),
    ("annotations_are_known", "serial(64, t)", "serial(64, t) with prefetch=1", "is no serial loop of one axis"),
    ("annotations_are_known", "serial(64, t)", "serial(64, t) with prefetch=1, prefetch=2", "no serial loop of one"),
    ("annotations_are_known", "serial(64, t)", 'serial(64, t) with prefetch_next="j2"', "no serial loop around it"),
    ("units_are_whole", "vectorized(u)", 'serial(u) with blockize="k"', "the loop around it does not"),
    ("units_are_whole", "vectorized(u)", 'serial(u) with blockize="j2"', "loop j2, of the unit j2, is not a number"),
    ("roles_are_kept", "input a", "packed a", "nothing writes a, which is packed"),
    ("roles_are_kept", "output c", "constant c", "block copy writes c, which is constant"),
    ("roles_are_kept", "output c", "packed c", "block copy of the body writes c, which is packed"),
    ("roles_are_kept", "packed bp", "intermediate bp", "block pack of the prologue writes bp, which is intermediate"),
    ("roles_are_kept", "constant b:", "input b:", "block pack of the prologue reads b, which is input"),
    (
        "roles_are_kept",
        "input a: float32[100, 64]",
        "input a: float32[100, 64]\n    output d: float32[]",
        "nothing writes d",
    ),
]


@pytest.mark.parametrize(("name", "before", "after", "complaint"), REFUSED)
def test_a_program_is_refused(name: str, before: str, after: str, complaint: str) -> None:
    assert before in LEGAL
    program = from_text(LEGAL.replace(before, after))
    with pytest.raises(CheckError) as caught:
        check(program)
    assert complaint in caught.value.what
    assert caught.value.why == f"The invariant is that {name.replace('_', ' ')}"


def test_every_check_but_that_of_empty_loops_is_seen_to_refuse() -> None:
    assert {check.__name__ for check in CHECKS} - {name for name, *_ in REFUSED} == {"loops_have_axes"}


def test_a_loop_without_axes_is_refused() -> None:
    legal = from_text(GPU)
    with pytest.raises(CheckError, match="a loop has no axes"):
        check(replace(legal, body=Seq((Loop((), legal.body.body[0]),))))


@pytest.mark.parametrize(("before", "after", "complaint"), [
    ("threadIdx.x(32):\n                    block one", "blockIdx.y(32):\n                    block one",
     "blockIdx.y loop i is not the outermost of its region"),
    ("for b in blockIdx.x(2):", "for bb in blockIdx.x(1):\n          for b in blockIdx.x(2):",
     "blockIdx.x loop b is not the outermost of its region"),
    ("for b in blockIdx.x(2):", "for bb in threadIdx.x(1):\n          for b in serial(2):",
     "threadIdx.x loop i is inside"),
])  # fmt: skip
def test_a_grid_is_refused_that_is_no_grid(before: str, after: str, complaint: str) -> None:
    with pytest.raises(CheckError, match=complaint):
        check(from_text(GPU.replace(before, after)))


def test_a_grid_of_two_dimensions_is_accepted() -> None:
    check(
        from_text(GPU.replace("for b in blockIdx.x(2):", "for bb in blockIdx.y(1):\n          for b in blockIdx.x(2):"))
    )


def test_a_constant_with_a_fraction_is_no_integer() -> None:
    program = from_text("program p():\n    output y: int64[]\n    body:\n        block b:\n            y[] = 1\n")
    block = program.body.body[0]
    with pytest.raises(CheckError, match=r"1\.5 is no int64"):
        check(replace(program, body=Seq((replace(block, value=Const(1.5)),))))


def test_the_error_says_which_program() -> None:
    with pytest.raises(CheckError, match=r"program p: nothing writes y, which is output\. The invariant is"):
        check(Program("p", (Buffer("y", (), "float32", role="output"),), Seq(())))


def test_a_loop_of_one_iteration_may_be_behind_a_spatial_variable_that_is_not_stored() -> None:
    program = from_text("""\
program p():
    output y: float32[4]
    body:
        for o in serial(1):
            for i in serial(4):
                block b:
                    spatial n in range(2) = o
                    spatial v in range(4) = i
                    y[v] = 1.0:float32
""")
    check(program)
    wider = Loop((Axis("o", Poly.of(2)),), program.body.body[0].body)
    with pytest.raises(CheckError, match="loop o, behind n in block b, is not in the indices of its store"):
        check(replace(program, body=Seq((wider,))))
