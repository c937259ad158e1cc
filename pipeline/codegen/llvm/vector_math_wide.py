"""Elementwise float32 functions that compute in float64 and round once: right to the last bit but for rare ties.

They are rare in networks, so that twice the width costs little and spares every compensation. The reductions are the
usual ones (Cephes; Payne and Hanek for large angles); the polynomials are our own.
"""

from __future__ import annotations

import math

from pipeline.codegen.llvm.vector_math_body import Value
from pipeline.codegen.llvm.vector_math_coefficients import (
    WIDE_ASIN,
    WIDE_ATAN,
    WIDE_COS,
    WIDE_EXP,
    WIDE_LOG,
    WIDE_SIN,
)

_LN2_HIGH = math.log(2)
_LN2_LOW = 2.3190468138462996e-17
_PI_4 = math.pi / 4
_PI_2_HIGH = math.pi / 2
_PI_2_LOW = 6.123233995736766e-17
# Adding 1.5 * 2^52 leaves the nearest integer in the low bits of the sum.
_ROUND = 6755399441055744.0
_ROUND_BITS = 0x4338000000000000
# Up to here x - n pi/2 is exact in float64 but for the low half of pi/2, whose error is below 2^-70.
_LARGE_ANGLE = 2.0**30
# Below, x and one more term of the series are exact to 2^-40, and the general formula would cancel.
_TINY = 2.0**-10


def sin(x: Value) -> Value:
    quadrant, r = _reduce(x)
    sine, cosine = _sin_cos(r)
    value = (quadrant & 1).eq(0).select(sine, cosine)
    # Quadrants 2 and 3 are negative.
    return _flip(value, quadrant & 2).narrow()


def cos(x: Value) -> Value:
    quadrant, r = _reduce(x)
    sine, cosine = _sin_cos(r)
    value = (quadrant & 1).eq(0).select(cosine, sine)
    return _flip(value, (quadrant + 1) & 2).narrow()


def tan(x: Value) -> Value:
    quadrant, r = _reduce(x)
    sine, cosine = _sin_cos(r)
    even = (quadrant & 1).eq(0)
    return (even.select(sine, -cosine) / even.select(cosine, sine)).narrow()


def asin(x: Value) -> Value:
    a = x.widen().absolute()
    near, far = _asin_parts(a)
    return a.gt(0.5).select(_PI_2_HIGH - far, near).narrow().with_sign_of(x)


def acos(x: Value) -> Value:
    wide = x.widen()
    near, far = _asin_parts(wide.absolute())
    outside = x.lt(0.0).select(math.pi - far, far)
    return wide.absolute().gt(0.5).select(outside, _PI_2_HIGH - near.with_sign_of(wide)).narrow()


def atan(x: Value) -> Value:
    a = x.widen().absolute()
    beyond = a.gt(1.0)
    t = beyond.select(1.0 / a, a)
    square = t * t
    angle = t.fma(square * square.polynomial(WIDE_ATAN), t)
    return beyond.select(_PI_2_HIGH - angle, angle).narrow().with_sign_of(x)


def sinh(x: Value) -> Value:
    a = x.widen().absolute()
    e = _exp(a)
    near = a.fma(a * a * (1 / 6), a)
    return a.lt(_TINY).select(near, (e - 1.0 / e) * 0.5).narrow().with_sign_of(x)


def cosh(x: Value) -> Value:
    e = _exp(x.widen().absolute())
    return ((e + 1.0 / e) * 0.5).narrow()


def asinh(x: Value) -> Value:
    a = x.widen().absolute()
    near = a.fma(a * a * (-1 / 6), a)
    far = _log(a + a.fma(a, 1.0).sqrt())
    return a.lt(_TINY).select(near, far).narrow().with_sign_of(x)


def acosh(x: Value) -> Value:
    wide = x.widen()
    # The square of a float32 is exact in float64, and so is one less.
    result = _log(wide + (wide * wide - 1.0).sqrt())
    return wide.lt(1.0).select(math.nan, result).narrow()


def atanh(x: Value) -> Value:
    a = x.widen().absolute()
    near = a.fma(a * a * (1 / 3), a)
    far = _log((a + 1.0) / (1.0 - a)) * 0.5
    return a.lt(_TINY).select(near, far).narrow().with_sign_of(x)


def pow_(x: Value, y: Value) -> Value:
    """C's pow, annex F: pow(x, 0) = pow(1, y) = 1 for NaN too; a negative base needs an integer exponent."""
    a, power = x.absolute(), y.widen()
    result = _exp(power * _log(a.widen())).narrow()
    whole = y.trunc().eq(y)  # Every large y is, the infinite ones too.
    half = y * 0.5
    odd = whole & half.trunc().ne(half)
    negative = x.bits().lt(0)
    result = (negative & odd).select(-result, result)
    result = (x.lt(0.0) & a.ne(math.inf) & y.trunc().ne(y)).select(math.nan, result)
    one = y.eq(0.0) | x.eq(1.0) | (x.eq(-1.0) & y.absolute().eq(math.inf))
    return one.select(1.0, result)


