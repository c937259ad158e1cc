"""The search as a stage asks for it: axioms that hold, a finding within so many seconds, and a name for all that."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np

from pipeline.errors import CheckError, ConfigError
from pipeline.ir.axiom import Axiom
from pipeline.ir.target import Target
from pipeline.superopt.enumeration.finding import Finding
from pipeline.superopt.enumeration.search import superoptimize
from pipeline.superopt.goal.axiom_check import check_axiom
from pipeline.superopt.goal.goal import Goal
from pipeline.superopt.many_cores import many_cores
from pipeline.superopt.spec import Spec

ROOMS = ("enumeration", "goal", "mugraph", "proof")


class Algebra(Protocol):
    """What the search may use of algebra to prune."""

    @property
    def axioms(self) -> Iterable[Axiom]: ...


@dataclass(frozen=True, slots=True)
class Searching:
    """Searches specifications for µGraphs that are fast on the target; `tests` is what each of them must pass.

    patience   assignments of roles without progress, after which a search ends; None: it does not
    """

    target: Target
    axioms: tuple[Axiom, ...]
    seed: int
    workers: int
    tests: int
    patience: int | None = None

    @staticmethod
    def of(algebra: Algebra, target: Target, *, seed: int, workers: int, tests: int,
           patience: int | None = None) -> Searching:  # fmt: skip
        """ConfigError for an axiom that does not hold or that nothing can be done with."""
        axioms = tuple(algebra.axioms)
        rng = np.random.default_rng(seed)
        for axiom in axioms:
            try:
                check_axiom(axiom, rng)
            except CheckError as error:
                raise ConfigError(error.what, where=error.where, why=error.why, todo=error.todo) from error
        Goal(lambda goal: goal.number(1.0) or 0, axioms)  # says which axiom it cannot use
        return Searching(target, axioms, seed, workers, tests, patience)

    def __call__(self, spec: Spec, seconds: float) -> Finding:
        return Finding.of(superoptimize(
            spec, many_cores(self.target), seconds=seconds, seed=self.seed, workers=self.workers,
            goals=partial(Goal.of, axioms=self.axioms), tests=self.tests, patience=self.patience,
        ))  # fmt: skip

    @property
    def version(self) -> str:
        """Of everything but the specification, the machine and the time that decides over what is found."""
        code = hashlib.sha256()
        here = Path(__file__).resolve().parents[1]
        for room in ROOMS:  # other code may find other programs
            for path in sorted((here / room).glob("*.py")):
                code.update(path.read_bytes())
        return f"{code.hexdigest()} seed {self.seed} tests {self.tests} patience {self.patience} axioms {self.axioms}"
