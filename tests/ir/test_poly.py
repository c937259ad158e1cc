"""Tests of polynomials: the normal form, arithmetic, exact division, evaluation over many candidates, text."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.ir.poly import Poly, product
from pipeline.ir.program_parse import ParseError, parse_poly
from tests.ir.random_programs import polys

S, T, U = (Poly.symbol(name) for name in "stu")
VALUES = st.fixed_dictionaries({name: st.integers(-5, 5) for name in ("t", "u", "n0", "for", "a_very_long_symbol")})


@given(polys, polys, VALUES)
def test_arithmetic_is_that_of_the_values(a: Poly, b: Poly, values: dict[str, int]) -> None:
    x, y = a.evaluate(values), b.evaluate(values)
    assert (a + b).evaluate(values) == x + y
    assert (a - b).evaluate(values) == x - y
    assert (a * b).evaluate(values) == x * y
    assert (3 - a).evaluate(values) == 3 - x


@given(polys, polys, polys)
def test_equal_polynomials_are_equal_objects(a: Poly, b: Poly, c: Poly) -> None:
    assert (a + b) * c == c * b + a * c
    assert hash(a + b) == hash(b + a)
    assert a - a == Poly.of(0) == Poly(())


@given(polys, st.sampled_from([Poly.of(3), T, T * U, T * -2, Poly.symbol("n0") * T * T]))
def test_a_product_divides_by_its_factor(a: Poly, factor: Poly) -> None:
    assert (a * factor).quotient(factor) == a


def test_a_quotient_is_in_normal_form() -> None:
    assert (S * T + T).quotient(T) == S + 1


def test_a_quotient_that_leaves_a_rest_is_refused() -> None:
    assert (T * 4 + U * 2).quotient(Poly.of(4)) is None
    assert (T + 1).quotient(T) is None
    assert T.quotient(Poly.of(0)) is None
    assert Poly.of(0).quotient(Poly.of(0)) is None


def test_a_polynomial_of_several_terms_divides_only_itself() -> None:
    assert (T + U).quotient(T + U) == Poly.of(1)
    assert (T * T + T * U).quotient(T + U) is None


def test_evaluation_takes_one_column_for_each_symbol() -> None:
    columns = {"t": np.array([1, 2, 3]), "u": np.array([4, 5, 6])}
    assert (T * U + 2).evaluate(columns).tolist() == [6, 12, 20]


@given(polys, VALUES)
def test_substituting_numbers_evaluates(a: Poly, values: dict[str, int]) -> None:
    assert a.substitute(dict(values)).value == a.evaluate(values)
    assert a.substitute({}) == a


def test_substituting_polynomials_expands() -> None:
    assert (T * T).substitute({"t": U + 1}) == U * U + U * 2 + 1


def test_a_constant_knows_its_value() -> None:
    assert Poly.of(0).is_constant and Poly.of(0).value == 0
    assert product([Poly.of(3), Poly.of(-2)]).value == -6
    assert product([]).value == 1
    assert not T.is_constant


@given(polys)
def test_the_text_of_a_polynomial_parses_back(a: Poly) -> None:
    assert parse_poly(str(a)) == a


def test_parentheses_and_minus_signs_are_read() -> None:
    assert parse_poly("-2*(t - u)*t") == T * U * 2 - T * T * 2


@pytest.mark.parametrize(
    ("text", "column", "expected"),
    [("2*", 3, "a number, a symbol or '('"), ("2 t", 3, "the end of the text"), ("t + 1.5", 5, "a whole number"),
     ("(t", 3, "')'"), ("t ? u", 3, "a name, a number or a sign")],
)  # fmt: skip
def test_text_that_is_no_polynomial_is_refused_where_it_ends_to_be_one(text: str, column: int, expected: str) -> None:
    with pytest.raises(ParseError, match=f"line 1, column {column}") as caught:
        parse_poly(text)
    assert caught.value.expected == expected
