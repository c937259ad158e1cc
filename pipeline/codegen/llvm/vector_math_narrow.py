"""Elementwise functions in float32 arithmetic alone, at most 2 ulp from the truth: those that networks spend time in.

Reductions in the manner of the Cephes library (S. Moshier): e^x = 2^n e^r with |r| <= ln 2 / 2; log x = e ln 2 + log m
with m in [sqrt 1/2, sqrt 2); tanh and erf by an odd polynomial near 0 and by e^x elsewhere. The polynomials are ours.
"""

from __future__ import annotations

import math

from pipeline.codegen.llvm.vector_math_body import Value
from pipeline.codegen.llvm.vector_math_coefficients import ERF_LARGE, ERF_SMALL, EXP, LOG, TANH

# ln 2 as the sum of two float32: n * _LN2_HIGH is subtracted exactly by a fused multiply-add.
_LN2_HIGH = 0.693147182464599609375
_LN2_LOW = math.log(2) - _LN2_HIGH
_LOG2_E = 1 / math.log(2)
# Adding 1.5 * 2^23 leaves the nearest integer in the low bits of the sum: no conversion that is undefined out of range.
_ROUND = 12582912.0
# A power of e for which AVX-512's scaling gives 0 at once; of 2^-300 it still takes its time.
_FAR_BELOW = -(2.0**20)


def exp(x: Value) -> Value:
    # Above 89 the result is infinite, below -104 it is 0. A product that underflows to 0 takes some 200 cycles on
    # processors by Intel, which half of a causal softmax would wait for: so nothing underflows there on the way.
    nothing, bounded = x.lt(-104.0), x.at_most(89.0)
    if x.body.scalef:
        shifted, mantissa = _exp_parts(nothing.select(_FAR_BELOW, bounded))
        return _scalef(mantissa, shifted)
    shifted, mantissa = _exp_parts(nothing.select(-104.0, bounded))  # n stays within what two scales can hold
    # Two steps, so that neither scale overflows and a denormal result is rounded once.
    power = shifted.bits()
    half = power >> 1
    return mantissa * _scale(half) * nothing.select(0.0, _scale(power - half))


def log(x: Value) -> Value:
    tiny = x.lt(2.0**-126)
    bits = tiny.select(x * 2.0**23, x).bits()
    exponent = (bits - 0x3F3504F3) >> 23
    f = (bits - (exponent << 23)).from_bits() - 1.0
    e = tiny.select(exponent - 23, exponent).to_float()
    # log(1 + f) = f - f^2/2 + f^3 LOG(f)
    tail = f * f * f.fma(f.polynomial(LOG), -0.5)
    result = e.fma(_LN2_HIGH, f + e.fma(_LN2_LOW, tail))
    result = x.lt(math.inf).select(result, x)  # Infinity and NaN.
    result = x.lt(0.0).select(math.nan, result)
    return x.eq(0.0).select(-math.inf, result)


def tanh(x: Value) -> Value:
    a = x.absolute()
    square = x * x
    near = a.fma(square * square.polynomial(TANH), a)
    # From 9.02 on the result is 1.
    far = 1.0 - 2.0 / (_exp_small(a.at_most(10.0) * 2.0) + 1.0)
    return a.lt(0.625).select(near, far).with_sign_of(x)


def erf(x: Value) -> Value:
    a = x.absolute()
    near = a.fma((a * a).polynomial(ERF_SMALL), a)
    # ERF_LARGE(a) = -log(erfc a). From 3.92 on the result is 1.
    far = 1.0 - _exp_small(-a.at_most(4.0).polynomial(ERF_LARGE))
    return a.lt(0.9375).select(near, far).with_sign_of(x)


def sigmoid(x: Value) -> Value:
    # With e = exp(-|x|) nothing overflows: 1 / (1 + e), or e / (1 + e) for a negative x.
    e = exp(-x.absolute())
    negative = x.lt(0.0)
    total = e + 1.0
    quotient = negative.select(e, x.like(1.0)) / total
    # What was lost in the sum, over the sum: the one lies beyond 2 ulp without it.
    lost = (e - (total - 1.0)) * negative.select(1.0 - quotient, quotient)
    return (-quotient).fma(lost, quotient)


def rsqrt(x: Value) -> Value:
    return 1.0 / x.sqrt()


def reciprocal(x: Value) -> Value:
    return 1.0 / x


def _exp_parts(x: Value) -> tuple[Value, Value]:
    """n + _ROUND and e^r with e^x = 2^n e^r."""
    shifted = x.fma(_LOG2_E, _ROUND)
    n = shifted - _ROUND
    r = n.fma(-_LN2_LOW, n.fma(-_LN2_HIGH, x))
    # e^r = 1 + r (1 + r EXP(r))
    return shifted, r.polynomial(EXP).fma(r, 1.0).fma(r, 1.0)


def _exp_small(x: Value) -> Value:
    """e^x for |x| <= 87, where one scale is enough."""
    shifted, mantissa = _exp_parts(x)
    return _scalef(mantissa, shifted) if x.body.scalef else mantissa * _scale(shifted.bits())


def _scale(power: Value) -> Value:
    """2^n as a float32 for the n in the last nine bits; the shift drops the others."""
    return ((power << 23) + 0x3F800000).from_bits()


def _scalef(mantissa: Value, shifted: Value) -> Value:
    """mantissa * 2^n by AVX-512's instruction, which rounds once whatever n is."""
    n = shifted - _ROUND
    kind = mantissa.body.type("float")
    # All lanes, in the current rounding mode.
    arguments = f"{mantissa.typed}, {n.typed}, {kind} zeroinitializer, i16 -1, i32 4"
    return mantissa.body.emit(f"call {kind} @llvm.x86.avx512.mask.scalef.ps.512({arguments})", "float")
