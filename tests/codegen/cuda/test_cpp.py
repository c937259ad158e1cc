"""Tests of pieces of C++: parentheses, literals, names and long lines."""

from __future__ import annotations

import math

import pytest

from pipeline.codegen.cuda.cpp import Cpp, Lines, Names, broken, choice, converted, identifier, infix, literal
from pipeline.codegen.cuda.scalar import scalar
from pipeline.errors import CodegenError
from pipeline.ir.graph import DType

A, B, C = (Cpp(name, "int") for name in "abc")


def test_parentheses_are_where_the_meaning_needs_them() -> None:
    total = infix("+", A, B, "int")
    assert infix("*", total, C, "int").text == "(a + b) * c"
    assert infix("-", C, total, "int").text == "c - (a + b)"
    assert infix("-", total, C, "int").text == "a + b - c"
    assert infix("/", A, infix("*", B, C, "int"), "int").text == "a / (b * c)"
    test = infix("<", total, C, "bool")
    assert infix("&&", test, infix("||", test, test, "bool"), "bool").text == "a + b < c && (a + b < c || a + b < c)"
    assert infix("==", test, test, "bool").text == "(a + b < c) == (a + b < c)"
    assert infix("+", choice(test, A, B, "int"), C, "int").text == "(a + b < c ? a : b) + c"


@pytest.mark.parametrize(
    ("value", "dtype", "text"),
    [
        (0.1, "float32", "0.1f"),
        (1.0, "float64", "1.0"),
        (-2.5, "float32", "-2.5f"),
        (1e-45, "float32", "1e-45f"),
        (0.1, "float16", "0.099975586f"),
        (-0.0, "float32", "-0.0f"),
        (math.inf, "float32", "ms::infinity<float>()"),
        (-math.inf, "float64", "-ms::infinity<double>()"),
        (math.nan, "bfloat16", "ms::nan<float>()"),
        (1e30, "float16", "ms::infinity<float>()"),
        (-(1 << 63), "int64", "(-9223372036854775807LL - 1)"),
        (-(1 << 31), "int32", "(-2147483647 - 1)"),
        ((1 << 64) - 1, "uint64", "18446744073709551615ull"),
        (-3, "int8", "(signed char)-3"),
        (True, "bool", "true"),
    ],
)
def test_literals_are_what_their_dtype_holds(value: float, dtype: DType, text: str) -> None:
    assert literal(value, dtype).text == text


def test_a_conversion_binds_its_operand() -> None:
    assert converted(infix("+", A, B, "int"), "long long").text == "(long long)(a + b)"
    assert converted(A, "int") is A
    assert converted(Cpp("7", "int"), "long long").text == "7LL"
    assert converted(A, "float").text == "float(a)"


def test_names_are_those_of_the_program_as_far_as_there_are_such() -> None:
    names = Names()
    assert [names.new(wanted) for wanted in ("x", "x", "for", "a/b.c", "ö", "", "1st", "thread")] == [
        "x", "x_1", "for_1", "a_b_c", "v0", "v0_1", "v1st", "thread_1"]  # fmt: skip
    assert identifier("a__b") == "a_b"


def test_long_lines_break_where_they_are_least_nested() -> None:
    line = "store(into, first * 10 + second * 100, value_of(left, right) + another)"
    assert broken(line, 100) == [line]
    assert broken(line, 60) == ["store(into, first * 10 + second * 100,", "value_of(left, right) + another)"]
    assert "".join(broken(line, 40)).replace(" ", "") == line.replace(" ", "")
    assert broken("f<32, 2>(aaaaaaaaaaaaaaaaaaaaaaaaa, b)", 36) == ["f<32, 2>(aaaaaaaaaaaaaaaaaaaaaaaaa,", "b)"]
    assert broken("// " + "word " * 40, 60) == ["// " + "word " * 40]


def test_lines_stand_in_their_braces() -> None:
    lines = Lines(depth=0)
    with lines.block("if (x)"):
        lines.add("y();")
    assert lines.text == ["if (x) {", "    y();", "}"]


@pytest.mark.parametrize(("fn", "dtype"), [("odd", "float32"), ("exp", "int32"), ("exp", "bool"), ("and", "float32")])
def test_functions_that_a_dtype_does_not_have_are_refused(fn: str, dtype: DType) -> None:
    with pytest.raises(CodegenError, match=f"no code for {fn}"):
        scalar(fn, (A, B), dtype, dtype)
