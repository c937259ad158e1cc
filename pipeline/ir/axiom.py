"""An axiom of scalar algebra over labelled axes as data: two patterns, a direction, conditions, and their text.

    sum(F, x * y) <-> sum(F, x) * y  if F not in y
    exp(x - y) -> exp(x) / exp(y)

Small letters are values, capitals are sets of factors of axes, `F | G` is the union of disjoint sets. Functions are
those of `pipeline.ir.graph.ELEMENTWISE`; sum, max, min and prod with a set reduce over it. A set that only one side has
stands for every set. Conditions, joined by "and":

    F not in y        y does not vary with any factor in F
    F apart from G    no factor is in both sets
    x > 0             also >= 0 and != 0
    c is number       c is a constant
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, assert_never, cast

from pipeline.errors import UserError, listed
from pipeline.ir.graph import BINARY, ELEMENTWISE, TERNARY, UNARY

Kind = Literal["sum", "max", "min", "prod"]
Relation = Literal[">", ">=", "!="]
KINDS = ("sum", "max", "min", "prod")
ARITY = {**dict.fromkeys(UNARY, 1), **dict.fromkeys(BINARY, 2), **dict.fromkeys(TERNARY, 3)}
SIGNS = {"+": "add", "-": "sub", "*": "mul", "/": "div"}
TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)|(?P<name>[A-Za-z_][A-Za-z0-9_]*)|(?P<sign><->|->|>=|!=|[-+*/(),|>]))"
)


class AxiomError(UserError):
    """Text that is not an axiom."""


@dataclass(frozen=True, slots=True)
class Variable:
    """Any value."""

    name: str


@dataclass(frozen=True, slots=True)
class Constant:
    """A number."""

    value: float


@dataclass(frozen=True, slots=True)
class Call:
    """A scalar function of patterns."""

    fn: str
    args: tuple[Pattern, ...]


@dataclass(frozen=True, slots=True)
class Over:
    """A reduction over the union of sets of factors."""

    kind: Kind
    sets: tuple[str, ...]
    body: Pattern


Pattern = Variable | Constant | Call | Over


@dataclass(frozen=True, slots=True)
class Lacks:
    """The value does not vary with the factors of the set."""

    set: str
    variable: str


@dataclass(frozen=True, slots=True)
class Apart:
    """The two sets have no factor in common."""

    first: str
    second: str


@dataclass(frozen=True, slots=True)
class Compared:
    """The value is in this relation to zero, everywhere."""

    variable: str
    relation: Relation


@dataclass(frozen=True, slots=True)
class IsNumber:
    """The value is a constant."""

    variable: str


Condition = Lacks | Apart | Compared | IsNumber


@dataclass(frozen=True, slots=True)
class Axiom:
    """left may be written as right; also the other way round where `both` is set. text: what it was parsed from."""

    name: str
    text: str
    left: Pattern
    right: Pattern
    both: bool
    conditions: tuple[Condition, ...] = ()

    @staticmethod
    def parse(text: str, name: str | None = None) -> Axiom:
        """An axiom from its text; without a name it is called by its text. AxiomError for what is none."""
        return _Parser(text, name).axiom(name or " ".join(text.split()))


def parts(pattern: Pattern) -> Iterator[Pattern]:
    """A pattern and all below it."""
    yield pattern
    match pattern:
        case Variable() | Constant():
            pass
        case Call(args=args):
            for arg in args:
                yield from parts(arg)
        case Over(body=body):
            yield from parts(body)
        case _:
            assert_never(pattern)


def variables(pattern: Pattern) -> tuple[str, ...]:
    """The names of the values in a pattern, each once, in order."""
    return tuple(dict.fromkeys(part.name for part in parts(pattern) if isinstance(part, Variable)))


def factor_sets(pattern: Pattern) -> tuple[str, ...]:
    """The names of the sets of factors in a pattern, each once, in order."""
    return tuple(dict.fromkeys(name for part in parts(pattern) if isinstance(part, Over) for name in part.sets))


class _Parser:
    def __init__(self, text: str, name: str | None = None) -> None:
        self._text = text
        self._called = repr(text) if name is None else f"{name}, {text!r}"
        self._tokens: list[tuple[str, str, int]] = []
        at = 0
        while text[at:].strip():
            match = TOKEN.match(text, at)
            if match is None:
                at += len(text[at:]) - len(text[at:].lstrip())
                raise self._error("unreadable axiom", at, f"{text[at]!r} is no name, number or sign",
                                  "Write names, numbers, + - * / ( ) , | and -> or <->")  # fmt: skip
            kind = match.lastgroup or ""
            self._tokens.append((kind, match[kind], match.start(kind)))
            at = match.end()
        self._tokens.append(("end", "", len(text)))
        self._next = 0

    def axiom(self, name: str) -> Axiom:
        left = self._sum()
        arrow = self._take("->", "<->")
        right = self._sum()
        conditions: list[Condition] = []
        if self._is("if"):
            self._next += 1
            conditions.append(self._condition())
            while self._is("and"):
                self._next += 1
                conditions.append(self._condition())
        if self._peek()[0] != "end":
            raise self._unexpected("'if' or the end of the axiom")
        made = Axiom(name, self._text, left, right, arrow == "<->", tuple(conditions))
        self._check(made)
        return made

    # ---- patterns

    def _sum(self) -> Pattern:
        found = self._product()
        while self._is("+", "-"):
            sign = self._take("+", "-")
            found = Call(SIGNS[sign], (found, self._product()))
        return found

    def _product(self) -> Pattern:
        found = self._unary()
        while self._is("*", "/"):
            sign = self._take("*", "/")
            found = Call(SIGNS[sign], (found, self._unary()))
        return found

    def _unary(self) -> Pattern:
        if not self._is("-"):
            return self._primary()
        self._next += 1
        body = self._unary()
        return Constant(-body.value) if isinstance(body, Constant) else Call("neg", (body,))

    def _primary(self) -> Pattern:
        kind, text, at = self._peek()
        if kind == "number":
            self._next += 1
            return Constant(float(text))
        if self._is("("):
            self._next += 1
            found = self._sum()
            self._take(")")
            return found
        if kind != "name":
            raise self._unexpected("a value")
        self._next += 1
        if self._is("("):
            return self._call(text, at)
        if not text[0].islower():
            raise self._error("a set of factors where a value is needed", at, f"{text} begins with a capital",
                              "Give values names in small letters")  # fmt: skip
        return Variable(text)

    def _call(self, fn: str, at: int) -> Pattern:
        self._take("(")
        kind, first, _ = self._peek()
        if fn in KINDS and kind == "name" and first[0].isupper():
            sets = [self._set()]
            while self._is("|"):
                self._next += 1
                sets.append(self._set())
            self._take(",")
            body = self._sum()
            self._take(")")
            return Over(cast(Kind, fn), tuple(sets), body)
        args = [self._sum()]
        while self._is(","):
            self._next += 1
            args.append(self._sum())
        self._take(")")
        if fn not in ELEMENTWISE:
            raise self._error("an unknown function", at, f"{fn} is none of {listed(ELEMENTWISE)}",
                              f"A reduction is over a set of factors: sum(F, x); kinds: {listed(KINDS)}")  # fmt: skip
        if len(args) != ARITY[fn]:
            raise self._error("a wrong number of arguments", at, f"{fn} takes {ARITY[fn]}, not {len(args)}",
                              "A reduction names its set of factors first: max(F, x)")  # fmt: skip
        return Call(fn, tuple(args))

    def _set(self) -> str:
        kind, text, at = self._peek()
        if kind != "name" or not text[0].isupper():
            raise self._error("no set of factors", at, f"{text or 'the end'!r} does not begin with a capital",
                              "Name sets of factors F, G …")  # fmt: skip
        self._next += 1
        return text

    # ---- conditions

    def _condition(self) -> Condition:
        kind, name, _ = self._peek()
        if kind != "name":
            raise self._unexpected("a condition")
        self._next += 1
        if self._is("apart"):
            self._next += 1
            self._take("from")
            return Apart(name, self._set())
        if self._is("not"):
            self._next += 1
            self._take("in")
            return Lacks(name, self._word())
        if self._is("is"):
            self._next += 1
            self._take("number")
            return IsNumber(name)
        relation = self._take(">", ">=", "!=")
        kind, zero, at = self._peek()
        if kind != "number" or float(zero):
            raise self._error("a condition that is not one on the sign", at, f"{zero!r} is not 0",
                              "Compare with 0: x > 0")  # fmt: skip
        self._next += 1
        return Compared(name, cast(Relation, relation))

    def _word(self) -> str:
        kind, text, _ = self._peek()
        if kind != "name":
            raise self._unexpected("a name")
        self._next += 1
        return text

    # ---- what has to hold

    def _check(self, made: Axiom) -> None:
        sides = [(made.left, made.right)] + ([(made.right, made.left)] if made.both else [])
        for given, wanted in sides:
            loose = set(variables(wanted)) - set(variables(given))
            if loose:
                raise self._error("a name that comes from nowhere", 0, f"{listed(loose)} is on one side only",
                                  "Use it on both sides, or write -> from the side that has it")  # fmt: skip
            if isinstance(given, Variable | Constant):
                raise self._error("a side that fits everything", 0, "it is a variable or a number alone",
                                  "Write -> towards that side")  # fmt: skip
        if made.left == made.right:
            raise self._error("an axiom that says nothing", 0, "both sides are the same", "Leave it out")
        values, sets = set(variables(made.left)), {*factor_sets(made.left), *factor_sets(made.right)}
        for condition in made.conditions:
            match condition:
                case Lacks(set=name, variable=value):
                    unknown = ({name} - sets) | ({value} - values)
                case Apart(first=first, second=second):
                    unknown = {first, second} - sets
                case Compared(variable=value) | IsNumber(variable=value):
                    unknown = {value} - values
                case _:
                    assert_never(condition)
            if unknown:
                raise self._error("a condition on nothing", 0, f"{listed(unknown)} is not in the axiom",
                                  f"Values are {listed(values)}; sets are {listed(sets) or 'none'}")  # fmt: skip

    # ---- tokens

    def _peek(self) -> tuple[str, str, int]:
        return self._tokens[self._next]

    def _is(self, *texts: str) -> bool:
        return self._peek()[1] in texts

    def _take(self, *texts: str) -> str:
        if not self._is(*texts):
            raise self._unexpected(" or ".join(repr(text) for text in texts))
        self._next += 1
        return self._tokens[self._next - 1][1]

    def _unexpected(self, wanted: str) -> AxiomError:
        _, text, at = self._peek()
        found = repr(text) if text else "the end"
        return self._error("unreadable axiom", at, f"expected {wanted}, found {found}",
                           "Write pattern -> pattern or pattern <-> pattern, and conditions after if")  # fmt: skip

    def _error(self, what: str, at: int, why: str, todo: str) -> AxiomError:
        return AxiomError(what, where=f"axiom {self._called}, column {at + 1}", why=why, todo=todo)
