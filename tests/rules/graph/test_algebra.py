"""The axioms of the superoptimizer, and a user's own: each holds, and each is used."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.errors import CheckError, ConfigError, UserError
from pipeline.superopt.goal.axiom_check import check_axiom, check_axioms
from pipeline.superopt.goal.goal import Goal
from pipeline.superopt.goal.normal_form import FOUNDATIONS, OPTIONAL
from pipeline.superopt.goal.rewriting import is_held
from pipeline.superopt.goal.term import Reduced, subterms
from rules.graph.algebra import AXIOMS, Algebra
from tests.superopt.goal_programs import GOALS, SCALE, W2, J, K, M, N, V, W, X, axes, fn, mul, product, scores

SIGMOID = "sigmoid: sigmoid(x) <-> 1 / (1 + exp(-x))"


@pytest.mark.parametrize("axiom", Algebra().axioms, ids=lambda axiom: axiom.name)
def test_every_axiom_holds_and_the_normal_form_has_it(axiom) -> None:  # type: ignore[no-untyped-def]
    check_axiom(axiom, np.random.default_rng(0))
    assert is_held(axiom)


def test_the_normal_form_says_of_every_axiom_whether_it_can_do_without() -> None:
    assert set(AXIOMS) == FOUNDATIONS | OPTIONAL


def test_an_axiom_of_a_user_makes_two_programs_equal_and_their_parts_contribute() -> None:
    x = product(K, X, W)
    one_over = fn("div", fn("exp", x), fn("exp", x))
    written = mul(mul(x, fn("reciprocal", fn("add", one_over, fn("exp", fn("neg", x))))), product(K, X, W2))
    plain, extended = (Goal.of_term(GOALS["gated_mlp"](), Algebra(extra).axioms) for extra in ((), (SIGMOID,)))
    assert plain.is_goal(written) is False
    assert extended.saturated and extended.is_goal(written) and extended.is_goal(GOALS["gated_mlp"]())
    assert all(extended.contributes(part) for part in subterms(written) if part != one_over)
    assert plain.contributes(fn("exp", x)) is False and extended.contributes(fn("exp", W)) is False
    back = Goal.of_term(written, Algebra((SIGMOID,)).axioms)
    assert back.is_goal(GOALS["gated_mlp"]()) and back.contributes(fn("sigmoid", x))


def test_an_axiom_of_a_user_may_be_on_maxima_and_on_several_values() -> None:
    most = Reduced("max", axes(K), X)
    goal = Goal.of_term(fn("exp", most), Algebra(("max(F, exp(x)) <-> exp(max(F, x))",)).axioms)
    assert goal.is_goal(Reduced("max", axes(K), fn("exp", X)))
    assert goal.contributes(Reduced("max", axes(K, parts="t"), fn("exp", X)))
    assert goal.contributes(Reduced("max", axes(M), X)) is False
    log = Goal.of_term(fn("log", mul(X, W)), Algebra(("log(x * y) <-> log(x) + log(y) if x > 0 and y > 0",)).axioms)
    assert log.is_goal(fn("add", fn("log", W), fn("log", X)))
    assert log.contributes(fn("log", W2)) is False
    mask = fn("where", fn("lt", X, W), X, W)
    where = Goal.of_term(mul(mask, W2), Algebra(("where(m, x, y) * z <-> where(m, x * z, y * z)",)).axioms)
    assert where.is_goal(fn("where", fn("lt", X, W), mul(X, W2), mul(W2, W)))


def test_a_condition_on_what_varies_keeps_an_axiom_from_being_used() -> None:
    text = "max(F, x * exp(y)) <-> max(F, x) * exp(y)  if F not in y"
    check_axioms(Algebra((text,)).axioms[-1:], np.random.default_rng(0))
    varying, fixed = Reduced("max", axes(K), X), Reduced("max", axes(K), W)
    goal = Goal.of_term(mul(varying, fn("exp", fixed)), Algebra((text,)).axioms)
    assert goal.is_goal(Reduced("max", axes(K), mul(X, fn("exp", fixed))))
    other = Goal.of_term(Reduced("max", axes(K), mul(X, fn("exp", W))), Algebra((text,)).axioms)
    assert other.contributes(varying) is False


def test_what_an_axiom_made_equal_is_not_when_it_is_left_out() -> None:
    shifts = ("exp-shift",)
    goal = Goal.of_term(GOALS["attention_unsafe"](), Algebra(without=shifts).axioms)
    most = Reduced("max", axes(J), scores())
    assert goal.contributes(most) is False and goal.contributes(fn("exp", fn("sub", scores(), most))) is False
    sums = Algebra(without=("exp-of-add", "exp-of-sub", "exp-shift")).axioms
    safe = Goal.of_term(GOALS["attention"](), sums)
    assert safe.contributes(fn("exp", scores())) is False
    assert safe.contributes(fn("exp", fn("sub", scores(), most))) is True
    scale = Algebra(without=("max-of-scale",)).axioms
    scaled = mul(Reduced("max", axes(J), scores()), SCALE)
    goals = [Goal.of_term(GOALS["attention_scale"](), axioms) for axioms in (None, scale)]
    assert [goal.contributes(scaled) for goal in goals] == [True, False]


def test_a_rewriting_without_an_end_leaves_everything_unknown() -> None:
    goal = Goal.of_term(GOALS["moe"](), Algebra(("exp(x) -> exp(exp(x))",)).axioms)
    assert not goal.saturated
    assert goal.contributes(V) is None and goal.is_goal(V) is None
    assert goal.is_goal(GOALS["moe"]()) is True


@pytest.mark.parametrize(
    ("algebra", "said"),
    [
        (Algebra(without=("nope",)), "nope"),
        (Algebra(extra=("exp-shift: sin(x) -> cos(x)",)), "has the name of another"),
        (Algebra(extra=("mine: sin(x) -> x + 0", "mine: cos(x) -> x + 1")), "has the name of another"),
        (Algebra(without=("mul-commutes",)), "mul-commutes"),
        (Algebra(without=("exp-of-sub",)), "Leave out both"),
        (Algebra(extra=("sin(x) * sin(x) + cos(x) * cos(x) -> 1",)), "cannot be used to rewrite"),
        (Algebra(extra=("exp(x -> x",)), "column 7"),
    ],
)
def test_an_algebra_that_cannot_be_used_is_refused(algebra: Algebra, said: str) -> None:
    with pytest.raises((ConfigError, UserError), match=said):
        Goal.of_term(X, algebra.axioms)


def test_a_wrong_axiom_of_a_user_is_refused_before_it_is_used() -> None:
    with pytest.raises(CheckError, match="mine"):
        check_axioms(Algebra(("mine: sum(F, x * y) -> sum(F, x) * y",)).axioms, np.random.default_rng(0))


def test_nothing_of_another_axis_becomes_a_part() -> None:
    assert Goal.of_term(GOALS["rmsnorm_linear"](), Algebra().axioms).contributes(Reduced("max", axes(N), W)) is False
