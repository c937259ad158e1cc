"""The comparison of what a program gave with what it had to give."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipeline.verification.tolerance import Reference


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
    bound = np.zeros(want.shape) if bound is None else np.broadcast_to(bound, want.shape)
    if got.shape != want.shape:
        return _refused(f"the shape is {list(got.shape)} and {list(want.shape)} is right")
    if (got.dtype.kind in "iub") != (want.dtype.kind in "iub"):
        return _refused(f"the dtype is {got.dtype} and {want.dtype} is right")
    if want.size == 0:
        return Verdict(True, 0.0, 0.0, 0.0, (), 0.0, 0.0)
    aside = np.isinf(bound) if want.dtype.kind not in "b" else bound > 0
    unstable = float(np.mean(aside))
    if want.dtype.kind in "iub":
        wrong = (got != want) & ~aside
        distance = np.where(wrong, np.abs(got.astype(np.float64) - want.astype(np.float64)), 0.0)
        share = np.where(wrong, np.inf, 0.0)
    else:
        given, exact = got.astype(np.float64), want.astype(np.float64)
        finite = np.isfinite(exact)
        with np.errstate(all="ignore"):
            same_kind = np.where(finite, np.isfinite(given), np.where(np.isnan(exact), np.isnan(given), given == exact))
            distance = np.where(finite & same_kind & ~aside, np.abs(given - exact), 0.0)
            share = np.where(distance == 0, 0.0, distance / bound)
        share = np.where(same_kind | aside, share, np.inf)
    worst = np.unravel_index(int(np.argmax(share)), want.shape)
    index = tuple(int(i) for i in worst)
    ok = bool(share[worst] <= 1.0)
    farthest = np.unravel_index(int(np.argmax(distance)), want.shape)
    absolute, tolerance = float(distance[farthest]), float(bound[farthest])
    sizes = np.abs(want[np.isfinite(want)].astype(np.float64))
    largest = float(sizes.max(initial=0.0))
    reason = "" if ok else f"element {list(index)} is {got[worst]!s} and {want[worst]!s} ± {bound[worst]:.3g} is right"
    relative = absolute / largest if largest else absolute
    return Verdict(ok, absolute, relative, tolerance, index, float(share[worst]), unstable, reason)


def _refused(reason: str) -> Verdict:
    return Verdict(False, float("inf"), float("inf"), 0.0, (), float("inf"), 0.0, reason)
