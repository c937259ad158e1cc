"""The parameter space of a sketch: valid candidates as rows of an integer matrix."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import StepError
from pipeline.ir.program import Derived
from pipeline.schedule.constraint import AtMost, Constraint
from pipeline.schedule.sketch import Sketch
from pipeline.schedule.variables import Rows, Variable

ROUNDS = 64  # rounds of drawing and repairing before a space counts as empty


@dataclass(frozen=True, eq=False)
class ParameterSpace:
    """The columns of the matrix are the symbols of the variables, in order; a valid row satisfies every constraint."""

    name: str
    variables: tuple[Variable, ...]
    constraints: tuple[Constraint, ...]
    derived: tuple[Derived, ...]

    @staticmethod
    def of(sketch: Sketch) -> ParameterSpace:
        return ParameterSpace(sketch.program.name, sketch.variables, sketch.constraints, sketch.program.derived)

    @cached_property
    def columns(self) -> tuple[str, ...]:
        return tuple(symbol for variable in self.variables for symbol in variable.symbols)

    @cached_property
    def _spans(self) -> tuple[slice, ...]:
        """The columns of each variable."""
        ends = np.cumsum([len(variable.symbols) for variable in self.variables], dtype=np.int64).tolist()
        return tuple(slice(start, end) for start, end in zip([0, *ends], ends, strict=False))

    def differing(self, one: tuple[int, ...], other: tuple[int, ...]) -> int:
        """By how many variables two rows differ."""
        return sum(one[span] != other[span] for span in self._spans)

    def environment(self, rows: Rows, dtype: Any = np.int64) -> dict[str, NDArray[Any]]:
        """The values of every symbol, derived ones included: one array each, one entry per row."""
        values: dict[str, NDArray[Any]] = {symbol: rows[:, i].astype(dtype) for i, symbol in enumerate(self.columns)}
        whole = np.zeros(len(rows), np.int64)
        numbers: dict[str, NDArray[Any]] = {symbol: rows[:, i] for i, symbol in enumerate(self.columns)}
        for new in self.derived:
            number = -(-new.numerator.evaluate(numbers) // new.denominator.evaluate(numbers)) + whole
            numbers[new.name], values[new.name] = number, number.astype(dtype)
        return values

    def values(self, row: Rows) -> dict[str, int]:
        """One value for each parameter, as `instantiate` wants them."""
        return {symbol: int(value) for symbol, value in zip(self.columns, row, strict=True)}

    def valid(self, rows: Rows) -> NDArray[np.bool_]:
        """Which rows satisfy every constraint."""
        mask = np.ones(len(rows), np.bool_)
        if not self.constraints or not len(rows):
            return mask
        values = self.environment(rows)
        for constraint in self.constraints:
            mask &= constraint.holds(values)
        return mask

    def draw(self, n: int, rng: np.random.Generator) -> Rows:
        """n valid rows (not always different ones); StepError where there seem to be none."""
        kept = np.empty((0, len(self.columns)), np.int64)
        for _ in range(ROUNDS):
            rows = self._draw(max(2 * (n - len(kept)), 32), rng)
            kept = np.concatenate([kept, self._made_valid(rows, rng)])
            if len(kept) >= n:
                return kept[:n]
        if len(kept):
            return kept[rng.integers(len(kept), size=n)]
        raise StepError("the parameter space is empty", where=self.name, why=self._complaint(rng),
                        todo="Loosen a constraint or allow smaller tiles")  # fmt: skip

    def _draw(self, n: int, rng: np.random.Generator) -> Rows:
        parts = [variable.draw(n, rng) for variable in self.variables]
        return np.concatenate(parts, axis=1) if parts else np.empty((n, 0), np.int64)

    def _made_valid(self, rows: Rows, rng: np.random.Generator) -> Rows:
        """The rows that are valid, and those of the others that become so when columns of a broken limit shrink."""
        good = self.valid(rows)
        kept, rows = [rows[good]], rows[~good]
        for _ in range(2 * ROUNDS):
            if not len(rows):
                break
            smaller = self._shrunk(rows, rng)
            good = self.valid(smaller)
            moved = (smaller != rows).any(axis=1)
            kept.append(smaller[good])
            rows = smaller[~good & moved]
        return np.concatenate(kept)

    def _shrunk(self, rows: Rows, rng: np.random.Generator) -> Rows:
        """Each row with one column of one limit that it breaks made smaller."""
        values = self.environment(rows)
        rows = rows.copy()
        todo = np.ones(len(rows), np.bool_)
        for constraint in self.constraints:
            if not isinstance(constraint, AtMost):
                continue
            broken = todo & ~constraint.holds(values)
            if not broken.any():
                continue
            todo &= ~broken
            where = np.flatnonzero(broken)
            reach = self._reach(constraint)
            if not reach:
                continue
            # Larger factors first, with chance: halving them is what brings the limit nearest.
            weights = np.log(np.maximum(rows[where][:, reach], 1)) + rng.random((len(where), len(reach)))
            picked = np.array(reach, np.int64)[weights.argmax(axis=1)]
            for column in sorted(set(picked.tolist())):
                chosen = where[picked == column]
                for variable, span in zip(self.variables, self._spans, strict=True):
                    if span.start <= column < span.stop:
                        rows[chosen, span] = variable.shrink(rows[chosen, span], column - span.start)
        return rows

    def _reach(self, constraint: AtMost) -> list[int]:
        """The columns whose symbols a limit speaks of, directly."""
        symbols = constraint.symbols()
        return [i for i, symbol in enumerate(self.columns) if symbol in symbols]

    def _complaint(self, rng: np.random.Generator) -> str:
        rows = self._draw(1024, rng)
        values = self.environment(rows)
        parts = [f"{c.name} holds for {int(c.holds(values).sum())}" for c in self.constraints]
        return f"of {len(rows)} drawn rows " + ", ".join(parts)

    def mutate(self, rows: Rows, rng: np.random.Generator) -> Rows:
        """Valid rows, each with one variable changed; a row stays as it is where no valid change was found."""
        result = rows.copy()
        todo = np.arange(len(rows) if self.variables else 0)
        for _ in range(8):
            if not len(todo):
                break
            trial = rows[todo]
            pick = rng.integers(len(self.variables), size=len(todo))
            for number, (variable, span) in enumerate(zip(self.variables, self._spans, strict=True)):
                chosen = pick == number
                if chosen.any():
                    trial[chosen, span] = variable.mutate(trial[chosen][:, span], rng)
            good = self.valid(trial) & (trial != rows[todo]).any(axis=1)
            result[todo[good]] = trial[good]
            todo = todo[~good]
        return result

    def crossover(self, a: Rows, b: Rows, rng: np.random.Generator) -> Rows:
        """Valid rows that take each variable from one of two parents; a row of `a` where no valid mixture was found."""
        assert a.shape == b.shape, f"parents of shapes {a.shape} and {b.shape}"
        result = a.copy()
        todo = np.arange(len(a))
        for _ in range(4):
            if not len(todo):
                break
            trial = a[todo]
            for span in self._spans:
                other = rng.random(len(todo)) < 0.5
                trial[other, span] = b[todo[other], span]
            good = self.valid(trial)
            result[todo[good]] = trial[good]
            todo = todo[~good]
        return result

    def neighbours(self, row: Rows) -> Rows:
        """The valid rows that differ from one in a single variable, by a little."""
        found = []
        for variable, span in zip(self.variables, self._spans, strict=True):
            near = variable.neighbours(row[span])
            rows = np.repeat(row[None, :], len(near), axis=0)
            rows[:, span] = near
            found.append(rows)
        rows = np.concatenate(found) if found else np.empty((0, len(row)), np.int64)
        return rows[self.valid(rows)]

    def repair(self, rows: Rows) -> Rows:
        """The nearest rows that every variable allows (constraints are not looked at)."""
        parts = [variable.repair(rows[:, span]) for variable, span in zip(self.variables, self._spans, strict=True)]
        return np.concatenate(parts, axis=1) if parts else rows

    def bounds(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Smallest and largest value of each column."""
        pairs = [variable.bounds() for variable in self.variables]
        low, high = [low for low, _ in pairs], [high for _, high in pairs]
        return np.concatenate([np.empty(0), *low]), np.concatenate([np.empty(0), *high])

    def unique(self, rows: Rows) -> Rows:
        """Different rows, in the order of their first appearance."""
        _, first = np.unique(rows, axis=0, return_index=True)
        return rows[np.sort(first)]
