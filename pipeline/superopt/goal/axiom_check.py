"""The test that every axiom faces before it is used: random values, in float64 and in the field of the proofs.

What the field says counts where it has the functions of the axiom; it has no order, so that a maximum is an unknown
function there. What float64 says always counts.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import assert_never

import numpy as np

from pipeline.errors import CheckError
from pipeline.ir.algebra import FloatAlgebra
from pipeline.ir.axiom import (
    Apart,
    Axiom,
    Call,
    Compared,
    Condition,
    Constant,
    IsNumber,
    Lacks,
    Over,
    Pattern,
    Variable,
    factor_sets,
    parts,
    variables,
)
from pipeline.ir.graph import TensorType
from pipeline.superopt.goal.term import NONE, App, Factor, Factors, Leaf, Num, Reduced, Term
from pipeline.superopt.goal.term_value import evaluate_term
from pipeline.verification.field import DrawAgain
from pipeline.verification.field_algebra import FieldAlgebra, FieldValue, NotProvable, Residues

ROUNDS = 24
TOLERANCE = 1e-9
SCALES = (1.0, 0.1, 4.0)
LOGIC = frozenset({"and", "or", "xor", "not"})
EXTENTS = (2, 3, 2, 2)
NUMBERS = (2.0, 0.5, 3.0, 1.5)


@dataclass(frozen=True, slots=True)
class Instance:
    """Both sides of an axiom as terms, the factors with their extents, and the leaf of each value."""

    left: Term
    right: Term
    extents: Mapping[Factor, int]
    leaves: Mapping[str, Leaf]


def written(pattern: Pattern, values: Mapping[str, Term], sets: Mapping[str, Factors]) -> Term:
    """A pattern as a term, with terms for its values and factors for its sets."""
    match pattern:
        case Variable(name=name):
            return values[name]
        case Constant(value=value):
            return Num(value)
        case Call(fn=fn, args=args):
            return App(fn, tuple(written(arg, values, sets) for arg in args))
        case Over(kind=kind, sets=names, body=body):
            return Reduced(kind, NONE.union(*(sets[name] for name in names)), written(body, values, sets))
        case _:
            assert_never(pattern)


def instance(axiom: Axiom, rng: np.random.Generator, thin: bool = False) -> Instance:
    """An axiom about inputs, which vary with all factors that the conditions allow them; `thin`: with some of those."""
    names = tuple(dict.fromkeys((*factor_sets(axiom.left), *factor_sets(axiom.right))))
    apart = {frozenset((c.first, c.second)) for c in axiom.conditions if isinstance(c, Apart)}
    own = {name: frozenset({(label, "t")}) for label, name in enumerate(names)}
    for first, second in itertools.combinations(names, 2):
        if frozenset((first, second)) not in apart and rng.random() < 0.5:
            own[second] = own[second] | own[first]  # sets that nothing keeps apart may share a factor
    extents: dict[Factor, int] = {(label, "t"): EXTENTS[label % len(EXTENTS)] for label in range(len(names))}
    extents[len(names), "t"] = 2
    leaves: dict[str, Leaf] = {}
    values: dict[str, Term] = {}
    for number, name in enumerate(variables(axiom.left) + variables(axiom.right)):
        if name in values:
            continue
        barred = NONE.union(*(own[c.set] for c in axiom.conditions if isinstance(c, Lacks) and c.variable == name))
        allowed = [factor for factor in extents if factor not in barred]
        kept = frozenset(factor for factor in allowed if not thin or rng.random() < 0.5)
        if any(isinstance(c, IsNumber) and c.variable == name for c in axiom.conditions):
            size = float(rng.choice(NUMBERS))
            values[name] = Num(
                size if _relations(axiom.conditions, name) & {">", ">="} or rng.random() < 0.5 else -size
            )
        else:
            values[name] = leaves[name] = Leaf(number, kept)
    return Instance(written(axiom.left, values, own), written(axiom.right, values, own), extents, leaves)


def check_axiom(axiom: Axiom, rng: np.random.Generator) -> None:
    """CheckError, with a counter-example, for an axiom that does not hold for all values that its conditions allow."""
    seen = False
    for number in range(ROUNDS):
        made = instance(axiom, rng, thin=number % 2 == 1)
        seen |= _check_numbers(axiom, made, rng, SCALES[number % len(SCALES)])
        if number < ROUNDS // 4:
            _check_residues(axiom, made, rng)
    if not seen:
        raise CheckError("an axiom is defined nowhere", where=_where(axiom),
                         why="at no random point are both sides numbers",
                         todo="Add the conditions under which it is defined, such as x > 0")  # fmt: skip


def check_axioms(axioms: Iterable[Axiom], rng: np.random.Generator) -> None:
    """`check_axiom` for each."""
    for axiom in axioms:
        check_axiom(axiom, rng)


def _check_numbers(axiom: Axiom, made: Instance, rng: np.random.Generator, scale: float) -> bool:
    """In float64. Whether anywhere both sides were numbers."""
    booleans = _booleans(axiom)
    leaves: dict[int, np.ndarray] = {}
    for name, leaf in made.leaves.items():
        shape = _shape(leaf, made.extents)
        drawn = rng.normal(size=shape) * scale
        if name in booleans:
            leaves[leaf.number] = drawn > 0
        else:
            positive = _relations(axiom.conditions, name) & {">", ">="}
            leaves[leaf.number] = np.abs(drawn) + 1e-3 if positive else np.where(drawn == 0, 1.0, drawn)
    algebra: FloatAlgebra = FloatAlgebra()
    sides = (np.asarray(evaluate_term(side, leaves, made.extents, algebra)) for side in (made.left, made.right))
    left, right = np.broadcast_arrays(*(side.astype(np.float64) for side in sides))
    numbers = ~(np.isnan(left) & np.isnan(right))
    with np.errstate(all="ignore"):
        size = np.maximum(np.maximum(np.abs(left), np.abs(right)), 1.0)
        wrong = numbers & (left != right) & ~(np.abs(left - right) <= TOLERANCE * size)
    if wrong.any():
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise _refused(axiom, left[at], right[at], {n: leaves[leaf.number] for n, leaf in made.leaves.items()}, "")
    return bool((np.isfinite(left) & np.isfinite(right)).any())


def _check_residues(axiom: Axiom, made: Instance, rng: np.random.Generator) -> None:
    """In the field, where it has a model of the functions."""
    booleans = _booleans(axiom)
    field = FieldAlgebra(rng)
    leaves: dict[int, FieldValue] = {}
    for name, leaf in made.leaves.items():
        shape = _shape(leaf, made.extents)
        drawn = field.draw(TensorType(shape, "bool" if name in booleans else "float64"))
        positive = _relations(axiom.conditions, name) & {">", ">="}
        leaves[leaf.number] = field.elementwise("mul", drawn, drawn) if positive else drawn
    try:
        left = evaluate_term(made.left, leaves, made.extents, field)
        right = evaluate_term(made.right, leaves, made.extents, field)
    except (NotProvable, DrawAgain):
        return
    if field.used - {"exp", "root"} or not (isinstance(left, Residues) and isinstance(right, Residues)):
        return
    pairs = [(left.p, right.p)] + ([(left.q, right.q)] if left.q is not None and right.q is not None else [])
    for a, b in pairs:
        wrong = np.argwhere(np.not_equal(*np.broadcast_arrays(a, b)))
        if len(wrong):
            at = tuple(int(i) for i in wrong[0])
            shown = {n: leaves[leaf.number] for n, leaf in made.leaves.items()}
            arrays = {n: x.p if isinstance(x, Residues) else x for n, x in shown.items()}
            a, b = np.broadcast_arrays(a, b)
            raise _refused(axiom, a[at], b[at], arrays, f" modulo {field.field_p.prime}")


def _refused(axiom: Axiom, left: float, right: float, values: Mapping[str, np.ndarray], unit: str) -> CheckError:
    shown = "; ".join(
        f"{name} = {np.array2string(np.squeeze(x), precision=4, separator=', ')}" for name, x in values.items()
    )
    return CheckError("an axiom does not hold", where=_where(axiom),
                      why=f"left is {left:.6g} and right is {right:.6g}{unit} where {' '.join(shown.split())}",
                      todo="Correct it, or add the condition under which it holds")  # fmt: skip


def _where(axiom: Axiom) -> str:
    text = " ".join(axiom.text.split())
    return f"axiom {text}" if axiom.name == text else f"axiom {axiom.name!r}, {text}"


def _shape(leaf: Leaf, extents: Mapping[Factor, int]) -> tuple[int, ...]:
    return tuple(size if factor in leaf.factors else 1 for factor, size in extents.items())


def _relations(conditions: Iterable[Condition], name: str) -> set[str]:
    return {c.relation for c in conditions if isinstance(c, Compared) and c.variable == name}


def _booleans(axiom: Axiom) -> set[str]:
    """The values that are truth values: operands of logic, conditions of where."""
    found: set[str] = set()
    for part in itertools.chain(parts(axiom.left), parts(axiom.right)):
        if isinstance(part, Call) and part.args:
            operands = part.args if part.fn in LOGIC else part.args[:1] if part.fn == "where" else ()
            found |= {operand.name for operand in operands if isinstance(operand, Variable)}
    return found