def _exp(x: Value) -> Value:
    """e^x, bounded to e^±200: that is 0 or infinity in float32 and a normal number in float64."""
    x = x.at_most(200.0).at_least(-200.0)
    shifted = x.fma(1 / math.log(2), _ROUND)
    n = shifted - _ROUND
    r = n.fma(-_LN2_LOW, n.fma(-_LN2_HIGH, x))
    scale = (((shifted.bits() - _ROUND_BITS) + 1023) << 52).from_bits()
    return r.polynomial(WIDE_EXP) * scale


def _log(x: Value) -> Value:
    """log x of a normal number, 0, infinity, a negative number or NaN."""
    bits = x.bits()
    exponent = (bits - 0x3FE6A09E667F3BCD) >> 52
    f = (bits - (exponent << 52)).from_bits() - 1.0
    # log(1 + f) = 2 atanh(s) with s = f / (2 + f)
    s = f / (f + 2.0)
    square = s * s
    e = exponent.to_float()
    result = e.fma(_LN2_HIGH, s.fma(2.0, e.fma(_LN2_LOW, s * square * square.polynomial(WIDE_LOG))))
    result = x.lt(math.inf).select(result, x)
    result = x.lt(0.0).select(math.nan, result)
    return x.eq(0.0).select(-math.inf, result)


def _asin_parts(a: Value) -> tuple[Value, Value]:
    """asin(a), right for a <= 1/2, and acos(a), right for a > 1/2 (NaN beyond 1)."""
    beyond = a.gt(0.5)
    square = beyond.select((1.0 - a) * 0.5, a * a)
    t = beyond.select(square.sqrt(), a)
    angle = t.fma(square * square.polynomial(WIDE_ASIN), t)
    return angle, angle * 2.0


def _sin_cos(r: Value) -> tuple[Value, Value]:
    square = r * r
    sine = r * square.fma(square.polynomial(WIDE_SIN), 1.0)  # A product, so that the sine of -0 is -0.
    cosine = square.fma(square.fma(square.polynomial(WIDE_COS), -0.5), 1.0)
    return sine, cosine


def _flip(value: Value, two: Value) -> Value:
    """The value negated where `two` is 2 rather than 0."""
    return (value.bits() ^ (two << 62)).from_bits()


def _reduce(x: Value) -> tuple[Value, Value]:
    """n (i64, only its last two bits count) and r in [-pi/4, pi/4] with x = n pi/2 + r; NaN for infinity."""
    wide = x.widen()
    shifted = wide.fma(2 / math.pi, _ROUND)
    n = shifted - _ROUND
    r = n.fma(-_PI_2_LOW, n.fma(-_PI_2_HIGH, wide))
    return _replace_large(x, shifted.bits(), r)


LARGE_ANGLE_SYMBOL = "muschedule.reduce_large"


def large_angle_ir() -> str:
    """A scalar function {double r, i64 quadrant} (float x) for |x| >= 2^30, after Payne and Hanek (1983).

    x = m 2^e with a 24-bit m. x / (2 pi) modulo 1 is m times those 128 bits of 1 / (2 pi) that begin at its bit e: the
    bits before them make whole turns, and those after them are below 2^-104 of a turn.
    """
    words = ", ".join(f"i64 {word}" for word in _inverse_two_pi_words(5))
    return _LARGE.replace("WORDS", words).replace("SYMBOL", LARGE_ANGLE_SYMBOL)


