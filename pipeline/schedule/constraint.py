"""Constraints: named predicates over the parameters, evaluated for all candidates at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.ir.poly import Poly

Environment = Mapping[str, NDArray[np.int64]]  # one array per symbol, one entry per candidate


@dataclass(frozen=True, slots=True)
class AtMost:
    """poly <= limit."""

    name: str
    poly: Poly
    limit: int

    def holds(self, values: Environment) -> NDArray[np.bool_]:
        # In float64: a product of many parameters may pass 2^63, and wrong by one in 2^53 is right enough for a limit.
        reals: dict[str, Any] = {symbol: values[symbol].astype(np.float64) for symbol in self.poly.symbols()}
        return np.asarray(self.poly.evaluate(reals) <= self.limit)

    def symbols(self) -> frozenset[str]:
        return self.poly.symbols()


@dataclass(frozen=True, slots=True)
class Divides:
    """divisor divides number."""

    name: str
    divisor: Poly
    number: int

    def holds(self, values: Environment) -> NDArray[np.bool_]:
        divisor = np.asarray(self.divisor.evaluate(values))
        return np.asarray((divisor > 0) & (self.number % np.maximum(divisor, 1) == 0))

    def symbols(self) -> frozenset[str]:
        return self.divisor.symbols()


@dataclass(frozen=True, slots=True)
class MultipleOf:
    """poly is a multiple of k."""

    name: str
    poly: Poly
    k: int

    def holds(self, values: Environment) -> NDArray[np.bool_]:
        return np.asarray(np.asarray(self.poly.evaluate(values)) % self.k == 0)

    def symbols(self) -> frozenset[str]:
        return self.poly.symbols()


Constraint = AtMost | Divides | MultipleOf
CONSTRAINTS: dict[str, type] = {"AtMost": AtMost, "Divides": Divides, "MultipleOf": MultipleOf}
