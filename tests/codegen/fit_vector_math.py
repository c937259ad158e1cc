"""Derives the coefficients of the vector math functions; run by hand.

Each polynomial is the weighted least-squares fit at Chebyshev points, in 50 digits, which is within a bit of the
minimax one. Its coefficients are rounded to the working precision one at a time, lowest power first, and the rest is
fitted again after each.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

import mpmath as mp

mp.mp.dps = 50
Function = Callable[[mp.mpf], mp.mpf]


@dataclass(frozen=True, slots=True)
class Fit:
    """sum_k c_k x^k ~ function(x) on [low, high]; |error| * weight(x) is the relative error of the final result."""

    name: str
    function: Function
    weight: Function
    low: mp.mpf
    high: mp.mpf
    degree: int
    double: bool = False


def _round(value: mp.mpf, double: bool) -> float:
    return float(value) if double else struct.unpack("f", struct.pack("f", float(value)))[0]


def _least_squares(target: Function, weight: Function, powers: range, points: list[mp.mpf]) -> list[mp.mpf]:
    size = len(powers)
    matrix, right = mp.matrix(size, size), mp.matrix(size, 1)
    for x in points:
        w, f = weight(x), target(x)
        row = [w * x**p for p in powers]
        for i in range(size):
            right[i] += row[i] * w * f
            for j in range(size):
                matrix[i, j] += row[i] * row[j]
    solution = mp.lu_solve(matrix, right)
    return [solution[i] for i in range(size)]


def fit(what: Fit) -> tuple[list[float], mp.mpf]:
    middle, half = (what.low + what.high) / 2, (what.high - what.low) / 2
    points = [middle - half * mp.cos(mp.pi * (i + mp.mpf("0.5")) / 120) for i in range(120)]
    fixed: list[float] = []
    for k in range(what.degree + 1):

        def rest(x: mp.mpf, fixed: list[float] = fixed) -> mp.mpf:
            return what.function(x) - mp.fsum(mp.mpf(c) * x**i for i, c in enumerate(fixed))

        fitted = _least_squares(rest, what.weight, range(k, what.degree + 1), points)
        fixed = [*fixed, _round(fitted[0], what.double)]
    grid = [what.low + (what.high - what.low) * i / 1000 for i in range(1001)]
    worst = max(
        abs(what.function(x) - mp.fsum(mp.mpf(c) * x**i for i, c in enumerate(fixed))) * what.weight(x) for x in grid
    )
    return fixed, worst


def _taylor(function: Function, near: mp.mpf) -> Function:
    """`function`, and its value a little away where it is 0/0."""
    return lambda x: function(x if abs(x) > near else near)


_NEAR = mp.mpf("1e-12")
_SQ = mp.sqrt


def _g(t: mp.mpf) -> mp.mpf:
    return -mp.log(mp.erfc(t))


FITS = (
    Fit("EXP", _taylor(lambda r: (mp.exp(r) - 1 - r) / r**2, _NEAR), lambda r: r**2 / mp.exp(r),
        mp.mpf("-0.3475"), mp.mpf("0.3475"), 4),
    Fit("LOG", _taylor(lambda f: (mp.log1p(f) - f + f**2 / 2) / f**3, _NEAR),
        _taylor(lambda f: abs(f**3 / mp.log1p(f)), _NEAR), _SQ(mp.mpf(1) / 2) - 1, _SQ(mp.mpf(2)) - 1, 8),
    Fit("TANH", _taylor(lambda z: (mp.tanh(_SQ(z)) - _SQ(z)) / _SQ(z) ** 3, _NEAR),
        _taylor(lambda z: _SQ(z) ** 3 / mp.tanh(_SQ(z)), _NEAR), mp.mpf(0), mp.mpf("0.625") ** 2, 4),
    Fit("ERF_SMALL", _taylor(lambda z: mp.erf(_SQ(z)) / _SQ(z) - 1, _NEAR),
        _taylor(lambda z: _SQ(z) / mp.erf(_SQ(z)), _NEAR), mp.mpf(0), mp.mpf("0.9375") ** 2, 6),
    Fit("ERF_LARGE", _g, lambda t: mp.erfc(t) / mp.erf(t), mp.mpf("0.9375"), mp.mpf("4.0"), 6),
    Fit("WIDE_EXP", mp.exp, lambda r: 1 / mp.exp(r), mp.mpf("-0.3475"), mp.mpf("0.3475"), 11, True),
    Fit("WIDE_LOG", _taylor(lambda z: (2 * mp.atanh(_SQ(z)) - 2 * _SQ(z)) / _SQ(z) ** 3, _NEAR),
        lambda z: z / 2, mp.mpf(0), mp.mpf("0.02955"), 7, True),
    Fit("WIDE_SIN", _taylor(lambda z: (mp.sin(_SQ(z)) - _SQ(z)) / _SQ(z) ** 3, _NEAR), lambda z: z,
        mp.mpf(0), mp.mpf("0.618"), 4, True),
    Fit("WIDE_COS", _taylor(lambda z: (mp.cos(_SQ(z)) - 1 + z / 2) / z**2, mp.mpf("1e-10")), lambda z: z**2,
        mp.mpf(0), mp.mpf("0.618"), 4, True),
    Fit("WIDE_ASIN", _taylor(lambda z: (mp.asin(_SQ(z)) - _SQ(z)) / _SQ(z) ** 3, _NEAR), lambda z: z,
        mp.mpf(0), mp.mpf("0.2501"), 9, True),
    Fit("WIDE_ATAN", _taylor(lambda z: (mp.atan(_SQ(z)) - _SQ(z)) / _SQ(z) ** 3, _NEAR),
        lambda z: z, mp.mpf(0), mp.mpf(1), 12, True),
)  # fmt: skip

if __name__ == "__main__":
    for what in FITS:
        coefficients, worst = fit(what)
        print(f"# Relative error 2^{float(mp.log(worst, 2)):.1f} on [{float(what.low):.4g}, {float(what.high):.4g}].")
        print(f"{what.name} = (")
        for c in coefficients:
            print(f"    {c!r},")
        print(")")
