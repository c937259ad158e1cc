"""What is near a specification: the classes of its own values and of parts of its sums, and its own steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, combinations
from typing import Protocol

from pipeline.superopt.goal.term import Factor, Factors, ReduceKind
from pipeline.superopt.spec import Apply, Number, Product, Reduction, Spec


class Oracle(Protocol):
    """What values are up to the axioms, as numbers of classes, and which classes can contribute to the goal.

    Each step gives the class of what an operator computes from classes, and None where that cannot contribute. Equal
    classes are equal values; a class below zero says nothing. `contributes` of a class is None where it is not known.
    """

    def leaf(self, number: int, factors: Iterable[Factor]) -> int | None: ...

    def number(self, value: float) -> int | None: ...

    def apply(self, fn: str, args: Sequence[int]) -> int | None: ...

    def reduce(self, kind: ReduceKind, factors: Iterable[Factor], value: int) -> int | None: ...

    def contributes(self, value: int) -> bool | None: ...


@dataclass(frozen=True, slots=True)
class Near:
    """The classes that are near, and the functions on classes that the specification applies."""

    classes: set[int] = field(default_factory=set)
    steps: set[tuple[object, ...]] = field(default_factory=set)

    @staticmethod
    def to(spec: Spec, factored: Mapping[int, tuple[Factor, ...]], oracle: Oracle, split: Factor | None) -> Near:
        """With a split factor also what the specification is on one part, and what leads from one part to all."""
        near = Near()
        near.classes.update(_specified(near, spec, factored, oracle, frozenset()))
        if split is not None:
            near.classes.update(_specified(near, spec, factored, oracle, frozenset({split})))
        return near


def _specified(near: Near, spec: Spec, factored: Mapping[int, tuple[Factor, ...]], oracle: Oracle, without: Factors,
               ) -> Iterator[int]:  # fmt: skip
    """The classes of the values of the specification, and of parts of its sums; without a factor: of one part."""
    forms: list[int | None] = []
    for number, tensor in enumerate(spec.inputs):
        forms.append(oracle.leaf(number, [f for label in tensor.labels for f in factored[label]]))
    for node in spec.nodes:
        args = [forms[i] for i in node.inputs]
        known = [arg for arg in args if arg is not None]
        if len(known) < len(args):
            forms.append(None)
            continue
        match node.op:
            case Number(value):
                forms.append(oracle.number(value))
            case Apply(fn):
                forms.append(oracle.apply(fn, known))
                near.steps.add((fn, *known))
            case Product(over) | Reduction(over=over):
                kind: ReduceKind = node.op.kind if isinstance(node.op, Reduction) else "sum"
                body = known[0] if isinstance(node.op, Reduction) else oracle.apply("mul", known)
                if isinstance(node.op, Product):
                    near.steps.add(("dot", *known))
                whole = [f for label in over for f in factored[label] if f not in without]
                parts = [oracle.reduce(kind, part, body) for part in subsets(whole) if body is not None]
                yield from (part for part in parts if part is not None)
                if kind == "max" and without and parts:
                    yield from _shifts(oracle, parts[0], without)
                forms.append(parts[0] if parts else None)
    yield from (form for form in forms if form is not None)


def _shifts(oracle: Oracle, part: int | None, split: Factors) -> Iterator[int]:
    """From the greatest of a part to the greatest of all: what partial sums of exponentials are scaled by."""
    whole = None if part is None else oracle.reduce("max", split, part)
    step = None if part is None or whole is None else oracle.apply("sub", (part, whole))
    scale = None if step is None else oracle.apply("exp", (step,))
    yield from (form for form in (step, scale) if form is not None)


def subsets(factors: Iterable[Factor]) -> Iterator[Factors]:
    """The subsets that are not empty, the largest first."""
    ordered = sorted(factors)
    sizes = (combinations(ordered, size) for size in range(len(ordered), 0, -1))
    yield from map(frozenset, chain.from_iterable(sizes))
