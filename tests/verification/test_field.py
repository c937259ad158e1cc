"""Tests of arithmetic modulo the two primes: exact at every size, and no division by zero."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.verification.field import CHUNK, DrawAgain, mix, prime_field, primes, simplest_rational


def is_prime(n: int) -> bool:
    return all(n % d for d in range(2, int(n**0.5) + 1))


def test_both_moduli_are_primes_near_two_to_the_twenty_and_one_divides_the_other_less_one() -> None:
    p, q = primes()
    assert is_prime(p) and is_prime(q) and p == 2 * q + 1
    assert p % 4 == 3 and q % 4 == 3
    assert 0.97 * (1 << 20) < p < 1 << 20


@pytest.mark.parametrize("prime", primes())
def test_the_root_of_the_square_of_a_number_of_small_factors_is_that_number(prime: int) -> None:
    field = prime_field(prime)
    for number in (2, 3, 5, 7, 64, 96, 4096 * 3, 1050):
        assert pow(number * number, (prime + 1) // 4, prime) == number
        assert field.is_square(np.asarray(number))


@pytest.mark.parametrize("prime", primes())
def test_the_tables_are_powers_logarithms_and_inverses(prime: int) -> None:
    field = prime_field(prime)
    x = np.arange(1, prime)
    assert (field.powers[field.logarithms[x]] == x).all()
    assert (x * field.inverses[x] % prime == 1).all()


@pytest.mark.parametrize("depth", [1, 7, CHUNK, CHUNK + 1, 3 * CHUNK + 5])
def test_a_product_of_the_largest_residues_is_exact_at_any_depth(depth: int) -> None:
    field = prime_field(primes()[0])
    largest = field.prime - 1
    a, b = np.full((1, 2, depth), largest), np.full((1, depth, 2), largest)
    assert (field.matmul(a, b) == largest * largest * depth % field.prime).all()


def test_a_product_of_random_residues_is_exact_and_one_batch_stands_for_many() -> None:
    field = prime_field(primes()[1])
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, field.prime, (3, 4, 50)), rng.integers(0, field.prime, (1, 50, 2))
    exact = np.einsum("bik,kj->bij", a.astype(object), b[0].astype(object)) % field.prime
    assert (field.matmul(a, b) == exact).all()


@given(st.integers(1, primes()[0] - 1), st.integers(-50, 50))
def test_powers_are_those_of_whole_numbers(x: int, exponent: int) -> None:
    field = prime_field(primes()[0])
    assert int(field.power(np.asarray(x), exponent)) == pow(x, exponent, field.prime)


@pytest.mark.parametrize("exponent", [0, -1])
def test_zero_has_no_inverse_and_no_such_power(exponent: int) -> None:
    field = prime_field(primes()[0])
    with pytest.raises(DrawAgain):
        field.power(np.array([3, 0]), exponent)
    with pytest.raises(DrawAgain):
        field.invert(np.array([3, 0]))
    assert (field.power(np.array([3, 0]), 2) == [9, 0]).all()


@pytest.mark.parametrize(
    ("value", "fraction"),
    [
        (0.1, Fraction(1, 10)), (1 / 6, Fraction(1, 6)), (-0.25, Fraction(-1, 4)), (1e-5, Fraction(1, 100_000)),
        (4096.0, Fraction(4096)), (0.0, Fraction(0)), (float(np.float32(0.1)), Fraction(1, 10)),
        (1 / 4096, Fraction(1, 4096)), (2.5, Fraction(5, 2)), (1e20, Fraction(10**20)),
    ],
)  # fmt: skip
def test_a_constant_is_read_as_the_simplest_fraction_that_rounds_to_it(value: float, fraction: Fraction) -> None:
    assert simplest_rational(value) == fraction


@given(st.floats(min_value=-(2.0**90), max_value=2.0**90, allow_nan=False, width=32))
def test_a_constant_keeps_its_float32_value(value: float) -> None:
    assert abs(simplest_rational(value) - Fraction(value)) <= Fraction(float(np.spacing(np.float32(abs(value))))) / 2


@given(st.floats(min_value=2.0**-20, max_value=2.0**20, allow_nan=False, width=32))
def test_two_neighbouring_constants_are_different_fractions(value: float) -> None:
    above = float(np.nextafter(np.float32(value), np.float32(np.inf)))
    assert simplest_rational(value) != simplest_rational(above)


def test_the_hash_has_no_collisions_and_looks_random() -> None:
    words = mix(np.arange(1 << 16, dtype=np.uint64))
    assert len(np.unique(words)) == 1 << 16
    assert abs(np.unpackbits(words.view(np.uint8)).mean() - 0.5) < 0.01
