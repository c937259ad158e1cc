"""Fingerprints of values: what they are at one random point of the finite field, over labelled axis factors.

Every factor has a small extent, so a value is an array with one dimension for each of its free factors. Equal values
have equal fingerprints; different ones share one with a probability of about 2^-20 to the number of their elements.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from pipeline.ir.graph import TensorType
from pipeline.superopt.goal.term import Factor, Factors
from pipeline.superopt.spec import Apply, Number, Product, Reduction, Spec
from pipeline.verification.field_algebra import FieldAlgebra, FieldValue, Residues

Factored = Mapping[int, tuple[Factor, ...]]
ALONE, PART = 3, 2  # extents of a factor that is a whole axis, and of one of several


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """A value at the random point: one dimension for each of its factors, ascending."""

    data: FieldValue
    factors: tuple[Factor, ...]


@dataclass(slots=True)
class Point:
    """A random point: a value for each element of each input, and an algebra in which operators are evaluated there."""

    spec: Spec
    factored: Factored
    seed: int
    algebra: FieldAlgebra = field(init=False)
    _extents: dict[Factor, int] = field(init=False)
    _letters: dict[Factor, str] = field(init=False)
    _inputs: tuple[Sample, ...] = field(init=False)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        self.algebra = FieldAlgebra(rng, "selection")
        self._extents = {f: ALONE if len(parts) == 1 else PART for parts in self.factored.values() for f in parts}
        self._letters = {f: "abcdefghijklmnopqrstuvwxyz"[i] for i, f in enumerate(sorted(self._extents))}
        made = []
        for tensor in self.spec.inputs:
            factors = tuple(sorted(f for label in tensor.labels for f in self.factored[label]))
            shape = tuple(self._extents[f] for f in factors)
            made.append(Sample(self.algebra.draw(TensorType(shape, tensor.dtype)), factors))
        self._inputs = tuple(made)

    def leaf(self, number: int) -> Sample:
        return self._inputs[number]

    def number(self, value: float) -> Sample:
        return Sample(self.algebra.scalar(value), ())

    def apply(self, fn: str, *operands: Sample) -> Sample:
        factors = tuple(sorted({f for x in operands for f in x.factors}))
        arrays = [self._aligned(x, factors) for x in operands]
        return Sample(self.algebra.elementwise(fn, *arrays), factors)

    def reduce(self, kind: str, over: Factors, x: Sample) -> Sample:
        """Over factors that the value has."""
        kept = tuple(f for f in x.factors if f not in over)
        data = self.algebra.fold(kind, x.data, [i for i, f in enumerate(x.factors) if f in over])
        return Sample(self.algebra.reshape(data, tuple(self._extents[f] for f in kept)), kept)

    def contract(self, over: Factors, x: Sample, y: Sample) -> Sample:
        """The product summed over factors that both have."""
        kept = tuple(sorted(({*x.factors} | {*y.factors}) - over))
        names = ["".join(self._letters[f] for f in factors) for factors in (x.factors, y.factors, kept)]
        return Sample(self.algebra.contract(f"{names[0]},{names[1]}->{names[2]}", x.data, y.data), kept)

    def digest(self, x: Sample) -> bytes:
        """Of the elements and the factors."""
        found = hashlib.blake2b(repr(x.factors).encode(), digest_size=16)
        parts = (x.data.p, x.data.q) if isinstance(x.data, Residues) else (x.data,)
        shape = tuple(self._extents[f] for f in x.factors)
        for part in parts:
            found.update(b"-" if part is None else np.ascontiguousarray(np.broadcast_to(part, shape)).tobytes())
        return found.digest()

    def agrees(self, x: Sample, y: Sample) -> bool:
        """Whether two values are equal here; a part that is dead in one of them (after an exponential) says nothing."""
        if x.factors != y.factors:
            return False
        if not (isinstance(x.data, Residues) and isinstance(y.data, Residues)):
            return self.digest(x) == self.digest(y)
        both = x.data.q is not None and y.data.q is not None
        return np.array_equal(x.data.p, y.data.p) and (not both or np.array_equal(x.data.q, y.data.q))  # type: ignore[arg-type]

    def is_anywhere(self, x: Sample) -> bool:
        """Whether some element is not zero."""
        return bool(x.data.p.any() if isinstance(x.data, Residues) else x.data.any())

    def run(self) -> list[Sample]:
        """Every value of the specification: its inputs, then its nodes."""
        values = list(self._inputs)
        for node in self.spec.nodes:
            operands = [values[i] for i in node.inputs]
            match node.op:
                case Number(value):
                    values.append(self.number(value))
                case Apply(fn):
                    values.append(self.apply(fn, *operands))
                case Product(over):
                    values.append(self._summed_product(self._all(over), *operands))
                case Reduction(kind, over):
                    values.append(self.reduce(kind, self._all(over), operands[0]))
        return values

    def _all(self, labels: tuple[int, ...]) -> Factors:
        return frozenset(f for label in labels for f in self.factored[label])

    def _summed_product(self, over: Factors, x: Sample, y: Sample) -> Sample:
        both = over & {*x.factors} & {*y.factors}
        for own in (over - {*y.factors}, over - {*x.factors}):
            if own & {*x.factors}:
                x = self.reduce("sum", own, x)
            elif own & {*y.factors}:
                y = self.reduce("sum", own, y)
        return self.contract(frozenset(both), x, y)

    def _aligned(self, x: Sample, factors: tuple[Factor, ...]) -> FieldValue:
        if x.factors == factors:
            return x.data
        shape = tuple(self._extents[f] if f in x.factors else 1 for f in factors)
        return self.algebra.reshape(x.data, shape)
