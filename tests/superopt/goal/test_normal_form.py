"""The normal form: what it identifies, what it keeps apart, and where it gives up."""

from __future__ import annotations

import pytest

from pipeline.superopt.goal.interned import TooLarge
from pipeline.superopt.goal.normal_form import Forms
from pipeline.superopt.goal.rewriting import form
from pipeline.superopt.goal.term import App, Leaf, Num, Reduced, Term, total
from tests.superopt.goal_programs import fn, mul

I0, K0, K1, J0 = (0, "t"), (1, "l"), (1, "t"), (2, "t")
X = Leaf(0, frozenset({I0, K0, K1}))
Y = Leaf(1, frozenset({K0, K1, J0}))
Z = Leaf(2, frozenset({J0, K0, K1}))
A = Leaf(3, frozenset({I0}))
K = frozenset({K0, K1})
J = frozenset({J0})


def most(over: frozenset[tuple[int, str]], x: Term) -> Term:
    return Reduced("max", over, x)


SAME = {
    "sums are nested in any order": (total(frozenset({K0}), total(frozenset({K1}), X)), total(K, X)),
    "a factor that does not vary comes out": (total(K, mul(X, A, Y)), mul(A, total(K, mul(Y, X)))),
    "so does a divisor": (total(K, fn("div", X, A)), fn("div", total(K, X), A)),
    "the bound name does not matter": (
        mul(X, total(J, mul(Z, total(K, X)))),
        total(J, mul(total(K, X), X, Z)),
    ),
    "nor the order of two sums over one axis": (
        mul(total(K, X), total(K, mul(X, X))),
        mul(total(K, mul(X, X)), total(K, X)),
    ),
    "a sum of sums in a sum": (total(K, fn("add", X, mul(A, Y))), fn("add", total(K, X), mul(A, total(K, Y)))),
    "a square of a sum": (
        mul(fn("add", A, X), fn("add", X, A)),
        fn("add", fn("add", mul(A, A), mul(X, A)), fn("add", mul(X, X), mul(A, X))),
    ),
    "a mean by a quotient or a product": (mul(total(K, X), Num(1 / 48)), fn("div", total(K, X), Num(48.0))),
    "a root of a mean": (fn("rsqrt", fn("div", A, Num(7.0))), fn("div", fn("sqrt", Num(7.0)), fn("sqrt", A))),
    "a divisor with a common factor": (
        fn("reciprocal", fn("add", mul(A, X), mul(A, Y))),
        fn("div", fn("reciprocal", A), fn("add", X, Y)),
    ),
    "an exponential of a difference": (fn("exp", fn("sub", X, A)), fn("div", fn("exp", X), fn("exp", A))),
    "an exponential shifted": (mul(fn("exp", fn("sub", X, A)), fn("exp", A)), fn("exp", X)),
    "maxima are nested": (most(frozenset({K0}), most(frozenset({K1}), X)), most(K, X)),
    "what does not vary leaves a maximum": (most(K, fn("add", X, A)), fn("add", A, most(K, X))),
    "a positive number does too": (most(K, mul(X, Num(0.125))), mul(Num(0.125), most(K, X))),
    "also from within nested ones": (
        most(frozenset({K0}), mul(Num(2.0), most(frozenset({K1}), X))),
        mul(Num(2.0), most(K, X)),
    ),
    "squares by pow": (fn("pow", X, Num(2.0)), mul(X, X)),
    "a maximum of two": (fn("max", X, A), fn("max", A, X)),
    "two signs": (fn("neg", fn("neg", X)), X),
}


@pytest.mark.parametrize("name", SAME)
def test_terms_that_the_axioms_make_equal_have_one_form(name: str) -> None:
    forms = Forms()
    left, right = SAME[name]
    assert form(forms, left) == form(forms, right)


APART = {
    "a quotient does not cancel": (fn("div", mul(X, A), A), X),
    "nor does a difference": (fn("sub", fn("add", X, A), A), X),
    "a root of a square": (fn("sqrt", mul(X, X)), X),
    "a sum of what varies": (total(K, mul(X, Y)), mul(total(K, X), total(K, Y))),
    "a sum over one part": (total(frozenset({K0}), X), total(frozenset({K1}), X)),
    "a multiple by the number of elements": (total(K, A), A),
    "a sum over twice as many": (total(K, total(K, X)), total(K, X)),
    "a negative number stays in a maximum": (most(K, mul(X, Num(-2.0))), mul(Num(-2.0), most(K, X))),
    "a factor stays in a maximum": (most(K, mul(X, A)), mul(A, most(K, X))),
    "different inputs": (X, Leaf(4, X.factors)),
    "a maximum of a sum": (most(K, fn("add", X, Y)), fn("add", most(K, X), most(K, Y))),
    "what is summed over does not leave a divisor": (
        fn("reciprocal", fn("add", total(K, mul(X, Y)), total(K, mul(X, Z)))),
        fn("div", fn("reciprocal", X), fn("add", total(K, Y), total(K, Z))),
    ),
    "an exponential of a sum of many": (fn("exp", total(K, X)), total(K, fn("exp", X))),
}


@pytest.mark.parametrize("name", APART)
def test_terms_that_no_axiom_makes_equal_are_kept_apart(name: str) -> None:
    forms = Forms()
    left, right = APART[name]
    assert form(forms, left) != form(forms, right)


def test_a_renaming_captures_no_bound_variable() -> None:
    """The maximum binds the very factor that the sum around it gives another name."""
    forms = Forms()
    greatest = most(frozenset({K1}), X)
    one = total(K, mul(X, total(frozenset({K0}), greatest)))
    other = total(K, mul(total(frozenset({K0}), greatest), X))
    assert form(forms, one) == form(forms, other)
    assert form(forms, one) != form(forms, total(K, mul(X, greatest)))


@pytest.mark.parametrize("power", range(1, 5))
def test_many_sums_over_one_axis_have_one_form_in_any_order(power: int) -> None:
    forms = Forms()
    pieces = [total(K, mul(X, Leaf(10 + number, K))) for number in range(power)]
    forwards, backwards = mul(*pieces), mul(*reversed(pieces))
    assert form(forms, forwards) == form(forms, backwards)


def test_a_form_that_grows_beyond_the_limit_is_given_up() -> None:
    forms = Forms()
    many: Term = Num(2.0)
    for number in range(10):
        many = mul(many, fn("add", Leaf(number), Num(2.0)))
    with pytest.raises(TooLarge):
        form(forms, many)
    with pytest.raises(TooLarge):
        form(forms, Reduced("prod", K, A))


def test_an_unknown_function_is_one_of_its_arguments() -> None:
    forms = Forms()
    assert form(forms, App("tanh", (mul(X, A),))) == form(forms, App("tanh", (mul(A, X),)))
    assert form(forms, App("tanh", (X,))) != form(forms, App("erf", (X,)))
    assert form(forms, fn("sub", X, A)) != form(forms, fn("sub", A, X))
