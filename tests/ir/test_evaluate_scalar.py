"""The scalar functions of the reference evaluation: exact definitions, erf against higher precision."""

from __future__ import annotations

import math

import ml_dtypes
import mpmath
import numpy as np
import pytest

from pipeline.ir import graph as g
from pipeline.ir.evaluate_scalar import FUNCTIONS, apply_scalar, cast_to, erf

LIMITS = np.iinfo(np.int32)


def test_every_scalar_function_has_a_definition():
    assert set(FUNCTIONS) == g.ELEMENTWISE - {"cast", "where"}


def test_erf_is_within_two_units_in_the_last_place():
    rng = np.random.default_rng(0)
    near_nodes = np.arange(0, 6.1, 1 / 64)
    x = np.concatenate([rng.uniform(-6.5, 6.5, 3000), 10 ** rng.uniform(-300, 0, 500), near_nodes, [26.0, 1e300]])
    with mpmath.workdps(40):
        expected = np.array([float(mpmath.erf(float(v))) for v in x])
    assert (np.abs(erf(x) - expected) <= 2 * np.spacing(np.abs(expected))).all()


def test_erf_keeps_sign_infinity_nan_shape_and_dtype():
    x = np.array([[0.0, -0.0, np.inf], [-np.inf, np.nan, 1.0]], np.float32)
    y = erf(x)
    assert (y.dtype, y.shape) == (np.float32, (2, 3))
    np.testing.assert_array_equal(y, np.array([[0, 0, 1], [-1, np.nan, np.float32(math.erf(1))]], np.float32))
    assert np.signbit(y[0]).tolist() == [False, True, False]
    assert erf(np.float64(0.5)).shape == ()


@pytest.mark.parametrize(
    ("fn", "a", "b", "expected"),
    [
        ("div", [7, -7, 7, -7, 0], [2, 2, -2, -2, 3], [3, -3, -3, 3, 0]),
        ("mod", [7, -7, 7, -7], [3, 3, -3, -3], [1, 2, -2, -1]),
        ("fmod", [7, -7, 7, -7], [3, 3, -3, -3], [1, -1, 1, -1]),
        ("pow", [2, 3, -1, -1, 1, 5, 2], [10, 0, -3, -2, -9, -1, 3], [1024, 1, -1, 1, 1, 0, 8]),
        ("add", [LIMITS.max], [1], [LIMITS.min]),
        ("mul", [1 << 30], [4], [0]),
    ],
)
def test_integers_are_computed_exactly(fn: str, a: list[int], b: list[int], expected: list[int]):
    got = apply_scalar(fn, [np.array(a, np.int32), np.array(b, np.int32)], "int32")
    assert (got.dtype, got.tolist()) == (np.int32, expected)


def test_unsigned_division_and_division_by_zero_stay_defined():
    big = np.array([250, 250], np.uint8)
    assert apply_scalar("div", [big, np.array([7, 0], np.uint8)], "uint8").tolist() == [35, 0]
    assert apply_scalar("div", [np.array([-5]), np.array([0])], "int64").tolist() == [0]


def test_maximum_and_minimum_hand_on_nan():
    nan, one = np.array([np.nan, 1.0]), np.array([1.0, np.nan])
    assert np.isnan(apply_scalar("max", [nan, one], "float64")).all()
    assert np.isnan(apply_scalar("min", [nan, one], "float64")).all()


def test_rounding_is_half_to_even():
    assert apply_scalar("round", [np.array([0.5, 1.5, 2.5, -0.5])], "float64").tolist() == [0, 2, 2, 0]


def test_a_float_beyond_an_integer_saturates_and_nan_is_zero():
    x = np.array([1e20, -1e20, np.inf, -np.inf, np.nan, 2.9, -2.9, 2147483647.5])
    assert cast_to(x, "int32").tolist() == [LIMITS.max, LIMITS.min, LIMITS.max, LIMITS.min, 0, 2, -2, LIMITS.max]
    assert cast_to(x, "uint8").tolist() == [255, 0, 255, 0, 0, 2, 0, 255]
    assert cast_to(np.array([2.0**63, -(2.0**63), 2.0**62]), "int64").tolist() == [2**63 - 1, -(2**63), 2**62]
    assert cast_to(np.array([2.0**64, 2.0**63]), "uint64").tolist() == [2**64 - 1, 2**63]


def test_a_cast_to_bool_asks_for_zero():
    assert cast_to(np.array([0.0, -0.0, 0.1, np.nan]), "bool").tolist() == [False, False, True, True]


def test_integers_wrap_in_casts():
    assert cast_to(np.array([300, -1]), "uint8").tolist() == [44, 255]


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_halves_are_computed_in_float32_and_rounded_once(dtype):
    x = np.linspace(0.1, 8, 100).astype(dtype)
    got = apply_scalar("exp", [x], np.dtype(dtype).name)
    assert (got == np.exp(x.astype(np.float32)).astype(dtype)).all()


def test_extreme_values_pass_without_a_warning():
    x = np.array([0.0, -1.0, np.inf, -np.inf, np.nan, 1e308, -1e308])
    with np.errstate(all="raise"):
        for fn in sorted(g.UNARY - {"not", "cast"}):
            apply_scalar(fn, [x], "bool" if fn in ("isnan", "isinf") else "float64")
        for fn in sorted(g.BINARY - {"and", "or", "xor", "eq", "ne", "lt", "le", "gt", "ge"}):
            apply_scalar(fn, [x, x[::-1]], "float64")


def test_the_sigmoid_has_no_overflow_and_small_values():
    got = apply_scalar("sigmoid", [np.array([-800.0, -700.0, 0.0, 800.0])], "float64")
    np.testing.assert_allclose(got, [0, math.exp(-700), 0.5, 1], rtol=1e-12)