def _inverse_two_pi_words(count: int) -> tuple[int, ...]:
    """The bits of 1 / (2 pi) after the binary point, in 64-bit words, from Machin's formula in integers."""
    bits = 64 * count + 64

    def atan_inverse(n: int) -> int:
        term = total = (1 << bits) // n
        k, sign = 3, -1
        while term:
            term //= n * n
            total += sign * (term // k)
            k, sign = k + 2, -sign
        return total

    pi = 4 * (4 * atan_inverse(5) - atan_inverse(239))
    inverse = (1 << (2 * bits)) // (2 * pi)
    return tuple(inverse >> (bits - 64 * (i + 1)) & (1 << 64) - 1 for i in range(count))


def _replace_large(x: Value, quadrant: Value, r: Value) -> tuple[Value, Value]:
    """n and r with those lanes replaced whose angle is large; the scalar function is only called when there is one."""
    body = x.body
    # NaN compares as not large and stays NaN; infinity becomes NaN below.
    large = x.absolute().ge(_LARGE_ANGLE)
    tag = body.name()[1:]
    if body.lanes == 1:
        some = large.text
    else:
        some = f"%{tag}.some"
        body.lines.append(f"  {some} = call i1 @llvm.vector.reduce.or.v{body.lanes}i1({large.typed})")
    fast = f"{tag}.fast"
    body.lines += [
        f"  br label %{fast}",
        f"{fast}:",
        f"  br i1 {some}, label %{tag}.slow, label %{tag}.join",
        f"{tag}.slow:",
    ]
    slow_r, slow_q = r, quadrant
    if body.lanes == 1:
        both = f"%{tag}.both"
        body.lines.append(f"  {both} = call {{ double, i64 }} @{LARGE_ANGLE_SYMBOL}(float {x.text})")
        slow_r = body.emit(f"extractvalue {{ double, i64 }} {both}, 0", "double")
        slow_q = body.emit(f"extractvalue {{ double, i64 }} {both}, 1", "i64")
    else:
        slow_r, slow_q = r.like(0.0), quadrant.like(0)
        for lane in range(body.lanes):
            one = f"%{tag}.{lane}"
            body.lines += [
                f"  {one} = extractelement {x.typed}, i64 {lane}",
                f"  {one}.both = call {{ double, i64 }} @{LARGE_ANGLE_SYMBOL}(float {one})",
                f"  {one}.r = extractvalue {{ double, i64 }} {one}.both, 0",
                f"  {one}.q = extractvalue {{ double, i64 }} {one}.both, 1",
            ]
            slow_r = body.emit(f"insertelement {slow_r.typed}, double {one}.r, i64 {lane}", "double")
            slow_q = body.emit(f"insertelement {slow_q.typed}, i64 {one}.q, i64 {lane}", "i64")
        slow_r, slow_q = large.select(slow_r, r), large.select(slow_q, quadrant)
    slow_r = x.absolute().eq(math.inf).select(math.nan, slow_r)
    body.lines += [f"  br label %{tag}.join", f"{tag}.join:"]
    edges = f"[ {{}}, %{fast} ], [ {{}}, %{tag}.slow ]"
    joined_r = body.emit(f"phi {body.type('double')} " + edges.format(r.text, slow_r.text), "double")
    joined_q = body.emit(f"phi {body.type('i64')} " + edges.format(quadrant.text, slow_q.text), "i64")
    return joined_q, joined_r


_LARGE = """
@SYMBOL.words = private unnamed_addr constant [5 x i64] [WORDS]

define internal { double, i64 } @SYMBOL(float %x) noinline nounwind {
  %bits = bitcast float %x to i32
  %biased.wide = lshr i32 %bits, 23
  %biased.low = and i32 %biased.wide, 255
  ; A smaller angle in another lane asks too: any answer within the table will do.
  %small = icmp ult i32 %biased.low, 157
  %biased = select i1 %small, i32 157, i32 %biased.low
  %fraction = and i32 %bits, 8388607
  %m.narrow = or i32 %fraction, 8388608
  %m = zext i32 %m.narrow to i128
  %e.narrow = sub i32 %biased, 150
  %e = zext i32 %e.narrow to i64
  %word = lshr i64 %e, 6
  %shift = and i64 %e, 63
  %a.at = getelementptr i64, ptr @SYMBOL.words, i64 %word
  %b.at = getelementptr i64, ptr %a.at, i64 1
  %c.at = getelementptr i64, ptr %a.at, i64 2
  %a = load i64, ptr %a.at
  %b = load i64, ptr %b.at
  %c = load i64, ptr %c.at
  %high = call i64 @llvm.fshl.i64(i64 %a, i64 %b, i64 %shift)
  %low = call i64 @llvm.fshl.i64(i64 %b, i64 %c, i64 %shift)
  %high.wide = zext i64 %high to i128
  %high.up = shl i128 %high.wide, 64
  %low.wide = zext i64 %low to i128
  %window = or i128 %high.up, %low.wide
  %turn = mul i128 %window, %m
  %top.wide = lshr i128 %turn, 64
  %top = trunc i128 %top.wide to i64
  ; The nearest quarter turn, and what is left of it, as a signed fraction of 2^128.
  %rounded = add i64 %top, 2305843009213693952
  %quarter = lshr i64 %rounded, 62
  %whole = shl i64 %quarter, 62
  %rest.top = sub i64 %top, %whole
  %rest.low = trunc i128 %turn to i64
  %top.number = sitofp i64 %rest.top to double
  %low.number = uitofp i64 %rest.low to double
  %low.scaled = fmul double %low.number, 0x3BF0000000000000
  %rest = fadd double %top.number, %low.scaled
  ; 2 pi / 2^64
  %r.size = fmul double %rest, 0x3C1921FB54442D18
  ; m and the table know the size of x only: -x turns the other way.
  %negative = icmp slt i32 %bits, 0
  %r.minus = fneg double %r.size
  %quarter.minus = sub i64 0, %quarter
  %r = select i1 %negative, double %r.minus, double %r.size
  %n = select i1 %negative, i64 %quarter.minus, i64 %quarter
  %first = insertvalue { double, i64 } poison, double %r, 0
  %both = insertvalue { double, i64 } %first, i64 %n, 1
  ret { double, i64 } %both
}
"""
