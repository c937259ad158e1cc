"""Rounding: the unit roundoff and range of each dtype, and how the errors of a long sum are bounded.

A sum of n rounded terms is off by at most n u Σ|x| in the worst case. Errors of that size do not happen: rounding
errors are as good as independent with mean zero, and then the error stays below λ √n u Σ|x| except with probability
about 2 exp(-λ²/2) for each sum (Higham and Mary, A New Approach to Probabilistic Rounding Error Analysis, SIAM J. Sci.
Comput. 41(5), 2019). That theory lets every error be as large as u; rounding errors are spread evenly below u, so in
practice λ = 6 is about ten standard deviations. Where n is so small that the worst case is smaller, that is used.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipeline.ir.graph import DType

CONFIDENCE = 6.0
BASIC_ULPS = (
    2.0  # add, subtract, multiply, divide, square root: half an ulp each, and some slack for a product in between
)
MATH_ULPS = 4.0  # exp, tanh, …: generated code promises 2, and other runtimes that vote deserve as much again


@dataclass(frozen=True, slots=True)
class Format:
    """A floating-point format: unit roundoff u, largest finite value, smallest normal and subnormal value."""

    unit: float
    largest: float
    normal: float
    subnormal: float


_FORMATS: dict[DType, Format] = {
    "float64": Format(2.0**-53, float(np.finfo(np.float64).max), 2.0**-1022, 5e-324),
    "float32": Format(2.0**-24, float(np.finfo(np.float32).max), 2.0**-126, 2.0**-149),
    "float16": Format(2.0**-11, 65504.0, 2.0**-14, 2.0**-24),
    "bfloat16": Format(2.0**-8, float.fromhex("0x1.fep127"), 2.0**-126, 2.0**-133),
}


def format_of(dtype: DType) -> Format | None:
    """None for integers and bools, which are exact."""
    return _FORMATS.get(dtype)


def accumulator(dtype: DType) -> Format:
    """What sums of that dtype are kept in: float32 for halves."""
    return _FORMATS["float64" if dtype == "float64" else "float32"]


def sum_factor(terms: int) -> float:
    """What to multiply u Σ|x| by for the error of a sum of that many terms, each maybe a rounded product."""
    return min(terms + 1.0, CONFIDENCE * float(np.sqrt(terms)))
