"""Times from a formula instead of a clock: the same in every process, for tests and for runs that are to be repeated.

Its results are predictions: whoever stores them has to say so (`Record.predicted`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

from pipeline.codegen.kernel import Kernel
from pipeline.measurement.failure import Failure
from pipeline.measurement.protocol import Built, MeasureRequest, MeasureResult, Reference

Formula = Callable[[str], float | Failure]


def from_key(key: str) -> float:
    """Nanoseconds from the candidate's key alone: 10 us to 10 ms, spread evenly over the magnitudes."""
    digest = hashlib.sha256(key.encode()).digest()
    share = int.from_bytes(digest[:8], "little") / 2**64
    return float(round(10.0 ** (4 + 3 * share), 3))


class Simulated:
    """Builder and runner in one. Nothing is built, run or checked.

    formula  the candidate's key -> nanoseconds, or the failure that it is to have
    """

    def __init__(self, formula: Formula = from_key) -> None:
        self._formula = formula

    def build(self, requests: Sequence[MeasureRequest]) -> list[Built]:
        return [Built(request.key, Kernel("simulated", None, b"", (), 1, False)) for request in requests]

    def run(self, built: Sequence[Built], reference: Reference, best_ns: float | None = None) -> list[MeasureResult]:
        return [self._result(each, 1) for each in built]

    def remeasure(
        self, built: Sequence[Built], reference: Reference, rounds: int, *, cold: bool = False
    ) -> list[MeasureResult]:
        return [self._result(each, rounds) for each in built]

    def close(self) -> None:
        """Nothing to end."""

    def _result(self, built: Built, samples: int) -> MeasureResult:
        outcome = built.outcome if isinstance(built.outcome, Failure) else self._formula(built.key)
        if isinstance(outcome, Failure):
            return MeasureResult(built.key, failure=outcome, predicted=True)
        return MeasureResult(built.key, samples_ns=(outcome,) * samples, predicted=True)
