"""The proof that a µGraph computes its specification: identity tests at random points of finite fields.

One test draws random inputs, a random ω and random keys, runs both programs over the residues and compares every
element of the results. An element in which two programs of polynomials and divisions differ agrees by chance with
probability at most d / q (Schwartz and Zippel; d the degree of the difference, cleared of denominators), and in all
tests with probability at most (d / q)^tests: this is the bound of a proof. With exponentials it rests on an assumption,
since what is proven for k of them, 8 d k^4 / q + q^(-1/k^2) (Mirage, theorem 2), is above one half from k = 5 on.

Maxima are first any function at all (what cancels, as in safe softmax, needs no more), then, if that fails, a selection
in a random order: an identity such as max(max(a, b), c) = max(a, max(b, c)) needs that they select.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from pipeline.ir import graph as g
from pipeline.ir.graph import Graph
from pipeline.ir.graph_types import FLOATS
from pipeline.superopt.mugraph.graph import MuGraph
from pipeline.superopt.mugraph.interpret import run_mugraph
from pipeline.superopt.proof.fragment import beyond_fragment
from pipeline.superopt.proof.proof import CounterExample, Proof, ResiduePair
from pipeline.superopt.proof.shrink import shrunken
from pipeline.superopt.proof.witness import find_undefined, find_witness
from pipeline.superopt.spec import Spec, spec_graph
from pipeline.verification.degree_algebra import Degree, DegreeAlgebra
from pipeline.verification.field import DrawAgain, primes
from pipeline.verification.field_algebra import FieldAlgebra, FieldValue, Maximum, NotProvable, Residues
from pipeline.verification.graph_algebra import run_graph

TESTS = 4
REDRAWS = 20  # of a test whose denominators vanish, before it is given up
SQUARE_REDRAWS = 400  # of a test whose roots must all be of squares
ASSUMED = {
    "exp": "exponentials of different exponents behave as independent variables",
    "root": "roots behave as variables whose square is known up to its sign",
    "unknown": "the hash behaves as a random function",
}
MODELLED = {
    "unknown": "some function were any other",
    "maximum": "a maximum were any selection",
    "root": "some roots had the other sign",
    "infinity": "an infinite constant were some number",
}
SELECTED = "every order of the operands of a maximum that matters is among those drawn"

Run = Callable[[FieldAlgebra], tuple[tuple[FieldValue, ...], tuple[FieldValue, ...]]]
Look = Callable[[], CounterExample | None]


def prove(
    spec: Graph, graph: MuGraph, *, extents: Mapping[str, int] | None = None, tests: int = TESTS,
    rng: np.random.Generator,
) -> Proof:  # fmt: skip
    """Whether the µGraph computes the graph, for inputs of the graph's shapes.

    extents  of the grid axes and loops by name, where the µGraph leaves them open or others are wanted
    tests    independent ones, each of which compares every element

    "different" is certain: either floating point shows it, or residues do and nothing was modelled. A difference that
    only a model shows (of an unknown function, a maximum, a root, an infinite constant) is "not provable".
    CheckError for a µGraph whose parts do not fit together at these shapes.
    """
    inputs = {node.op.name: node.type for node in spec.nodes if isinstance(node.op, g.Input)}

    def run(algebra: FieldAlgebra) -> tuple[tuple[FieldValue, ...], tuple[FieldValue, ...]]:
        feeds = {name: algebra.draw(kind) for name, kind in inputs.items()}
        expected = tuple(run_graph(spec, feeds, algebra).values())
        return expected, run_mugraph(graph, feeds, algebra, extents)

    def look() -> CounterExample | None:
        return find_witness(spec, graph, inputs, extents, rng)

    def degree() -> int:
        algebra = DegreeAlgebra()
        feeds = {name: Degree(kind.shape, 1 if kind.dtype in FLOATS else 0) for name, kind in inputs.items()}
        expected = run_graph(spec, feeds, algebra).values()
        found = run_mugraph(graph, feeds, algebra, extents)
        return max(want.difference(have) for want, have in zip(expected, found, strict=True))

    reason = "; ".join(beyond_fragment(spec, graph))
    try:
        if not reason:
            proof = _decide(run, look, degree, tests, rng)
            rooted = proof.equal and ASSUMED["root"] in proof.assumptions
            undefined = find_undefined(spec, graph, inputs, extents, rng) if rooted else None
            return Proof("different", counterexample=undefined) if undefined else proof
    except NotProvable as error:
        reason = str(error)
    seen = look()
    return Proof("different", counterexample=seen) if seen else Proof("not provable", reason=reason)


def _decide(run: Run, look: Look, degree: Callable[[], int], tests: int, rng: np.random.Generator) -> Proof:
    modelled: set[str] = set()
    failure: CounterExample | None = None
    for maximum in ("arbitrary", "selection"):
        failure, used = _test(run, tests, rng, maximum)
        if failure is None:
            return _equal(tests, used, maximum, degree())
        modelled |= used
        if "maximum" not in used:
            break
    assert failure is not None
    seen = look()
    if seen is not None:
        return Proof("different", counterexample=replace(failure, witness=seen.witness))
    if "signed root" in modelled:
        return _with_squares(run, degree, tests, rng, "selection" if "maximum" in modelled else "arbitrary")
    return _refused(failure, modelled)


def _with_squares(run: Run, degree: Callable[[], int], tests: int, rng: np.random.Generator, maximum: Maximum) -> Proof:
    """Only squares under the roots, so that a root squared is what it was a root of."""
    try:
        failure, used = _test(run, tests, rng, maximum, squares=True)
    except NotProvable:
        reason = "it differs where a root has two signs, and there are too many to draw squares under all of them"
        return Proof("not provable", reason=reason)
    return _equal(tests, used, maximum, degree()) if failure is None else _refused(failure, used)


def _refused(failure: CounterExample, used: set[str]) -> Proof:
    reasons = [text for model, text in MODELLED.items() if model in used]
    if reasons:
        reason = f"they would differ if {' or '.join(reasons)}; float64 shows no difference ({failure})"
        return Proof("not provable", reason=reason)
    return Proof("different", counterexample=failure)


def _test(
    run: Run, tests: int, rng: np.random.Generator, maximum: Maximum, *, squares: bool = False
) -> tuple[CounterExample | None, set[str]]:
    """The first test that fails, or None; and what the values depended on."""
    used: set[str] = set()
    for _ in range(tests):
        seed, algebra, (expected, found) = _draw(run, rng, maximum, squares)
        used |= algebra.used
        failure = compare(expected, found, seed)
        if failure is not None:
            return failure, used
    return None, used


def _draw(
    run: Run, rng: np.random.Generator, maximum: Maximum, squares: bool
) -> tuple[int, FieldAlgebra, tuple[tuple[FieldValue, ...], tuple[FieldValue, ...]]]:
    for _ in range(SQUARE_REDRAWS if squares else REDRAWS):
        seed = int(rng.integers(1 << 62))
        algebra = FieldAlgebra(np.random.default_rng(seed), maximum, squares=squares)
        try:
            return seed, algebra, run(algebra)
        except DrawAgain:
            continue
    raise NotProvable(
        "a denominator is zero for every input that was drawn",
        why="one divides by what is always zero, or by so many elements that one of them is",
        todo="Prove it at smaller extents",
    )


def compare(expected: tuple[FieldValue, ...], found: tuple[FieldValue, ...], seed: int) -> CounterExample | None:
    """The first element in which the results differ."""
    for number, (want, have) in enumerate(itertools.zip_longest(expected, found)):
        failure = _compare(want, have, seed, number)
        if failure is not None:
            return failure
    return None


def _compare(want: FieldValue | None, have: FieldValue | None, seed: int, number: int) -> CounterExample | None:
    if want is None or have is None or _shape(want) != _shape(have):
        return CounterExample(number, (), None)
    pairs = list(zip(_parts(want), _parts(have), strict=False))  # the q parts only where both have one
    wrong = np.zeros(_shape(want), bool)
    for a, b in pairs:
        wrong |= a != b
    if not wrong.any():
        return None
    index = tuple(int(i) for i in np.argwhere(wrong)[0])
    values = [(int(a[index]), int(b[index])) for a, b in pairs] + [(-1, -1)]
    found = ResiduePair(seed, (values[0][0], values[1][0]), (values[0][1], values[1][1]))
    return CounterExample(number, index, found)


def _shape(x: FieldValue) -> tuple[int, ...]:
    return x.p.shape if isinstance(x, Residues) else x.shape


def _parts(x: FieldValue) -> list[np.ndarray]:
    return [x] if isinstance(x, np.ndarray) else [x.p] if x.q is None else [x.p, x.q]


def _equal(tests: int, used: set[str], maximum: Maximum, degree: int) -> Proof:
    _, q = primes()
    told = [text for model, text in ASSUMED.items() if model in used]
    if "maximum" in used and maximum == "selection":
        told.append(SELECTED)
    return Proof("equal", tests, min(1.0, degree / q) ** tests, degree, tuple(told))


def prove_spec(spec: Spec, graph: MuGraph, *, tests: int = TESTS, rng: np.random.Generator) -> Proof:
    """`prove` at small extents that it chooses itself: some milliseconds."""
    small = shrunken(spec, graph)
    return prove(spec_graph(spec, small.labels), graph, extents=small.axes, tests=tests, rng=rng)


def prove_full(
    spec: Spec, graph: MuGraph, *, extents: Mapping[str, int] | None = None, tests: int = 1, rng: np.random.Generator
) -> Proof:
    """`prove` at the extents of the specification and given ones of the µGraph: for the winner of a search."""
    return prove(spec_graph(spec), graph, extents=extents, tests=tests, rng=rng)
