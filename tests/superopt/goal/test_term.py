"""Terms: what they vary with, how they read, and what they evaluate to."""

from __future__ import annotations

import numpy as np

from pipeline.ir.algebra import FloatAlgebra
from pipeline.superopt.goal.term import App, Leaf, Num, Reduced, free_factors, show, subterms, total
from pipeline.superopt.goal.term_value import evaluate_term

ROW, LOOP, TILE = (0, "g"), (1, "l"), (1, "t")
X, Y = Leaf(0, frozenset({ROW, LOOP, TILE})), Leaf(1, frozenset({TILE}))
EXTENTS = {ROW: 2, LOOP: 3, TILE: 5}


def test_a_reduction_binds_its_factors() -> None:
    inner = total(frozenset({TILE}), App("mul", (X, Y)))
    assert free_factors(inner) == {ROW, LOOP}
    assert free_factors(App("div", (X, inner))) == {ROW, LOOP, TILE}
    assert free_factors(Num(2.0)) == frozenset()


def test_a_sum_over_nothing_is_the_term_itself() -> None:
    assert total(frozenset(), X) is X


def test_a_term_reads_as_it_is_nested() -> None:
    term = Reduced("max", frozenset({TILE}), App("mul", (Y, Num(0.5))))
    assert show(term) == "max({1t}, mul(x1[1t], 0.5))"
    assert [show(part) for part in subterms(term)][1:] == ["mul(x1[1t], 0.5)", "x1[1t]", "0.5"]


def test_a_term_is_evaluated_over_its_factors() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 3, 5)), rng.normal(size=(1, 1, 5))
    term = App("exp", (total(frozenset({LOOP, TILE}), App("mul", (X, Y))),))
    found = evaluate_term(term, {0: x, 1: y}, EXTENTS, FloatAlgebra())
    np.testing.assert_allclose(found, np.exp((x * y).sum((1, 2), keepdims=True)))


def test_a_sum_over_what_does_not_vary_is_a_multiple_of_it() -> None:
    y = np.arange(5.0).reshape(1, 1, 5)
    found = evaluate_term(total(frozenset({LOOP, TILE}), Y), {1: y}, EXTENTS, FloatAlgebra())
    np.testing.assert_allclose(found, 30.0)
