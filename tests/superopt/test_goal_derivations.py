"""Whatever the axioms make of a goal equals it, and no part of that is ever ruled out."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence

import numpy as np
import pytest

from pipeline.ir.algebra import FloatAlgebra
from pipeline.ir.graph import UNARY
from pipeline.superopt.goal.goal import Goal
from pipeline.superopt.goal.term import App, Leaf, Num, Reduced, Term, show, subterms
from pipeline.superopt.goal.term_value import evaluate_term
from rules.graph.algebra import Algebra
from tests.superopt.derivations import derive, replaced, steps
from tests.superopt.goal_programs import GOALS, J, axes

AXIOMS = Algebra().axioms
PLAIN = tuple(axiom for axiom in AXIOMS if axiom.name != "exp-shift")
SHIFT = tuple(axiom for axiom in AXIOMS if axiom.name == "exp-shift")
SEEDS = range(8)
OWN = {0: axes(0, 1, parts="lt"), 1: axes(1, parts="lt"), 2: axes(0, parts="t")}


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
    fns = ("add", "mul", "div", "sub", "exp", "sqrt", "rsqrt", "reciprocal", "max", "neg")
    merged = 0
    for first, *others in classes(fns, np.random.default_rng(seed)):
        for other in others:
            merged += 1
            with np.errstate(all="ignore"):
                one, two = np.broadcast_arrays(full(first), full(other))
            numbers = np.isfinite(one) & np.isfinite(two)
            np.testing.assert_allclose(one[numbers], two[numbers], rtol=1e-7, err_msg=f"{show(first)} {show(other)}")
    assert merged > 10, "the test saw too few classes with two terms"


@pytest.mark.parametrize("seed", SEEDS)
def test_no_part_of_a_term_is_ruled_out_for_another_of_its_class(seed: int) -> None:
    """Random small terms again, without signs and exponentials, which may cancel."""
    fns = ("add", "mul", "div", "sub", "sqrt", "tanh", "max")
    pairs = 0
    for same in classes(fns, np.random.default_rng(seed)):
        for root, other in itertools.permutations(dict.fromkeys(same[:4]), 2):
            known = Goal.of_term(root)
            pairs += 1
            assert known.is_goal(other)
            ruled_out = [show(part) for part in subterms(other) if known.contributes(part) is False]
            assert ruled_out == [], f"{show(root)} {show(other)}"
    assert pairs > 20, "the test saw too few classes with two terms"


def classes(fns: Sequence[str], rng: np.random.Generator) -> list[list[Term]]:
    """Random terms of at most 14 parts by their class, those that are alone in it left out."""
    some = Goal.of_term(Num(2.0))
    known: list[Term] = [Leaf(number, factors) for number, factors in OWN.items()]
    parts = sorted(axes(0, 1, parts="lt"))
    found: dict[int, list[Term]] = {}
    for _ in range(400):
        a, b = (known[int(i)] for i in rng.integers(0, len(known), 2))
        if rng.random() < 0.4:
            over = frozenset(parts[int(i)] for i in rng.integers(0, len(parts), 2))
            made: Term = Reduced("sum" if rng.random() < 0.7 else "max", over, a)
        else:
            fn = str(rng.choice(fns))
            made = App(fn, (a,) if fn in UNARY else (a, b))
        if sum(1 for _ in subterms(made)) <= 14:
            known.append(made)
            number = some.value(made)
            if number >= 0 and made not in found.setdefault(number, []):
                found[number].append(made)
    return [same for same in found.values() if len(same) > 1]


def full(term: Term) -> np.ndarray:
    rng = np.random.default_rng(5)
    extents = {factor: 2 for factor in sorted(axes(0, 1, parts="lt"))}
    arrays = {n: rng.uniform(0.5, 1.5, [2 if f in factors else 1 for f in extents]) for n, factors in OWN.items()}
    return np.asarray(evaluate_term(term, arrays, extents, FloatAlgebra()))
