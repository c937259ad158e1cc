"""How far an output is from its reference, and whether that is near enough."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Agreement:
    """max_absolute   largest |got - want| among elements where both are finite
    max_relative   largest |got - want| / |want|, there too
    tolerance      what was allowed where the ratio of difference to tolerance is largest
    wrong          where and by how much the output is wrong; empty where it is right
    """

    max_absolute: float
    max_relative: float
    tolerance: float
    wrong: str


def agreement(name: str, got: np.ndarray, want: np.ndarray, tolerance: np.ndarray) -> Agreement:
    """Right where every |got - want| <= tolerance; NaN matches NaN only, and an infinity itself only."""
    if got.size == 0:
        return Agreement(0.0, 0.0, 0.0, "")
    allowed = np.broadcast_to(tolerance, got.shape)
    if want.dtype.kind in "iub":
        # Exact: 64-bit integers do not fit into float64.
        same = got == want
        low = np.minimum(got, want).astype(np.float64)
        difference = np.where(same, 0.0, np.maximum(got, want).astype(np.float64) - low)
        difference = np.where(~same & (difference == 0), 1.0, difference)
        finite = np.ones(got.shape, bool)
    else:
        wide = got.astype(np.float64)
        with np.errstate(all="ignore"):
            difference = np.abs(wide - want)
        same = (wide == want) | (np.isnan(wide) & np.isnan(want))
        difference = np.where(same, 0.0, difference)
        finite = np.isfinite(wide) & np.isfinite(want)
    # An infinity or NaN against anything else is wrong, whatever the tolerance.
    bad = ~(difference <= allowed) | (~finite & ~same)
    absolute = float(np.max(difference, where=finite, initial=0.0))
    size = np.abs(want.astype(np.float64))
    with np.errstate(all="ignore"):
        relative = float(np.max(np.where(size > 0, difference / size, 0.0), where=finite, initial=0.0))
        excess = np.where(same, 0.0, np.where(finite, difference / allowed, np.inf))
        excess = np.where(np.isnan(excess), np.inf, excess)
    worst = np.unravel_index(int(np.argmax(excess)), got.shape)
    limit = float(allowed[worst])
    if not bad.any():
        return Agreement(absolute, relative, limit, "")
    place = ", ".join(str(int(i)) for i in worst)
    count = int(np.count_nonzero(bad))
    return Agreement(
        absolute,
        relative,
        limit,
        f"{name}[{place}] is {got[worst]!s}, not {want[worst]!s} (tolerance {limit:.3g}); "
        f"{count:,} of {got.size:,} elements are wrong",
    )
