"""Tests of program text: what it looks like, that it parses back, and that a parse error says where and what."""

from __future__ import annotations

import textwrap

import pytest
from hypothesis import given, settings

from pipeline.ir.expr import Const, Op, Var
from pipeline.ir.poly import Poly
from pipeline.ir.program import Alloc, Axis, Block, Buffer, Iter, Loop, Program, Seq, instantiate
from pipeline.ir.program_parse import ParseError, from_text
from pipeline.ir.program_text import to_text
from tests.ir.random_programs import any_programs, runnable_programs

MATMUL = """\
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
                for i1, j1 in unrolled(t, u):
                    block zero:
                        spatial i in range(t) = i1
                        spatial j in range(u) = j1
                        acc[i, j] = 0.0:float32
                for k, i2 in serial(64, t):
                    for j2 in vectorized(u):
                        block multiply:
                            spatial i in range(100) = i0 * {t} + i2
                            spatial i_tile in range(t) = i2
                            spatial j in range(u) = j2
                            reduce r in range(64) = k
                            where i0 * {t} + i2 < 100
                            acc[i_tile, j] += a[i, r] * bp[r, j]
                for i3, j3 in serial(t, u):
                    block copy:
                        spatial i in range(100) = i0 * {t} + i3
                        spatial i_tile in range(t) = i3
                        spatial j in range(u) = j3
                        c[i, j] = acc[i_tile, j]
"""


def test_a_program_prints_as_it_was_written() -> None:
    assert to_text(from_text(MATMUL)) == MATMUL


@settings(max_examples=100)
@given(any_programs())
def test_every_program_parses_back(program: Program) -> None:
    text = to_text(program)
    assert from_text(text) == program
    assert to_text(from_text(text)) == text


@settings(max_examples=30)
@given(runnable_programs())
def test_every_runnable_program_parses_back(program: Program) -> None:
    assert from_text(to_text(program)) == program


def test_a_concrete_program_prints_numbers() -> None:
    text = to_text(instantiate(from_text(MATMUL), {"t": 6, "u": 16}))
    assert text.startswith("program matmul():\n    input a: float32[100, 64]\n")
    assert "for i0 in parallel(17):" in text
    assert "spatial i in range(100) = i0 * 6 + i2" in text


def test_comments_and_empty_lines_are_left_out() -> None:
    assert from_text(
        "# a product\n\n" + MATMUL.replace("prologue:\n", "prologue:  # once\n   # here\n\n")
    ) == from_text(MATMUL)


def test_a_sequence_of_one_differs_from_its_statement() -> None:
    block = Block("b", (Iter("v", Poly.of(4), "spatial", Var("i")),), "y", (Var("v"),), Const(1.0, "float32"))
    y = Buffer("y", (Poly.of(4),), "float32", role="output")
    bodies = (block, Seq((block,)), Seq(()), Seq((block, Seq((block, block)))))
    programs = [Program("p", (y,), Seq((Loop((Axis("i", Poly.of(4)),), body),))) for body in bodies]
    for program in programs:
        assert from_text(to_text(program)) == program
    assert len({to_text(program) for program in programs}) == len(programs)


def test_a_load_outside_the_scope_of_its_buffer_still_parses_back() -> None:
    tile = Buffer("t", (Poly.of(4),), "float16", "local")
    late = Block("b", (), "t", (), Op("neg", (Const(1.0, "float16"),), "float16"))
    program = Program("p", (), Seq((Alloc(tile, late), late)))
    assert from_text(to_text(program)) == program


@pytest.mark.parametrize(
    ("before", "after", "line", "column", "expected"),
    [
        ("derived n", "derive n", 2, 5, "'body', 'prologue' or a buffer"),
        ("ceildiv(100, t)", "ceildiv(100 t)", 2, 29, "','"),
        ("constant b: float32", "constant b: float23", 4, 17, "a dtype (float64, float32"),
        ("in parallel(n)", "in paralel(n)", 14, 19, "a kind of loop (serial, parallel"),
        ("for k, i2 in serial(64, t)", "for k, i2 in serial(64)", 21, 37, "2 extents"),
        ("in local:", "in register:", 15, 41, "a scope (global, shared, local, fragment)"),
        ("reduce r in", "reduced r in", 27, 37, "'['"),
        ("] += a[i", "] -= a[i", 29, 44, "'=', '+=', '*=', 'max=' or 'min='"),
        ("a[i, r] * bp", "a[i, r] bp", 29, 55, "the end of the line"),
        ("a[i, r] * bp[r, j]", "aa[i, r] * bp[r, j]", 29, 56, "':' and the dtype of aa"),
        ("                for i3", "              for i3", 30, 15, "an indentation of 12 spaces"),
        ("    body:\n", "    body:\n    ", 15, 13, "an indented line"),
    ],
)
def test_a_parse_error_names_line_column_and_what_was_expected(
    before: str, after: str, line: int, column: int, expected: str
) -> None:
    assert MATMUL.count(before) == 1, before
    with pytest.raises(ParseError) as caught:
        from_text(MATMUL.replace(before, after))
    assert (caught.value.line, caught.value.column) == (line, column), str(caught.value)
    assert caught.value.expected.startswith(expected)


def test_a_parse_error_reads_as_a_sentence() -> None:
    with pytest.raises(ParseError) as caught:
        from_text("program p(t u):\n")
    assert str(caught.value) == "line 1, column 13: expected ',' or ')'. Found 'u'."


def test_text_after_the_program_is_refused() -> None:
    with pytest.raises(ParseError, match="line 36, column 1: expected the end of the text"):
        from_text(MATMUL + "program again():\n    body:\n        pass\n")


@pytest.mark.parametrize(
    "text", ["", "program", "program p():", "program p():\n    body:", textwrap.indent(MATMUL, " ")]
)
def test_half_a_program_is_refused(text: str) -> None:
    with pytest.raises(ParseError):
        from_text(text)
