"""What contributes to a goal and what equals it: the fused programs of the suite, and what must be ruled out."""

from __future__ import annotations

import pytest

from pipeline.superopt.goal.goal import Goal
from pipeline.superopt.goal.term import App, Leaf, Num, Reduced, Term, show, subterms, total
from tests.superopt.goal_programs import (
    DOWN,
    FUSED,
    GOALS,
    KEY,
    MASK,
    ROWS,
    SCALE,
    UP,
    W2,
    D,
    J,
    K,
    M,
    N,
    Q,
    R,
    V,
    W,
    X,
    axes,
    fn,
    mul,
    product,
    rms,
    scores,
)  # fmt: skip
from tests.superopt.specs import SUITE


@pytest.mark.parametrize("name", GOALS)
def test_a_goal_is_saturated_and_all_its_own_parts_contribute(name: str) -> None:
    root = GOALS[name]()
    goal = Goal.of_term(root)
    assert goal.saturated and goal.is_goal(root)
    assert [show(part) for part in subterms(root) if not goal.contributes(part)] == []


@pytest.mark.parametrize("name", FUSED)
def test_what_an_expert_would_write_equals_the_goal_and_every_part_of_it_contributes(name: str) -> None:
    wanted, program = FUSED[name]
    goal, term = Goal.of_term(GOALS[wanted]()), program()
    assert [show(part) for part in subterms(term) if not goal.contributes(part)] == []
    assert goal.is_goal(term)


JL = axes(J, parts="lt")
E = fn("exp", fn("sub", scores(), Reduced("max", JL, scores())))

RULED_OUT: dict[str, tuple[str, Term]] = {
    "an input twice": ("rmsnorm_linear", mul(W, W)),
    "a sum over an axis that stays": ("rmsnorm_linear", total(axes(N), W)),
    "one operand summed by itself": ("rmsnorm_linear", total(axes(K, parts="t"), X)),
    "a product summed twice": ("rmsnorm_linear", total(axes(K), product(K, X, W))),
    "the square root of the wrong sum": ("rmsnorm_linear", fn("rsqrt", product(K, X, W))),
    "a divisor that varies with the sum": ("rmsnorm_linear", product(K, fn("div", X, mul(X, X)), W)),
    "an exponential in a goal without one": ("rmsnorm_linear", fn("exp", X)),
    "the wrong sign": ("ntrans", fn("sub", X, mul(Leaf(12, axes(M, K)), X, X))),
    "operands of different products": ("gated_mlp", mul(W, W2)),
    "a function of half a sum": ("gated_mlp", fn("sigmoid", total(axes(K, parts="t"), mul(X, W)))),
    "both factors of a low rank by elements, summed too early": ("lora", total(axes(R), DOWN)),
    "the down projection of the weights": ("lora", mul(W, UP)),
    "the exponential of half a sum": ("attention", fn("exp", total(axes(D, parts="t"), mul(Q, KEY)))),
    "a stale maximum": ("attention", total(axes(J, parts="g"), total(JL, mul(E, V)))),
    "a maximum of the keys": ("attention", Reduced("max", axes(J), KEY)),
    "a maximum over the wrong axis": ("attention", Reduced("max", axes(D), mul(Q, KEY))),
    "values that are not weighted": ("attention", total(axes(J), V)),
    "an exponential of the values": ("attention", fn("exp", V)),
    "the scale twice": ("attention_scale", mul(scores(scale=True), SCALE)),
    "the scale outside of the exponential": ("attention_scale", mul(fn("exp", scores()), SCALE)),
    "the mask in the queries": ("attention_scale_mask", mul(Q, MASK)),
    "a shift that is no maximum": ("attention", fn("exp", fn("sub", scores(), Num(3.0)))),
    "sums of queries before the product, as in wrong QK-norm graphs": ("qknorm", total(axes(D), mul(Q, rms(Q, D)))),
}


@pytest.mark.parametrize("name", RULED_OUT)
def test_what_cannot_contribute_is_ruled_out(name: str) -> None:
    wanted, term = RULED_OUT[name]
    goal = Goal.of_term(GOALS[wanted]())
    assert goal.contributes(term) is False
    assert goal.find(term) is None and goal.is_goal(term) is False


