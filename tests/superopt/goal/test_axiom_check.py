"""The test that axioms face: right ones pass, wrong ones are refused with a counter-example."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.errors import CheckError
from pipeline.ir.axiom import Axiom
from pipeline.superopt.goal.axiom_check import check_axiom, check_axioms

RIGHT = (
    "sigmoid(x) <-> 1 / (1 + exp(-x))",
    "tanh(x) <-> 2 * sigmoid(2 * x) - 1",
    "max(F, exp(x)) <-> exp(max(F, x))",
    "log(x * y) <-> log(x) + log(y)  if x > 0 and y > 0",
    "where(m, x, y) * z <-> where(m, x * z, y * z)",
    "abs(x) * abs(y) <-> abs(x * y)",
    "sqrt(x) * sqrt(x) -> x  if x >= 0",
    "x * y / y -> x  if y != 0",
    "sum(F, x) * sum(G, y) <-> sum(F | G, x * y)  if F apart from G and F not in y and G not in x",
    "not(and(x, y)) <-> or(not(x), not(y))",
)
WRONG = {
    "no condition on a factor": "sum(F, x * y) <-> sum(F, x) * y",
    "a divisor that varies": "sum(F, x / y) <-> sum(F, x) / y",
    "a summand as often as there are elements": "sum(F, x + y) <-> sum(F, x) + y  if F not in y",
    "sets that may overlap": "sum(F, sum(G, x)) <-> sum(F | G, x)",
    "the wrong sign": "x - y <-> y - x",
    "the wrong sign of an exponent": "sigmoid(x) <-> 1 / (1 + exp(x))",
    "the root of a sum": "sqrt(x + y) <-> sqrt(x) + sqrt(y)  if x > 0 and y > 0",
    "a root of what may be negative": "sqrt(x * y) <-> sqrt(x) * sqrt(y)",
    "a root that forgets the sign": "sqrt(x * x) -> x",
    "the exponential of a product": "exp(x * y) <-> exp(x) * exp(y)",
    "the exponential of a difference": "exp(x - y) <-> exp(x) - exp(y)",
    "the exponential of a sum of many": "exp(sum(F, x)) <-> sum(F, exp(x))",
    "a maximum over a factor of unknown sign": "max(F, x * y) <-> max(F, x) * y  if F not in y",
    "a number of unknown sign": "max(F, c * x) <-> c * max(F, x)  if c is number",
    "a maximum of sums": "max(F, x + y) <-> max(F, x) + max(F, y)",
    "a sum in the divisor": "x / (y + z) <-> x / y + x / z",
    "divisions in the wrong order": "(x / y) / z <-> x / (y / z)",
    "a factor of a product of many": "prod(F, x * y) <-> prod(F, x) * y  if F not in y",
    "equal at zero alone": "exp(x) -> 1 + x",
    "undefined on one side": "x -x -> log(-exp(x)) * 0",
}


@pytest.mark.parametrize("text", RIGHT)
def test_a_right_axiom_passes(text: str) -> None:
    for seed in range(3):
        check_axiom(Axiom.parse(text), np.random.default_rng(seed))


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_axiom_is_refused_with_a_counter_example(name: str) -> None:
    axiom = Axiom.parse(WRONG[name])
    for seed in range(3):
        with pytest.raises(CheckError, match=r"left is .* and right is .* where \w+ = ") as caught:
            check_axiom(axiom, np.random.default_rng(seed))
        assert " ".join(axiom.text.split()) in caught.value.where


def test_an_axiom_that_is_defined_nowhere_is_refused() -> None:
    with pytest.raises(CheckError, match="defined nowhere"):
        check_axiom(Axiom.parse("log(-exp(x)) -> log(-exp(x)) + 1"), np.random.default_rng(0))


def test_the_field_refuses_what_floating_point_cannot_tell_apart() -> None:
    """The two differ by 1e-10, which is taken for rounding in float64."""
    with pytest.raises(CheckError, match="modulo"):
        check_axiom(Axiom.parse("x + 1e-10 -> x * 1"), np.random.default_rng(0))


def test_one_wrong_axiom_among_right_ones_is_found() -> None:
    axioms = [Axiom.parse(text) for text in (RIGHT[0], WRONG["the wrong sign"], RIGHT[1])]
    with pytest.raises(CheckError, match="x - y"):
        check_axioms(axioms, np.random.default_rng(0))
