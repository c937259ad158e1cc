"""The verdict on a µGraph: equal, different, or not provable, each with what it rests on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

Verdict = Literal["equal", "different", "not provable"]


@dataclass(frozen=True, slots=True, eq=False)
class Witness:
    """Inputs for which the float64 interpreter differs: what it gives at the index where it does so most."""

    feeds: Mapping[str, np.ndarray]
    expected: float
    found: float


@dataclass(frozen=True, slots=True)
class ResiduePair:
    """What a test finds modulo p and q; -1 where a part is lost.

    seed  of the test: `np.random.default_rng(seed)` draws it again
    """

    seed: int
    expected: tuple[int, int]
    found: tuple[int, int]

    def __str__(self) -> str:
        return f"seed {self.seed}: {self.found} instead of {self.expected} modulo (p, q)"


@dataclass(frozen=True, slots=True, eq=False)
class CounterExample:
    """A place in which the results differ.

    output    the number of the result, and the index of the element (empty where the shapes differ)
    residues  what was found there, in the test that failed
    witness   inputs for which floating point shows a difference, be it elsewhere
    """

    output: int
    index: tuple[int, ...]
    residues: ResiduePair | None
    witness: Witness | None = None

    def __str__(self) -> str:
        if self.residues is None and self.witness is None:
            return f"output {self.output} has another shape"
        parts = [f"output {self.output}{list(self.index) if self.index else ''}"]
        parts += [] if self.residues is None else [str(self.residues)]
        if self.witness is not None:
            parts.append(f"in float64 {self.witness.found:.6g} instead of {self.witness.expected:.6g}")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True, eq=False)
class Proof:
    """The verdict.

    tests        that were passed, with independent inputs, ω and keys each
    bound        on the probability that one wrong element of the result passes all of them, under `assumptions`:
                 (degree / q)^tests
    degree       of the difference of the two programs, cleared of denominators
    assumptions  what the bound rests on, beyond uniform draws; empty: the lemma of Schwartz and Zippel alone
    reason       why it is not provable
    """

    verdict: Verdict
    tests: int = 0
    bound: float = 1.0
    degree: int = 0
    assumptions: tuple[str, ...] = ()
    counterexample: CounterExample | None = None
    reason: str = ""

    @property
    def equal(self) -> bool:
        return self.verdict == "equal"

    def __str__(self) -> str:
        match self.verdict:
            case "equal":
                text = f"equal: {self.tests} tests of degree {self.degree}, error at most {self.bound:.2g} an element"
                return text + (f", assuming that {'; '.join(self.assumptions)}" if self.assumptions else "")
            case "different":
                return f"different: {self.counterexample}"
            case _:
                return f"not provable: {self.reason}"