def test_steps_are_the_same_as_terms() -> None:
    goal = Goal.of_term(GOALS["rmsnorm_linear"]())
    x, w = goal.leaf(0, axes(M, K)), goal.leaf(1, axes(K, N))
    assert x is not None and w is not None
    xw = goal.product(x, w)
    assert xw is not None and xw == goal.find(mul(W, X)) == goal.apply("mul", (w, x))
    assert goal.sum(axes(K), xw) == goal.find(product(K, X, W))
    assert goal.apply("add", (x, w)) is None and goal.sum(axes(M), x) is None


def test_a_value_beyond_the_limit_is_unknown_and_is_not_ruled_out() -> None:
    many = X
    for number in range(20, 30):
        many = mul(many, fn("add", Leaf(number), Num(2.0)))
    goal = Goal.of_term(GOALS["rmsnorm_linear"]())
    assert goal.contributes(many) is None and goal.is_goal(many) is None
    assert goal.find(App("exp", (many,))) is not None
    too_large = Goal.of_term(many)
    assert not too_large.saturated
    assert too_large.contributes(X) is None and too_large.contributes(mul(X, X)) is None
    assert too_large.is_goal(many) is None


@pytest.mark.parametrize("parts", [("t",), ("l", "t"), ("g", "l", "t")])
@pytest.mark.parametrize("name", SUITE)
def test_every_specification_of_the_suite_is_saturated_and_is_its_own_goal(name: str, parts: tuple[str, ...]) -> None:
    spec = SUITE[name]()
    goal = Goal.of(spec, dict.fromkeys(range(len(spec.extents)), parts))
    assert goal.saturated and goal.is_goal(goal.root)
    leaves = [Leaf(n, axes(*tensor.labels, parts="".join(parts))) for n, tensor in enumerate(spec.inputs)]
    assert all(goal.contributes(leaf) for leaf in leaves)
    assert all(goal.contributes(part) for part in goal.parts)
    assert goal.contributes(fn("tanh", leaves[0])) is False


def test_a_product_of_divisors_is_unknown_because_sums_are_not_factored() -> None:
    goal = Goal.of_term(GOALS["two_gates"]())
    gates = [fn("add", Num(1.0), fn("exp", fn("neg", product(K, X, w)))) for w in (W, W2)]
    assert goal.contributes(mul(*gates)) and goal.contributes(fn("reciprocal", gates[0]))
    assert goal.contributes(fn("reciprocal", mul(*gates))) is None
    assert goal.contributes(fn("reciprocal", fn("add", gates[0], Num(3.0)))) is False


def test_a_shift_is_made_once_and_only_by_a_maximum_over_what_is_summed() -> None:
    goal = Goal.of_term(GOALS["attention_unsafe"]())
    s, most = scores(), Reduced("max", JL, scores())
    shifted = fn("exp", fn("sub", s, most))
    assert goal.contributes(shifted)
    assert goal.contributes(mul(shifted, fn("exp", fn("neg", most)))) is False
    over_rows = Reduced("max", axes(ROWS), s)
    assert goal.contributes(fn("exp", fn("sub", s, over_rows))) is False
    assert Goal.of_term(GOALS["moe"]()).contributes(Reduced("max", axes(N), product(K, X, W))) is False


def test_what_came_out_of_a_maximum_may_go_into_it() -> None:
    most = Reduced("max", axes(K), X)
    added = Goal.of_term(fn("add", most, mul(SCALE, MASK)))
    assert added.contributes(fn("add", X, mul(SCALE, MASK)))
    assert added.is_goal(Reduced("max", axes(K), fn("add", mul(MASK, SCALE), X)))
    assert added.contributes(fn("add", X, MASK)) is False
    scaled = Goal.of_term(mul(most, SCALE))
    assert scaled.contributes(mul(X, SCALE)) and scaled.contributes(mul(SCALE, SCALE)) is False


def test_summands_contribute_together_only_with_the_same_rest() -> None:
    one, other = fn("tanh", W), fn("tanh", W2)
    apart = Goal.of_term(fn("add", mul(X, one), mul(MASK, other)))
    together = Goal.of_term(fn("add", mul(X, one), mul(MASK, one)))
    assert apart.contributes(fn("add", X, MASK)) is False
    assert together.contributes(fn("add", X, MASK)) is True
