"""Tests of degrees: those of polynomials, fractions and roots, and never below what a program has."""

from __future__ import annotations

import pytest

from pipeline.verification.degree_algebra import Degree, DegreeAlgebra

X = Degree((4, 6), 1)


def test_a_product_of_matrices_has_the_sum_of_the_degrees() -> None:
    out = DegreeAlgebra().contract("mk,kn->mn", X, Degree((6, 3), 2))
    assert (out.shape, out.above, out.below) == ((4, 3), 3, 0)


def test_a_sum_of_fractions_is_brought_to_the_product_of_their_denominators() -> None:
    algebra = DegreeAlgebra()
    fraction = algebra.elementwise("div", X, X)
    assert (fraction.above, fraction.below) == (1, 1)
    total = algebra.fold("sum", fraction, [1])
    assert (total.shape, total.above, total.below) == ((4, 1), 6, 6)
    assert total.difference(Degree((4, 1), 2, 0)) == 8


@pytest.mark.parametrize(
    ("fn", "above", "below"),
    [
        ("sqrt", 2, 1),
        ("rsqrt", 1, 2),
        ("exp", 1, 0),
        ("erf", 1, 0),
        ("sigmoid", 1, 1),
        ("reciprocal", 2, 3),
        ("neg", 3, 2),
    ],
)
def test_functions_of_one_operand(fn: str, above: int, below: int) -> None:
    out = DegreeAlgebra().elementwise(fn, Degree((2,), 3, 2))
    assert (out.above, out.below) == (above, below)


def test_a_constant_power_multiplies_and_a_negative_one_turns_over() -> None:
    algebra = DegreeAlgebra()
    out = algebra.elementwise("pow", X, algebra.scalar(-3.0))
    assert (out.above, out.below) == (0, 3)


def test_fractions_of_one_denominator_keep_it_when_they_are_added() -> None:
    algebra = DegreeAlgebra()
    rows = algebra.fold("sum", X, [1])
    shares = algebra.elementwise("div", X, rows)
    assert (shares.above, shares.below) == (1, 1)
    assert (algebra.fold("sum", shares, [1]).above, algebra.fold("sum", shares, [1]).below) == (1, 1)
    assert algebra.fold("sum", shares, [0]).below == 4
    product = algebra.contract("mk,kn->mn", shares, Degree((6, 3), 1))
    assert (product.above, product.below) == (2, 1)
    turned = algebra.transpose(algebra.reshape(shares, (4, 1, 6)), (2, 0, 1))
    assert algebra.fold("sum", turned, [0]).below == 1 and algebra.fold("sum", turned, [1]).below == 4
    mixed = algebra.reshape(shares, (3, 8))
    assert algebra.fold("sum", mixed, [1]).below == 8


def test_a_sum_of_shares_with_different_denominators_multiplies_them() -> None:
    algebra = DegreeAlgebra()
    columns = algebra.elementwise("div", X, algebra.fold("sum", X, [0]))
    assert algebra.fold("sum", columns, [1]).below == 6
    both = algebra.elementwise("mul", columns, algebra.elementwise("div", X, algebra.fold("sum", X, [1])))
    assert algebra.fold("sum", both, [1]).below == 12
