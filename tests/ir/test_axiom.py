"""Axioms as text: what they parse to, and what is said about text that is none."""

from __future__ import annotations

import pytest

from pipeline.ir.axiom import (
    Apart,
    Axiom,
    AxiomError,
    Call,
    Compared,
    Constant,
    IsNumber,
    Lacks,
    Over,
    Variable,
    factor_sets,
    variables,
)

X, Y = Variable("x"), Variable("y")


def test_an_axiom_is_two_patterns_a_direction_and_conditions() -> None:
    axiom = Axiom.parse("sum(F | G, x * y) <-> sum(F, x) * y  if F not in y and F apart from G", "mine")
    assert axiom.name == "mine" and axiom.both
    assert axiom.left == Over("sum", ("F", "G"), Call("mul", (X, Y)))
    assert axiom.right == Call("mul", (Over("sum", ("F",), X), Y))
    assert axiom.conditions == (Lacks("F", "y"), Apart("F", "G"))
    assert variables(axiom.left) == ("x", "y") and factor_sets(axiom.left) == ("F", "G")


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("x + y * 2 -> y", Call("add", (X, Call("mul", (Y, Constant(2.0)))))),
        ("(x + y) * -2 -> y", Call("mul", (Call("add", (X, Y)), Constant(-2.0)))),
        ("x - y - y -> y", Call("sub", (Call("sub", (X, Y)), Y))),
        ("-x / y -> y", Call("div", (Call("neg", (X,)), Y))),
        ("max(x, y) -> y", Call("max", (X, Y))),
        ("max(F, x) -> x", Over("max", ("F",), X)),
        ("where(x, y, 1e-3) -> y", Call("where", (X, Y, Constant(0.001)))),
    ],
)
def test_signs_bind_as_usual_and_a_reduction_names_its_set(text: str, left: object) -> None:
    assert Axiom.parse(text).left == left


def test_conditions_are_on_signs_numbers_and_dependence() -> None:
    axiom = Axiom.parse("max(F, c * x) -> c * max(F, x) if c is number and c > 0 and x != 0 and F not in c")
    assert axiom.conditions == (IsNumber("c"), Compared("c", ">"), Compared("x", "!="), Lacks("F", "c"))
    assert axiom.name == axiom.text and not axiom.both


REFUSED = {
    "x + y": "expected '->' or '<->', found the end",
    "x + y -> ": "expected a value, found the end",
    "exp(x -> x": "expected ')'",
    "x + $ -> y": "'$' is no name",
    "foo(x) -> x": "unknown function",
    "exp(x, y) -> x": "exp takes 1, not 2",
    "sum(x, y) -> x": "sum(F, x)",
    "sum(F | x, y) -> y": "'x' does not begin with a capital",
    "exp(F) -> x": "begins with a capital",
    "exp(x) -> y": "y is on one side only",
    "exp(x) <-> exp(x) + y - y": "y is on one side only",
    "x * 1 <-> x": "a variable or a number alone",
    "exp(x) -> exp(x)": "says nothing",
    "exp(x) -> x if y > 0": "y is not in the axiom",
    "sum(F, x) -> x if G not in x": "G is not in the axiom",
    "exp(x) -> x if x > 1": "'1' is not 0",
    "exp(x) -> x if x > 0 or x != 0": "expected 'if' or the end",
    "exp(x) -> x if": "expected a condition",
}


@pytest.mark.parametrize("text", REFUSED)
def test_text_that_is_no_axiom_is_refused_with_the_place_and_the_reason(text: str) -> None:
    with pytest.raises(AxiomError) as caught:
        Axiom.parse(text)
    said = str(caught.value)
    assert REFUSED[text] in said and repr(text) in said and "column" in said and caught.value.todo
