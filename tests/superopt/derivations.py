"""Random derivations: axioms applied to a term one after another, each at a random place and in a random direction.

Matching is by syntax alone, so that what is derived says nothing of how the normal form came about.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from pipeline.ir.axiom import (
    Apart,
    Axiom,
    Call,
    Compared,
    Constant,
    IsNumber,
    Lacks,
    Over,
    Pattern,
    Variable,
    factor_sets,
)  # fmt: skip
from pipeline.superopt.goal.axiom_check import written
from pipeline.superopt.goal.term import App, Factors, Leaf, Num, Reduced, Term, children, free_factors, subterms

Bindings = dict[str, Term | Factors]
LARGEST = 150  # terms below a term


def matches(pattern: Pattern, term: Term, bound: Bindings) -> Iterator[Bindings]:
    """The ways in which a pattern is a term."""
    match pattern, term:
        case Variable(name=name), _:
            if bound.get(name, term) == term:
                yield {**bound, name: term}
        case Constant(value=value), Num(value=number):
            if value == number:
                yield bound
        case Call(fn=fn, args=patterns), App(fn=own, args=args) if fn == own:
            states = [bound]
            for inner, arg in zip(patterns, args, strict=True):
                states = [found for state in states for found in matches(inner, arg, state)]
            yield from states
        case Over(kind=kind, sets=sets, body=body), Reduced(kind=own, over=over, body=inner) if kind == own:
            for chosen in _shared_out(sets, over, bound):
                yield from matches(body, inner, {**bound, **chosen})
        case _:
            return


def _shared_out(sets: Sequence[str], over: Factors, bound: Bindings) -> Iterator[Bindings]:
    if len(sets) == 1:
        if bound.get(sets[0], over) == over:
            yield {sets[0]: over}
        return
    for size in range(1, len(over)):
        for chosen in itertools.combinations(sorted(over), size):
            yield {sets[0]: frozenset(chosen), sets[1]: over - frozenset(chosen)}


def holds(axiom: Axiom, bound: Bindings) -> bool:
    """Whether the conditions hold; those on signs do where nothing speaks against it."""
    for condition in axiom.conditions:
        match condition:
            case Lacks(set=name, variable=value):
                if free_factors(_term(bound, value)) & _set(bound, name):
                    return False
            case Apart(first=first, second=second):
                if _set(bound, first) & _set(bound, second):
                    return False
            case IsNumber(variable=value):
                if not isinstance(bound[value], Num):
                    return False
            case Compared(variable=value):
                inner = bound[value]
                if isinstance(inner, Num) and inner.value <= 0:
                    return False
    return True


def _term(bound: Bindings, name: str) -> Term:
    found = bound[name]
    assert not isinstance(found, frozenset)
    return found


def _set(bound: Bindings, name: str) -> Factors:
    found = bound[name]
    assert isinstance(found, frozenset)
    return found


def steps(term: Term, axioms: Sequence[Axiom], loose: Sequence[Factors]) -> Iterator[Term]:
    """Everything that a term becomes with one axiom at its root; sets that come from nowhere are one of `loose`."""
    for axiom in axioms:
        for given, wanted in ((axiom.left, axiom.right), *(((axiom.right, axiom.left),) if axiom.both else ())):
            free = set(factor_sets(wanted)) - set(factor_sets(given))
            for bound in matches(given, term, {}):
                for chosen in loose if free else (frozenset(),):
                    full: Bindings = {**bound, **dict.fromkeys(free, chosen)}
                    if holds(axiom, full):
                        terms: Mapping[str, Term] = {k: v for k, v in full.items() if not isinstance(v, frozenset)}
                        sets = {k: v for k, v in full.items() if isinstance(v, frozenset)}
                        yield written(wanted, terms, sets)


def derive(term: Term, axioms: Sequence[Axiom], rng: np.random.Generator, count: int) -> Term:
    """A term after `count` random steps at random places."""
    for _ in range(count):
        places = [place for place in subterms(term) if not isinstance(place, Leaf | Num)]
        for _ in range(8):
            place = places[int(rng.integers(len(places)))]
            found = list(steps(place, axioms, ()))
            if found:
                new = found[int(rng.integers(len(found)))]
                changed = replaced(term, place, new)
                if sum(1 for _ in subterms(changed)) <= LARGEST:
                    term = changed
                break
    return term


def replaced(term: Term, old: Term, new: Term) -> Term:
    """A term with another in the place of one below it, wherever that occurs."""
    if term == old:
        return new
    below = tuple(replaced(child, old, new) for child in children(term))
    match term:
        case App(fn=fn):
            return App(fn, below)
        case Reduced(kind=kind, over=over):
            return Reduced(kind, over, below[0])
        case _:
            return term
