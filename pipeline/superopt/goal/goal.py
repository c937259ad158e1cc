"""The goal of an enumeration: what a specification computes, and which values can contribute to it.

A value is a number, its class: terms that the axioms make equal have the same one. Each step of a candidate is a table
look-up after its first time.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import assert_never

from pipeline.errors import ConfigError, listed
from pipeline.ir.axiom import Axiom
from pipeline.superopt.goal.interned import TooLarge
from pipeline.superopt.goal.normal_form import EXP_OF_SUM, FOUNDATIONS, OPTIONAL, Forms
from pipeline.superopt.goal.relevance import Relevance
from pipeline.superopt.goal.rewriting import Rewrite, is_held, variants
from pipeline.superopt.goal.term import App, Factor, Factors, Leaf, Num, Reduced, ReduceKind, Term
from pipeline.superopt.spec import Apply, Number, Product, Reduction, Spec

UNKNOWN = -1  # the class of all values that are too large to be known


class Goal:
    """What is to be computed, and what can contribute to it.

    root        the class of the goal
    parts       the classes of everything that it is computed from, as it was written
    saturated   whether all that contributes under the axioms is known; if not, nothing is ruled out
    """

    def __init__(self, build: Callable[[Goal], int], axioms: Sequence[Axiom] | None = None) -> None:
        """`build` writes down the goal with the steps of the goal it is given, and returns its class.

        axioms   None: those that the normal form holds. Else they are its own, of which some may be missing, and any
                 others, by which the goal is rewritten
        """
        rewrites = () if axioms is None else tuple(_rewrites(axioms))
        self.parts: set[int] = set()
        self.saturated = True
        self._forms = Forms(frozenset() if axioms is None else _left_out(axioms))
        self._values: dict[tuple[Hashable, ...], int] = {}
        self._relevance: Relevance | None = None
        self.root = build(self)
        self._equal = {self.root}
        if UNKNOWN in self.parts:
            self.saturated = False
            return
        try:
            written = [self.root, *sorted(self.parts)]
            if rewrites:
                found, self.saturated = variants(self._forms, written, rewrites)
                self._equal = found[self.root]
                written = [poly for root in written for poly in sorted(found[root])]
            if self.saturated:
                self._relevance = Relevance(self._forms, written, shift="exp-shift" not in self._forms.without)
        except TooLarge:
            self.saturated = False

    @classmethod
    def of(cls, spec: Spec, factors: Mapping[int, Sequence[str]], axioms: Sequence[Axiom] | None = None) -> Goal:
        """The goal of a specification: `factors` has the parts of each axis (("l", "t") and the like) by its label."""
        return cls(lambda goal: _written(goal, spec, factors), axioms)

    @classmethod
    def of_term(cls, term: Term, axioms: Sequence[Axiom] | None = None) -> Goal:
        """The goal that a term is."""
        return cls(lambda goal: goal.value(term), axioms)

    # ---- steps: the class of what an operator computes from classes; None where it cannot contribute

    def leaf(self, number: int, factors: Iterable[Factor]) -> int | None:
        """An element of the input with this number, which varies with these factors."""
        over = frozenset(factors)
        return self._contributing(self._step(("in", number, over), lambda: self._forms.leaf(number, sorted(over))))

    def number(self, value: float) -> int | None:
        return self._contributing(self._step(("num", value), lambda: self._forms.number(value)))

    def apply(self, fn: str, args: Sequence[int]) -> int | None:
        """A scalar function of `pipeline.ir.graph.ELEMENTWISE` of values."""
        return self._contributing(self._apply(fn, tuple(args)))

    def product(self, a: int, b: int) -> int | None:
        """One value times another: what a contraction sums."""
        return self._contributing(self._apply("mul", (a, b)))

    def sum(self, factors: Iterable[Factor], value: int) -> int | None:
        return self.reduce("sum", factors, value)

    def reduce(self, kind: ReduceKind, factors: Iterable[Factor], value: int) -> int | None:
        """The sum, greatest, least or product of a value over factors of axes."""
        return self._contributing(self._reduce(kind, frozenset(factors), value))

    # ---- questions

    def contributes(self, value: int | Term) -> bool | None:
        """Whether a value is a part of something that equals the goal; None: not known. False is certain."""
        known = value if isinstance(value, int) else self.value(value)
        if self._relevance is None or known == UNKNOWN:
            return None
        try:
            return self._relevance.contributes(known)
        except TooLarge:
            return None

    def is_goal(self, value: int | Term) -> bool | None:
        """Whether a value equals the goal under the axioms; None: not known."""
        known = value if isinstance(value, int) else self.value(value)
        if known in self._equal and known != UNKNOWN:
            return True
        return False if self.saturated and known != UNKNOWN else None

    def find(self, term: Term) -> int | None:
        """The class of a term, if it can contribute to the goal."""
        return self._contributing(self.value(term))

    def value(self, term: Term) -> int:
        """The class of a term, whether or not it contributes; UNKNOWN where it is too large."""
        match term:
            case Leaf(number=number, factors=factors):
                return self._step(("in", number, factors), lambda: self._forms.leaf(number, sorted(factors)))
            case Num(value=given):
                return self._step(("num", given), lambda: self._forms.number(given))
            case App(fn=fn, args=args):
                return self._apply(fn, tuple(self.value(arg) for arg in args))
            case Reduced(kind=kind, over=over, body=body):
                return self._reduce(kind, over, self.value(body))
            case _:
                assert_never(term)

    @property
    def size(self) -> int:
        """The polys that a value is looked for in."""
        return 0 if self._relevance is None else len(self._relevance.polys)

    # ---- behind the steps

    def _contributing(self, value: int) -> int | None:
        return None if self.contributes(value) is False else value

    def _apply(self, fn: str, args: tuple[int, ...]) -> int:
        return self._step((fn, *args), lambda: self._forms.apply(fn, args), *args)

    def _reduce(self, kind: ReduceKind, over: Factors, value: int) -> int:
        if not over:
            return value
        forms = self._forms
        key = ("over", kind, over, value)
        return self._step(key, lambda: forms.reduced(kind, forms.mask(sorted(over)), value), value)

    def _step(self, key: tuple[Hashable, ...], make: Callable[[], int], *args: int) -> int:
        found = self._values.get(key)
        if found is None:
            try:
                found = UNKNOWN if UNKNOWN in args else make()
            except TooLarge:
                found = UNKNOWN
            self._values[key] = found
            if self._relevance is None:
                self.parts.add(found)
        return found


def _left_out(axioms: Sequence[Axiom]) -> frozenset[str]:
    """The axioms of the normal form that are missing. ConfigError where it cannot do without."""
    names = {axiom.name for axiom in axioms}
    missing = FOUNDATIONS - names
    if missing:
        raise ConfigError("an axiom is left out that the normal form is built on", where="algebra.without",
                          why=listed(missing), todo=f"Leave out only some of {listed(OPTIONAL)}")  # fmt: skip
    left_out = OPTIONAL - names
    if left_out & EXP_OF_SUM and not left_out >= EXP_OF_SUM:
        raise ConfigError("one axiom on the exponential of a sum is left out alone", where="algebra.without",
                          why=listed(left_out & EXP_OF_SUM), todo=f"Leave out both: {listed(EXP_OF_SUM)}")  # fmt: skip
    return left_out


def _rewrites(axioms: Sequence[Axiom]) -> Iterator[Rewrite]:
    """For the axioms that the normal form does not hold by itself."""
    for axiom in axioms:
        if axiom.name not in FOUNDATIONS | OPTIONAL and not is_held(axiom):
            yield from Rewrite.of(axiom)


def _written(goal: Goal, spec: Spec, factors: Mapping[int, Sequence[str]]) -> int:
    """A specification in the steps of its goal."""

    def over(labels: Iterable[int]) -> Factors:
        return frozenset((label, part) for label in labels for part in factors[label])

    values: list[int] = [goal.value(Leaf(number, over(x.labels))) for number, x in enumerate(spec.inputs)]
    for node in spec.nodes:
        args = [values[i] for i in node.inputs]
        match node.op:
            case Number(value=number):
                found: int | None = goal.number(number)
            case Apply(fn=fn):
                found = goal.apply(fn, args)
            case Product(over=labels):
                found = goal.apply("mul", args)
                assert found is not None  # nothing is ruled out while a goal is written
                found = goal.sum(over(labels), found)
            case Reduction(kind=kind, over=labels):
                found = goal.reduce(kind, over(labels), args[0])
            case _:
                assert_never(node.op)
        assert found is not None
        values.append(found)
    return values[spec.output]
