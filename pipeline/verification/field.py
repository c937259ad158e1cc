"""Exact arithmetic modulo the primes p and q, p = 2q + 1 near 2^20, on NumPy arrays of int64.

A product of two residues is below 2^40, so a sum of 2^13 of them is an integer below 2^53 and float64 BLAS computes it
exactly. Because q divides p - 1, Z_p has elements ω of order q, and x -> ω^x maps Z_q into Z_p so that sums become
products: the exponential (Mirage, OSDI 2025, section 5; Li and Wu, Identity Testing for Circuits with Exponentiation
Gates, 2025).
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

CHUNK = 1 << 13  # products of two residues in a partial sum, so that it stays below 2^53


class DrawAgain(Exception):
    """A division by zero: the inputs are drawn anew. It is never given a value, which would make false identities."""


@dataclass(frozen=True, slots=True, eq=False)
class PrimeField:
    """The integers modulo a prime that is 3 modulo 4, with tables of powers and logarithms to a primitive root.

    powers      root^i for i < prime - 1
    logarithms  of every residue; that of 0 is not used
    inverses    of every residue; that of 0 is 0 and not used
    """

    prime: int
    root: int
    powers: np.ndarray
    logarithms: np.ndarray
    inverses: np.ndarray

    def multiply(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return a * b % self.prime

    def matmul(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """The exact product of (batch, m, k) and (batch, k, n)."""
        left, right = a.astype(np.float64), b.astype(np.float64)
        depth = a.shape[-1]
        if depth <= CHUNK:
            return np.matmul(left, right).astype(np.int64) % self.prime
        out = np.zeros((max(a.shape[0], b.shape[0]), a.shape[1], b.shape[2]), np.int64)
        for begin in range(0, depth, CHUNK):
            part = np.matmul(left[:, :, begin : begin + CHUNK], right[:, begin : begin + CHUNK])
            out += part.astype(np.int64) % self.prime
        return out % self.prime

    def total(self, x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
        return np.asarray(x.sum(axis=axes)) % self.prime  # below 2^63 for fewer than 2^43 elements

    def product(self, x: np.ndarray, axis: int) -> np.ndarray:
        """The product along an axis that is not empty."""
        parts = np.moveaxis(x, axis, 0)
        out = parts[0]
        for part in parts[1:]:
            out = self.multiply(out, part)
        return out

    def invert(self, x: np.ndarray) -> np.ndarray:
        if not x.all():
            raise DrawAgain
        return self.inverses[x]

    def power(self, x: np.ndarray, exponent: int) -> np.ndarray:
        """x to an integer; of zero only to one that is positive."""
        if exponent <= 0 and not x.all():
            raise DrawAgain
        value = self.powers[self.logarithms[x] * (exponent % (self.prime - 1)) % (self.prime - 1)]
        return np.where(x == 0, 0, value)

    def is_square(self, x: np.ndarray) -> np.ndarray:
        return (self.logarithms[x] % 2 == 0) | (x == 0)

    def rational(self, value: Fraction) -> int:
        """A fraction whose denominator the prime does not divide."""
        if value.denominator % self.prime == 0:
            raise DrawAgain
        return value.numerator * pow(value.denominator, -1, self.prime) % self.prime


@functools.cache
def primes() -> tuple[int, int]:
    """(p, q): the largest below 2^20 with p = 2q + 1, both 3 modulo 4, and 2, 3, 5 and 7 squares modulo both.

    So the root of a positive number that is a square of such factors is the positive one: sqrt(4096) = 64.
    """
    p = (1 << 20) - 1
    while not (_suits(p) and _suits((p - 1) // 2)):
        p -= 16
    return p, (p - 1) // 2


def _suits(prime: int) -> bool:
    """Being 7 modulo 8 makes it 3 modulo 4, and 2 a square."""
    return prime % 8 == 7 and _is_prime(prime) and all(pow(n, (prime - 1) // 2, prime) == 1 for n in (3, 5, 7))


@functools.cache
def prime_field(prime: int) -> PrimeField:
    """The field with its tables, built once (some 20 ms, some 16 MB)."""
    factors = [f for f in range(2, 1 << 10) if (prime - 1) % f == 0 and _is_prime(f)]
    rest = prime - 1
    for factor in factors:
        while rest % factor == 0:
            rest //= factor
    factors += [rest] if rest > 1 else []
    root = next(g for g in range(2, prime) if all(pow(g, (prime - 1) // f, prime) != 1 for f in factors))
    powers = np.ones(1, np.int64)
    while len(powers) < prime - 1:
        powers = np.concatenate([powers, powers * pow(root, len(powers), prime) % prime])
    powers = powers[: prime - 1]
    logarithms = np.zeros(prime, np.int64)
    logarithms[powers] = np.arange(prime - 1)
    inverses = np.zeros(prime, np.int64)
    inverses[powers] = np.roll(powers[::-1], 1)
    return PrimeField(prime, root, powers, logarithms, inverses)


def _is_prime(number: int) -> bool:
    return number > 1 and all(number % factor for factor in range(2, int(number**0.5) + 1))


def mix(x: np.ndarray) -> np.ndarray:
    """A bijection of 64-bit words that looks random (the finaliser of splitmix64; Steele, Lea, Flood, 2014)."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@functools.lru_cache(maxsize=1 << 14)
def simplest_rational(value: float) -> Fraction:
    """The fraction of smallest denominator that rounds to the same float32.

    So 1/6 and 0.1 are what they stand for, and a product by 1/n equals a division by n, as they do to within the
    rounding of the constant. Integers, and what no float32 is near, are exact.
    """
    exact = Fraction(value)
    single = np.float32(value)
    if exact.denominator == 1 or not np.isfinite(single) or single == 0:
        return exact
    middle = Fraction(float(single))
    below = Fraction(float(np.nextafter(single, np.float32(-np.inf))))
    above = Fraction(float(np.nextafter(single, np.float32(np.inf))))
    low, high = (middle + below) / 2, (middle + above) / 2
    return -_simplest_between(-high, -low) if middle < 0 else _simplest_between(low, high)


def _simplest_between(low: Fraction, high: Fraction) -> Fraction:
    """The fraction of smallest denominator strictly between two that are not negative (Stern and Brocot)."""
    whole = low.numerator // low.denominator
    if whole + 1 < high:
        return Fraction(whole + 1)
    if low == whole:  # high is at most whole + 1, so that the answer is whole + 1/n
        return whole + Fraction(1, math.floor(1 / (high - whole)) + 1)
    return whole + 1 / _simplest_between(1 / (high - whole), 1 / (low - whole))
