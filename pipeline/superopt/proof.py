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


@dataclass(frozen=True, slots=True, eq=False)
class CounterExample:
    """A test that fails.

    seed      of the test: `np.random.default_rng(seed)` draws it again
    output    the number of the result, and the index of the element (empty where the shapes differ)
    expected  the residues modulo p and q; -1 where there is none
    witness   where floating point shows it too
    """

    seed: int
    output: int
    index: tuple[int, ...]
    expected: tuple[int, int]
    found: tuple[int, int]
    witness: Witness | None = None

    def __str__(self) -> str:
        place = f"output {self.output}{list(self.index)}, seed {self.seed}"
        text = f"{place}: {self.found} instead of {self.expected} modulo (p, q)"
        if self.witness is not None:
            text += f"; in float64 {self.witness.found:.6g} instead of {self.witness.expected:.6g}"
        return text


@dataclass(frozen=True, slots=True, eq=False)
class Proof:
    """The verdict.

    tests        that were passed, with independent inputs, ω and keys each
    bound        on the probability that one wrong element of the result passes all of them, under `assumptions`
    assumptions  what the bound rests on, beyond uniform draws; empty: the lemma of Schwartz and Zippel alone
    reason       why it is not provable
    """

    verdict: Verdict
    tests: int = 0
    bound: float = 1.0
    assumptions: tuple[str, ...] = ()
    counterexample: CounterExample | None = None
    reason: str = ""

    @property
    def equal(self) -> bool:
        return self.verdict == "equal"

    def __str__(self) -> str:
        match self.verdict:
            case "equal":
                text = f"equal: {self.tests} tests, error at most {self.bound:.2g} an element"
                return text + (f", assuming {'; '.join(self.assumptions)}" if self.assumptions else "")
            case "different":
                return f"different: {self.counterexample}"
            case _:
                return f"not provable: {self.reason}"
