"""Whatever the axioms make of a goal equals it, and no part of that is ever ruled out."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from pipeline.ir.algebra import FloatAlgebra
from pipeline.ir.graph import UNARY
from pipeline.superopt.goal import Goal
from pipeline.superopt.term import App, Leaf, Num, Reduced, Term, show, subterms
from pipeline.superopt.term_value import evaluate_term
from rules.graph.algebra import Algebra
from tests.superopt.derivations import derive, replaced, steps
from tests.superopt.goal_programs import GOALS, J, axes

AXIOMS = Algebra().axioms
PLAIN = tuple(axiom for axiom in AXIOMS if axiom.name != "exp-shift")
SHIFT = tuple(axiom for axiom in AXIOMS if axiom.name == "exp-shift")
SEEDS = range(8)


@functools.cache
def goal(name: str) -> Goal:
    return Goal.of_term(GOALS[name](), AXIOMS)


def value(term: Term, seed: int) -> np.ndarray:
    """At random positive inputs, with factors of 1, 2 and 2 elements."""
    rng = np.random.default_rng(seed)
    leaves = {part for part in subterms(term) if isinstance(part, Leaf)}
    factors = sorted(frozenset().union(*(leaf.factors for leaf in leaves)))
    extents = {factor: 1 if factor[1] == "g" else 2 for factor in factors}
    arrays = {
        leaf.number: rng.uniform(0.5, 1.5, [size if factor in leaf.factors else 1 for factor, size in extents.items()])
        for leaf in sorted(leaves, key=lambda leaf: leaf.number)
    }
    return np.asarray(evaluate_term(term, arrays, extents, FloatAlgebra()))


def assert_all_is_known(name: str, term: Term, seed: int) -> None:
    np.testing.assert_allclose(value(term, seed), value(GOALS[name](), seed), rtol=1e-8)
    if name != "two_gates":  # sums are not factored
        assert goal(name).is_goal(term), show(term)
    parts = [part for part in subterms(term) if not isinstance(part, Num)]  # the 2 of pow(x, 2) is none of a goal
    assert [show(part) for part in parts if goal(name).contributes(part) is False] == []


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", GOALS)
def test_no_part_of_what_is_derived_from_a_goal_is_ruled_out(name: str, seed: int) -> None:
    derived = derive(GOALS[name](), PLAIN, np.random.default_rng(seed), 12 + 6 * seed)
    assert_all_is_known(name, derived, seed)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", [name for name in GOALS if "attention" in name])
def test_nor_is_any_part_of_a_shifted_softmax(name: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    root = GOALS[name]()
    exponentials = [part for part in subterms(root) if getattr(part, "fn", "") == "exp"]
    sets = [axes(J), axes(J, parts="lt"), axes(J, parts="t")]
    if "unsafe" in name:
        choices = list(steps(exponentials[0], SHIFT, sets))
        root = replaced(root, exponentials[0], choices[int(rng.integers(len(choices)))])
    assert_all_is_known(name, derive(root, PLAIN, rng, 8 + 4 * seed), seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_terms_that_have_one_class_have_one_value(seed: int) -> None:
    """The other half: random small terms; those of one class must be equal at random points."""
    rng = np.random.default_rng(seed)
    some = goal("attention_scale_mask")
    known: list[Term] = [Leaf(0, axes(0, 1, parts="lt")), Leaf(1, axes(1, parts="lt")), Leaf(2, axes(0, parts="t"))]
    classes: dict[int, Term] = {}
    fns = ("add", "mul", "div", "sub", "exp", "sqrt", "rsqrt", "reciprocal", "max", "neg")
    parts = sorted(axes(0, 1, parts="lt"))
    merged = 0
    for _ in range(400):
        a, b = (known[int(i)] for i in rng.integers(0, len(known), 2))
        if rng.random() < 0.4:
            over = frozenset(parts[int(i)] for i in rng.integers(0, len(parts), 2))
            made: Term = Reduced("sum" if rng.random() < 0.7 else "max", over, a)
        else:
            fn = str(rng.choice(fns))
            made = applied(fn, a, b)
        if sum(1 for _ in subterms(made)) > 14:
            continue
        known.append(made)
        number = some.value(made)
        if number < 0:
            continue
        first = classes.setdefault(number, made)
        if first != made:
            merged += 1
            with np.errstate(all="ignore"):
                one, other = np.broadcast_arrays(full(first), full(made))
            numbers = np.isfinite(one) & np.isfinite(other)
            np.testing.assert_allclose(one[numbers], other[numbers], rtol=1e-7, err_msg=f"{show(first)} {show(made)}")
    assert merged > 10, "the test saw too few classes with two terms"


def applied(fn: str, a: Term, b: Term) -> Term:
    return App(fn, (a,) if fn in UNARY else (a, b))


def full(term: Term) -> np.ndarray:
    rng = np.random.default_rng(5)
    extents = {factor: 2 for factor in sorted(axes(0, 1, parts="lt"))}
    own = {0: axes(0, 1, parts="lt"), 1: axes(1, parts="lt"), 2: axes(0, parts="t")}
    arrays = {n: rng.uniform(0.5, 1.5, [2 if f in factors else 1 for f in extents]) for n, factors in own.items()}
    return np.asarray(evaluate_term(term, arrays, extents, FloatAlgebra()))
