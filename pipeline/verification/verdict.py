"""The comparison of what a program gave with what it had to give."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipeline.verification.tolerance import Reference

_PIECE = 1 << 15  # elements that are judged at a time: what is made of them stays in the caches


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether every element is within its bound.

    max_absolute  largest error of an element, those left aside excepted
    max_relative  the same over the largest finite magnitude of the output
    tolerance     the bound of the element with that error
    worst         index of the element whose error is the largest share of its bound
    share         that share: above 1 is wrong
    unstable      part of the elements that were left aside, since rounding may change them to anything
    reason        what is wrong; empty when all is right
    """

    ok: bool
    max_absolute: float
    max_relative: float
    tolerance: float
    worst: tuple[int, ...]
    share: float
    unstable: float
    reason: str = ""


def compare(got: np.ndarray, want: np.ndarray | Reference, bound: np.ndarray | None = None) -> Verdict:
    """Judges `got` by exact values and their bounds (a `Reference` holds both). Integers and bools must be equal.

    Where the exact value is not finite, `got` has to be the same infinity, or a NaN for a NaN (any sign, any payload).
    """
    if isinstance(want, Reference):
        return compare(got, want.value, want.bound)
    bound = np.broadcast_to(np.zeros(()) if bound is None else bound, want.shape)
    if got.shape != want.shape:
        return _refused(f"the shape is {list(got.shape)} and {list(want.shape)} is right")
    if (got.dtype.kind in "iub") != (want.dtype.kind in "iub"):
        return _refused(f"the dtype is {got.dtype} and {want.dtype} is right")
    if want.size == 0:
        return Verdict(True, 0.0, 0.0, 0.0, (), 0.0, 0.0)
    flat = tuple(np.ascontiguousarray(each).reshape(-1) for each in (got, want))
    bounds = bound.reshape(-1) if bound.flags.c_contiguous else np.ascontiguousarray(bound).reshape(-1)
    judged = _exact if want.dtype.kind in "iub" else _near
    found = _Extremes()
    for start in range(0, want.size, _PIECE):
        given, exact, limit = (each[start : start + _PIECE] for each in (*flat, bounds))
        found.take(start, *judged(given, exact, limit), _magnitude(exact))
    worst = np.unravel_index(found.worst, want.shape)
    index = tuple(int(i) for i in worst)
    ok = found.share <= 1.0
    tolerance = float(bounds[found.farthest])
    reason = "" if ok else f"element {list(index)} is {got[worst]!s} and {want[worst]!s} ± {bound[worst]:.3g} is right"
    relative = found.distance / found.largest if found.largest else found.distance
    return Verdict(ok, found.distance, relative, tolerance, index, found.share, found.aside / want.size, reason)


@dataclass(slots=True)
class _Extremes:
    """What has been found in the pieces so far, with the places of the elements in the whole."""

    share: float = -1.0
    worst: int = 0
    distance: float = -1.0
    farthest: int = 0
    largest: float = 0.0
    aside: int = 0

    def take(self, start: int, distance: np.ndarray, share: np.ndarray, aside: int, largest: float) -> None:
        worst, farthest = int(np.argmax(share)), int(np.argmax(distance))
        if share[worst] > self.share:
            self.share, self.worst = float(share[worst]), start + worst
        if distance[farthest] > self.distance:
            self.distance, self.farthest = float(distance[farthest]), start + farthest
        self.aside += aside
        self.largest = max(self.largest, largest)


def _magnitude(exact: np.ndarray) -> float:
    """The largest finite one."""
    largest = float(np.max(np.abs(exact.astype(np.float64))))
    if np.isfinite(largest):
        return largest
    return float(np.abs(exact[np.isfinite(exact)].astype(np.float64)).max(initial=0.0))


def _exact(given: np.ndarray, exact: np.ndarray, bound: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    """Of integers and bools, each: the distance, its share of the bound; and how many are left aside."""
    aside = np.isinf(bound) if exact.dtype.kind != "b" else bound > 0
    wrong = (given != exact) & ~aside
    distance = np.where(wrong, np.abs(given.astype(np.float64) - exact.astype(np.float64)), 0.0)
    return distance, np.where(wrong, np.inf, 0.0), int(np.count_nonzero(aside))


def _near(given: np.ndarray, exact: np.ndarray, bound: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    """The same of floats."""
    given, exact = given.astype(np.float64), exact.astype(np.float64, copy=False)
    with np.errstate(all="ignore"):
        distance = np.abs(given - exact)
        share = distance / bound
        if np.isfinite(share).all() and np.isfinite(bound).all():  # then all is finite: nothing is special
            return distance, share, 0
        aside = np.isinf(bound)
        finite = np.isfinite(exact)
        same_kind = np.where(finite, np.isfinite(given), np.where(np.isnan(exact), np.isnan(given), given == exact))
        distance = np.where(finite & same_kind & ~aside, distance, 0.0)
        share = np.where(distance == 0, 0.0, distance / bound)
    return distance, np.where(same_kind | aside, share, np.inf), int(np.count_nonzero(aside))


def _refused(reason: str) -> Verdict:
    return Verdict(False, float("inf"), float("inf"), 0.0, (), float("inf"), 0.0, reason)
