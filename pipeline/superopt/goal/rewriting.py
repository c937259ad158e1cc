"""Rewriting of normal forms by axioms that they do not hold by themselves: the variants of a goal.

The left side of an axiom is matched modulo commutativity and associativity: its functions are found among the powers
of a product, and a variable beside them stands for one or more of the powers that are left; alone as an argument, for
all of it. Everything that the normal form identifies is one form, so each variant stands for all terms equal to it by
the other axioms. What is matched is what is there: exp(x) matches one exponential of a product of several.

Conditions on signs are taken to hold, since what is found is proven afterwards.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import assert_never

import numpy as np

from pipeline.errors import ConfigError
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
    variables,
)  # fmt: skip
from pipeline.superopt.goal.axiom_check import Instance, instance
from pipeline.superopt.goal.interned import COMMUTATIVE, ONE, Power, TooLarge, mask_of
from pipeline.superopt.goal.normal_form import Forms
from pipeline.superopt.goal.term import App, Leaf, Num, Reduced, Term

MANY_VARIANTS = 256
MANY_REWRITTEN = 4096
DEEP = 24  # functions in functions
SPLIT = 6  # powers or products that are shared out among variables in all ways
Bindings = Mapping[str, int]  # of variables to polys; of sets to bits


def form(forms: Forms, term: Term) -> int:
    """The normal form of a term."""
    match term:
        case Leaf(number=number, factors=factors):
            return forms.leaf(number, sorted(factors))
        case Num(value=value):
            return forms.number(value)
        case App(fn=fn, args=args):
            return forms.apply(fn, [form(forms, arg) for arg in args])
        case Reduced(kind=kind, over=over, body=body):
            return forms.reduced(kind, forms.mask(sorted(over)), form(forms, body))
        case _:
            assert_never(term)


def is_held(axiom: Axiom) -> bool:
    """Whether the normal form makes both sides of an axiom the same without any rewriting."""
    made, forms = _plain(axiom), Forms()
    try:
        return form(forms, made.left) == form(forms, made.right)
    except TooLarge:
        return False


def _plain(axiom: Axiom) -> Instance:
    return instance(axiom, np.random.default_rng(0))


@dataclass(frozen=True, slots=True)
class Rewrite:
    """One direction of an axiom. Its left side is one product, by number in its own forms.

    names  of the variables, by the number of the leaf that stands for them
    """

    axiom: Axiom
    right: Pattern
    patterns: Forms
    powers: tuple[Power, ...]
    names: Mapping[int, str]

    @staticmethod
    def of(axiom: Axiom) -> tuple[Rewrite, ...]:
        """Each direction of an axiom that can be matched. ConfigError where none can."""
        sides = [axiom]
        if axiom.both:
            sides.append(replace(axiom, left=axiom.right, right=axiom.left))
        found = tuple(rewrite for side in sides if (rewrite := _direction(side)) is not None)
        if not found:
            raise ConfigError("an axiom cannot be used to rewrite", where=f"axiom {axiom.name!r}: {axiom.text.strip()}",
                              why="no side that it may be used from is a product with a function in it",
                              todo="Write a side whose functions are not added and not under a sum")  # fmt: skip
        return found


def _direction(axiom: Axiom) -> Rewrite | None:
    forms, made = Forms(), _plain(replace(axiom, both=False))
    left = form(forms, made.left)
    if len(forms.polys[left]) != 1 or set(factor_sets(axiom.right)) - set(factor_sets(axiom.left)):
        return None
    product = forms.products[forms.polys[left][0]]
    functions = [atom for atom, _ in product.powers if forms.atoms[atom].kind not in ("in", "num")]
    if product.bound or not functions:
        return None
    numbers = {leaf.number: name for name, leaf in made.leaves.items()}
    if set(variables(axiom.left)) - set(numbers.values()):
        return None  # a constant, which the form has folded
    return Rewrite(axiom, axiom.right, forms, product.powers, numbers)


def variants(forms: Forms, roots: Iterable[int], rewrites: Sequence[Rewrite]) -> tuple[dict[int, set[int]], bool]:
    """Everything that each poly can be rewritten to, itself too; and whether that is all of it."""
    rewriter = _Rewriter(forms, rewrites)
    found: dict[int, set[int]] = {}
    whole = True
    for root in roots:
        known = found[root] = {root}
        todo = [root]
        while todo:
            try:
                for other in rewriter.rewritten(todo.pop()):
                    if other not in known:
                        if len(known) >= MANY_VARIANTS:
                            raise TooLarge
                        known.add(other)
                        todo.append(other)
            except TooLarge:
                whole = False
                break
    return found, whole


class _Rewriter:
    """Applies rewrites anywhere in polys."""

    def __init__(self, forms: Forms, rewrites: Sequence[Rewrite]) -> None:
        self._forms = forms
        self._rewrites = rewrites
        self._known: dict[int, tuple[int, ...]] = {}
        self._depth = 0

    def rewritten(self, poly: int) -> tuple[int, ...]:
        """A poly with one place rewritten, in every way."""
        if poly not in self._known:
            if self._depth > DEEP or len(self._known) > MANY_REWRITTEN:
                raise TooLarge
            self._depth += 1
            try:
                self._known[poly] = tuple(dict.fromkeys(self._in_poly(poly)))
            finally:
                self._depth -= 1
        return self._known[poly]

    def _in_poly(self, poly: int) -> Iterator[int]:
        forms = self._forms
        for number in dict.fromkeys(forms.polys[poly]):
            product = forms.products[number]
            others = list(forms.polys[poly])
            others.remove(number)
            for rest, new in self._in_product(product.powers):
                whole = forms.multiply(forms.poly((forms.product(0, rest),)), new)
                yield forms.add(forms.reduced("sum", product.binds, whole), forms.poly(others))

    def _in_product(self, powers: Sequence[Power]) -> Iterator[tuple[list[Power], int]]:
        """Powers that stay, and what the others become."""
        forms = self._forms
        for rewrite in self._rewrites:
            for bound, left in _Matcher(forms, rewrite).some(rewrite.powers, powers, {}):
                yield left, _built(forms, rewrite.right, bound)
        for atom, exponent in dict.fromkeys(powers):
            rest = list(powers)
            rest.remove((atom, exponent))
            known = forms.atoms[atom]
            for at, arg in enumerate(known.args):
                for new in self.rewritten(arg):
                    args = [*known.args[:at], new, *known.args[at + 1 :]]
                    if known.kind == "poly":
                        made = args[0]
                    elif known.kind == "app":
                        made = forms.apply(str(known.head), args)
                    else:
                        made = forms.reduced(known.kind, mask_of(known.vars), args[0])
                    yield rest, forms.power(made, exponent)


def _built(forms: Forms, pattern: Pattern, bound: Bindings) -> int:
    match pattern:
        case Variable(name=name):
            return bound[name]
        case Constant(value=value):
            return forms.number(value)
        case Call(fn=fn, args=args):
            return forms.apply(fn, [_built(forms, arg, bound) for arg in args])
        case Over(kind=kind, sets=sets, body=body):
            over = 0
            for name in sets:
                over |= bound[name]
            return forms.reduced(kind, over, _built(forms, body, bound))
        case _:
            assert_never(pattern)


class _Matcher:
    """Finds the left side of one rewrite in forms."""

    def __init__(self, forms: Forms, rewrite: Rewrite) -> None:
        self._forms = forms
        self._patterns = rewrite.patterns
        self._names = rewrite.names
        self._axiom = rewrite.axiom

    def some(self, wanted: Sequence[Power], powers: Sequence[Power], bound: Bindings
             ) -> Iterator[tuple[Bindings, list[Power]]]:  # fmt: skip
        """The bindings under which `wanted` is among the powers, and which of those are left."""
        for found, left in self._powers(wanted, list(powers), bound):
            if self._allowed(found):
                yield found, left

    def _powers(self, wanted: Sequence[Power], left: list[Power], bound: Bindings
                ) -> Iterator[tuple[Bindings, list[Power]]]:  # fmt: skip
        ordered = sorted(wanted, key=lambda power: self._name(power[0]) is not None)
        if not ordered:
            yield bound, left
            return
        (atom, exponent), rest = ordered[0], ordered[1:]
        name = self._name(atom)
        if name is not None:
            for chosen in self._subsets(left):
                remaining = list((Counter(left) - Counter(chosen)).elements())
                try:
                    value = self._forms.power(
                        self._forms.poly((self._forms.product(0, chosen),)), ONE * ONE // exponent
                    )
                except TooLarge:
                    continue
                if name in bound and bound[name] != value:
                    continue
                yield from self._powers(rest, remaining, {**bound, name: value})
            return
        for other in dict.fromkeys(left):
            if other[1] == exponent:
                remaining = list(left)
                remaining.remove(other)
                for found in self._atom(atom, other[0], bound):
                    yield from self._powers(rest, remaining, found)

    def _atom(self, atom: int, other: int, bound: Bindings) -> Iterator[Bindings]:
        mine, theirs = self._patterns.atoms[atom], self._forms.atoms[other]
        if mine.kind != theirs.kind or mine.head != theirs.head or len(mine.args) != len(theirs.args):
            return
        if mine.vars and mine.kind != "in":
            names = [name for name in self._sets() if name not in bound]
            if len(names) != 1:
                return  # which of its variables are of which set is not decided
            bound = {**bound, names[0]: mask_of(theirs.vars)}
        orders = itertools.permutations(theirs.args) if mine.head in COMMUTATIVE else [theirs.args]
        for args in orders:
            states: list[Bindings] = [bound]
            for pattern, arg in zip(mine.args, args, strict=True):
                states = [found for state in states for found in self._poly(pattern, arg, state)]
            yield from states

    def _poly(self, pattern: int, poly: int, bound: Bindings) -> Iterator[Bindings]:
        """Bindings under which a pattern is the whole of a poly."""
        products = [self._patterns.products[number] for number in self._patterns.polys[pattern]]
        alone = [p.powers[0][0] for p in products if len(p.powers) == 1 and p.powers[0][1] == ONE and not p.bound]
        names = [name for atom in alone if (name := self._name(atom)) is not None]
        inner = [
            p for p in products if not (len(p.powers) == 1 and p.powers[0][1] == ONE and self._name(p.powers[0][0]))
        ]
        if any(p.bound for p in inner):
            return
        yield from self._products([p.powers for p in inner], names, list(self._forms.polys[poly]), bound)

    def _products(self, inner: Sequence[Sequence[Power]], names: Sequence[str], left: list[int], bound: Bindings
                  ) -> Iterator[Bindings]:  # fmt: skip
        if inner:
            for number in dict.fromkeys(left):
                product = self._forms.products[number]
                if product.bound:
                    continue
                remaining = list(left)
                remaining.remove(number)
                for found, rest in self._powers(inner[0], list(product.powers), bound):
                    if not rest:
                        yield from self._products(inner[1:], names, remaining, found)
            return
        if not names:
            if not left:
                yield bound
            return
        choices = [tuple(left)] if len(names) == 1 else self._subsets(left)
        for chosen in choices:
            if not chosen:
                continue
            value = self._forms.poly(chosen)
            if names[0] in bound and bound[names[0]] != value:
                continue
            remaining = list((Counter(left) - Counter(chosen)).elements())
            yield from self._products((), names[1:], remaining, {**bound, names[0]: value})

    def _subsets(self, items: Sequence) -> Iterator[tuple]:  # type: ignore[type-arg]  # of powers or of products
        if len(items) > SPLIT:
            raise TooLarge
        seen = set()
        for size in range(1, len(items) + 1):
            for chosen in itertools.combinations(items, size):
                if chosen not in seen:
                    seen.add(chosen)
                    yield chosen

    def _name(self, atom: int) -> str | None:
        known = self._patterns.atoms[atom]
        return self._names.get(known.head) if known.kind == "in" and isinstance(known.head, int) else None

    def _sets(self) -> tuple[str, ...]:
        return factor_sets(self._axiom.left)

    def _allowed(self, bound: Bindings) -> bool:
        for condition in self._axiom.conditions:
            match condition:
                case Lacks(set=name, variable=value):
                    if self._forms.free[bound[value]] & bound.get(name, 0):
                        return False
                case Apart(first=first, second=second):
                    if bound.get(first, 0) & bound.get(second, 0):
                        return False
                case IsNumber(variable=value):
                    if self._forms.value(bound[value]) is None:
                        return False
                case Compared(variable=value, relation=relation):
                    number = self._forms.value(bound[value])
                    if number is not None and not (number > 0 or (number == 0 and relation == ">=")
                                                   or (number < 0 and relation == "!=")):  # fmt: skip
                        return False
                case _:
                    assert_never(condition)
        return True
