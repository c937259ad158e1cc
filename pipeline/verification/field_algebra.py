"""The algebra of residues: tensors whose elements are pairs in Z_p x Z_q, for identity tests at random points.

Arithmetic acts on both parts. exp(x) is ω^(q part) in Z_p and has no q part, so that a second exponential on a path
is not provable. Everything else is modelled so that an identity of the model is one of the real functions:

sqrt        x^((p+1)/4), which is multiplicative: sqrt(xy) = sqrt(x) sqrt(y), 1/rsqrt = sqrt, sqrt(4x) = 2 sqrt(x).
            It is a root of x where x is a square modulo the prime (half of the elements) and of -x elsewhere, so that
            sqrt(x)^2 = x may fail although it is true. With `squares` every draw has only squares under its roots, or
            is drawn again.
functions   erf, log, sin, abs, powers with other exponents … are unknown functions: a keyed hash of the p parts gives
            both parts of the value. (Of the p parts alone, so that it does not matter whether a q part is lost.)
maximum     "arbitrary": an unknown commutative function of two operands, folded one after another. What holds then
            holds for every value that a maximum could have, as in safe softmax, where it cancels.
            "selection": the greatest in a random total order, in which -inf is the least and +inf the greatest. What
            holds for every order holds for the real one. Comparisons are of this order in both kinds.
infinity    an unknown number. What holds for every number holds in the limit, but exp(-inf) = 0 is not known.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

import numpy as np

from pipeline.errors import PipelineError
from pipeline.ir.algebra import contract_arrays, folded, pad_array, window_array
from pipeline.ir.evaluate_scalar import apply_scalar, cast_to
from pipeline.ir.graph import AffineMap, DType, Shape, TensorType
from pipeline.ir.graph_types import COMPARISON, FLOATS, TO_BOOL, dtype_name
from pipeline.verification.field import DrawAgain, PrimeField, mix, prime_field, primes, simplest_rational

Maximum = Literal["arbitrary", "selection"]
SNAPPED = 64  # different numbers in a constant that are read as simplest rationals; where there are more, as they are
LOW_BITS = np.uint64((1 << 20) - 1)
UNKNOWN = frozenset({"abs", "sign", "log", "erf", "sin", "cos", "tan", "asin", "acos", "atan", "asinh", "acosh",
                     "atanh", "floor", "ceil", "round", "mod", "fmod"})  # fmt: skip


class NotProvable(PipelineError):
    """A program outside of what identity testing decides, with the reason."""


@dataclass(frozen=True, slots=True, eq=False)
class Residues:
    """A tensor of pairs.

    p, q    the parts, of one shape; no q part after an exponential
    known   the number that every element is, where it is a constant
    """

    p: np.ndarray
    q: np.ndarray | None
    known: Fraction | None = None


FieldValue = Residues | np.ndarray  # integers and truth values that are known stay arrays


class FieldAlgebra:
    """One test: a random ω, random keys, and the source of random inputs. As an Algebra, of FieldValue.

    used    what the values so far depended on: exp, root (some of them not of a square: signed root), unknown, maximum,
            infinity
    """

    def __init__(self, rng: np.random.Generator, maximum: Maximum = "arbitrary", *, squares: bool = False) -> None:
        p, q = primes()
        self.field_p: PrimeField = prime_field(p)
        self.field_q: PrimeField = prime_field(q)
        self.maximum = maximum
        self.squares = squares
        self.used: set[str] = set()
        self._rng = rng
        self._omega = 2 * int(rng.integers(1, q))  # ω = root^this, of order q
        self._key = rng.integers(0, 1 << 63, dtype=np.uint64)
        self._extremes: dict[float, Residues] = {}

    def draw(self, kind: TensorType) -> FieldValue:
        """A random input: uniform residues, fair truth values, integers from 0 to 7."""
        if kind.dtype in FLOATS:
            draw = self._rng.integers
            return Residues(draw(0, self.field_p.prime, kind.shape), draw(0, self.field_q.prime, kind.shape))
        if kind.dtype == "bool":
            return self._rng.integers(0, 2, kind.shape).astype(bool)
        return self._rng.integers(0, 8, kind.shape).astype(kind.dtype)

    def shape(self, x: FieldValue) -> Shape:
        return x.p.shape if isinstance(x, Residues) else x.shape

    def scalar(self, value: float) -> Residues:
        if np.isnan(value):
            raise NotProvable("a constant is not a number", where="constant nan")
        if np.isinf(value):
            self.used.add("infinity")
            if value not in self._extremes:
                self._extremes[value] = self._unknown(f"constant {value}", [np.zeros((), np.int64)])
            return self._extremes[value]
        exact = simplest_rational(float(value))
        return Residues(np.asarray(self.field_p.rational(exact)), np.asarray(self.field_q.rational(exact)), exact)

    def constant(self, array: np.ndarray) -> FieldValue:
        if dtype_name(array.dtype) not in FLOATS:
            return array
        if array.ndim == 0:
            return self.scalar(float(array))
        values, places = np.unique(array.astype(np.float64), return_inverse=True)
        if len(values) <= SNAPPED or not np.isfinite(values).all():
            parts = [self.scalar(float(value)) for value in values]
            p = np.asarray([int(part.p) for part in parts])
            q = np.asarray([int(part.q) for part in parts if part.q is not None])
        else:
            mantissa, exponent = np.frexp(values)
            whole = np.ldexp(mantissa, 53).astype(np.int64)
            p = self._scaled(self.field_p, whole, exponent - 53)
            q = self._scaled(self.field_q, whole, exponent - 53)
        return Residues(p[places].reshape(array.shape), q[places].reshape(array.shape))

    def elementwise(self, fn: str, *operands: FieldValue, dtype: DType | None = None) -> FieldValue:
        if fn == "identity":
            return operands[0]
        if fn == "cast":
            return self._cast(operands[0], dtype)
        if fn == "where":
            return self._where(operands[0], operands[1], operands[2])
        if all(isinstance(x, np.ndarray) for x in operands):
            known = [np.asarray(x) for x in operands]
            return apply_scalar(fn, known, "bool" if fn in TO_BOOL else dtype_name(known[0].dtype))
        values = [self._residues(x) for x in operands]
        if fn in COMPARISON:
            return self._compare(fn, values[0], values[1])
        if fn in ("isnan", "isinf"):
            if self._extremes:
                raise NotProvable("it is not known which elements are infinite", where=fn)
            return np.zeros(values[0].p.shape, bool)
        if fn in UNKNOWN:
            return self._unknown(fn, [x.p for x in values])
        return self._arithmetic(fn, values)

    def contract(self, subscripts: str, a: FieldValue, b: FieldValue) -> Residues:
        def part(field: PrimeField, x: np.ndarray, y: np.ndarray) -> np.ndarray:
            return contract_arrays(subscripts, x, y, field.matmul, field.total)

        return self._binary(part, self._residues(a), self._residues(b))

    def fold(self, kind: str, x: FieldValue, axes: Sequence[int], keep: int = 1) -> FieldValue:
        shape = self.shape(x)
        whole, out = folded(shape, axes, keep)
        groups = tuple(axis + position for position, axis in enumerate(sorted(axes)))
        if isinstance(x, np.ndarray):
            ufunc: np.ufunc = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}[kind]
            return np.asarray(ufunc.reduce(x.reshape(whole), axis=groups)).reshape(out)
        if not groups:
            return x
        if kind == "sum":
            return self._each(lambda field, part: field.total(part.reshape(whole), groups).reshape(out), x)
        rest = [axis for axis in range(len(whole)) if axis not in groups]
        flat = (-1, *(whole[axis] for axis in rest))
        parts = _each_array(lambda part: part.reshape(whole).transpose(*groups, *rest).reshape(flat), x)
        if kind == "prod":
            return self._each(lambda field, part: field.product(part, 0).reshape(out), parts)
        if self.maximum == "selection":
            self.used.add("maximum")
            rank = self._rank(parts)
            chosen = rank.argmax(axis=0) if kind == "max" else rank.argmin(axis=0)
            return _each_array(lambda part: np.take_along_axis(part, chosen[None], axis=0).reshape(out), parts)
        value: FieldValue = _each_array(lambda part: part[0], parts)
        for i in range(1, parts.p.shape[0]):
            value = self.elementwise(kind, value, Residues(parts.p[i], None if parts.q is None else parts.q[i]))
        return self.reshape(value, out)

    def reshape(self, x: FieldValue, shape: Shape) -> FieldValue:
        return _map_array(lambda part: part.reshape(shape), x)

    def transpose(self, x: FieldValue, perm: Sequence[int]) -> FieldValue:
        return _map_array(lambda part: part.transpose(tuple(perm)), x)

    def index(self, x: FieldValue, where: tuple[slice, ...]) -> FieldValue:
        return _map_array(lambda part: part[where], x)

    def broadcast_to(self, x: FieldValue, shape: Shape) -> FieldValue:
        return _map_array(lambda part: np.broadcast_to(part, shape), x)

    def window(self, x: FieldValue, access: AffineMap, extents: Shape) -> FieldValue:
        return _map_array(lambda part: window_array(part, access, extents), x)

    def concat(self, values: Sequence[FieldValue], axis: int) -> FieldValue:
        if all(isinstance(x, np.ndarray) for x in values):
            return np.concatenate([np.asarray(x) for x in values], axis=axis)
        parts = [self._residues(x) for x in values]
        live = [x.q for x in parts if x.q is not None]
        q = np.concatenate(live, axis=axis) if len(live) == len(parts) else None
        return Residues(np.concatenate([x.p for x in parts], axis=axis), q)

    def pad(self, x: FieldValue, low: Shape, high: Shape, interior: Shape, value: float) -> FieldValue:
        if isinstance(x, np.ndarray):
            return pad_array(x, low, high, interior, value)
        fill = self.scalar(value)
        q = None if x.q is None or fill.q is None else pad_array(x.q, low, high, interior, int(fill.q))
        return Residues(pad_array(x.p, low, high, interior, int(fill.p)), q)

    # --- scalar functions

    def _arithmetic(self, fn: str, x: list[Residues]) -> Residues:
        match fn:
            case "add":
                return self._binary(lambda field, a, b: (a + b) % field.prime, *x)
            case "sub":
                return self._binary(lambda field, a, b: (a - b) % field.prime, *x)
            case "mul":
                return self._binary(lambda field, a, b: a * b % field.prime, *x)
            case "div":
                return self._binary(lambda field, a, b: a * field.invert(b) % field.prime, *x)
            case "neg":
                return self._each(lambda field, a: -a % field.prime, x[0])
            case "reciprocal":
                return self._each(lambda field, a: field.invert(a), x[0])
            case "exp":
                return self._exp(x[0])
            case "sqrt":
                return self._power(x[0], Fraction(1, 2))
            case "rsqrt":
                return self._power(x[0], Fraction(-1, 2))
            case "pow":
                if x[1].known is not None and x[1].known.denominator in (1, 2):
                    return self._power(x[0], x[1].known)
                return self._unknown("pow", [x[0].p, x[1].p])
            case "sigmoid":
                return self._over(None, self._plus(self._exp(self._times(x[0], -1)), 1))
            case "tanh":
                double = self._exp(self._times(x[0], 2))
                return self._over(self._plus(double, -1), self._plus(double, 1))
            case "sinh" | "cosh":
                up, down = self._exp(x[0]), self._exp(self._times(x[0], -1))
                sign = 1 if fn == "cosh" else -1
                return self._times(self._arithmetic("add", [up, self._times(down, sign)]), Fraction(1, 2))
            case "max" | "min":
                return self._extreme(fn, x[0], x[1])
        raise NotProvable("no such function over a field", where=fn, why="it is neither algebraic nor has it a model")

    def _exp(self, x: Residues) -> Residues:
        if x.q is None:
            raise NotProvable("a second exponential on one path", why="the first one leaves no q part to exponentiate",
                              todo="Cut the subprogram between the two")  # fmt: skip
        self.used.add("exp")
        return Residues(self.field_p.powers[x.q * self._omega % (self.field_p.prime - 1)], None)

    def _power(self, x: Residues, exponent: Fraction) -> Residues:
        """x^(n/2) as sqrt(x)^n, with sqrt(x) = x^((p+1)/4); for whole exponents exact."""
        if exponent.denominator == 1:
            return self._each(lambda field, a: field.power(a, int(exponent)), x)
        self.used.add("root")
        halves = exponent.numerator
        if not all(field.is_square(part).all() for field, part in self._parts(x)):
            if self.squares:
                raise DrawAgain
            self.used.add("signed root")
        return self._each(lambda field, a: field.power(field.power(a, (field.prime + 1) // 4), halves), x)

    def _extreme(self, fn: str, a: Residues, b: Residues) -> Residues:
        self.used.add("maximum")
        if self.maximum == "arbitrary":
            return self._unknown(fn, [np.minimum(a.p, b.p), np.maximum(a.p, b.p)], "maximum")
        first = self._rank(a) >= self._rank(b)
        chosen = first if fn == "max" else ~first
        return self._binary(lambda _, x, y: np.where(chosen, x, y), a, b)

    def _compare(self, fn: str, a: Residues, b: Residues) -> np.ndarray:
        if fn in ("eq", "ne"):
            return np.asarray((a.p == b.p) == (fn == "eq"))
        self.used.add("maximum")
        function = {"lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal}[fn]
        return np.asarray(function(self._rank(a), self._rank(b)))

    def _rank(self, x: Residues) -> np.ndarray:
        """A random total order of all pairs: of the p parts first, so that a lost q part changes nothing."""
        with np.errstate(over="ignore"):
            order = mix(x.p.astype(np.uint64) ^ self._key) & ~LOW_BITS
        order = order if x.q is None else order | x.q.astype(np.uint64)
        for value, symbol in self._extremes.items():
            same = x.p == symbol.p
            if x.q is not None and symbol.q is not None:
                same &= x.q == symbol.q
            order = np.where(same, np.uint64(0) if value < 0 else ~np.uint64(0), order)
        return np.asarray(order)

    def _unknown(self, name: str, parts: Sequence[np.ndarray], kind: str = "unknown") -> Residues:
        """An unknown function of these p parts."""
        if not name.startswith("constant"):
            self.used.add(kind)
        word = np.asarray(self._key ^ np.uint64(zlib.crc32(name.encode())))
        with np.errstate(over="ignore"):
            for part in parts:
                word = mix(mix(word) ^ part.astype(np.uint64))
            p, q = mix(word) % np.uint64(self.field_p.prime), mix(~word) % np.uint64(self.field_q.prime)
        return Residues(np.asarray(p).astype(np.int64), np.asarray(q).astype(np.int64))

    def _where(self, condition: FieldValue, a: FieldValue, b: FieldValue) -> FieldValue:
        if isinstance(condition, Residues):
            raise NotProvable("the condition of where is not known", where="where")
        if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
            return np.where(condition, a, b)
        return self._binary(lambda _, x, y: np.where(condition, x, y), self._residues(a), self._residues(b))

    def _cast(self, x: FieldValue, dtype: DType | None) -> FieldValue:
        if isinstance(x, np.ndarray):
            return self._residues(x) if dtype is None or dtype in FLOATS else cast_to(x, dtype)
        if dtype is None or dtype in FLOATS:
            return x
        if dtype == "bool":
            return np.asarray(x.p != 0)
        raise NotProvable("a real number cut to an integer", where=f"cast to {dtype}")

    # --- parts

    def _residues(self, x: FieldValue) -> Residues:
        if isinstance(x, Residues):
            return x
        whole = x.astype(np.int64)
        return Residues(whole % self.field_p.prime, whole % self.field_q.prime)

    def _parts(self, x: Residues) -> list[tuple[PrimeField, np.ndarray]]:
        return [(self.field_p, x.p)] if x.q is None else [(self.field_p, x.p), (self.field_q, x.q)]

    def _each(self, function: Callable[[PrimeField, np.ndarray], np.ndarray], x: Residues) -> Residues:
        return Residues(function(self.field_p, x.p), None if x.q is None else function(self.field_q, x.q))

    def _binary(self, function: Callable[[PrimeField, np.ndarray, np.ndarray], Any], a: Residues, b: Residues,
                ) -> Residues:  # fmt: skip
        q = None if a.q is None or b.q is None else np.asarray(function(self.field_q, a.q, b.q))
        return Residues(np.asarray(function(self.field_p, a.p, b.p)), q)

    def _plus(self, x: Residues, number: int) -> Residues:
        return self._each(lambda field, a: (a + number) % field.prime, x)

    def _times(self, x: Residues, number: int | Fraction) -> Residues:
        return self._each(lambda field, a: a * field.rational(Fraction(number)) % field.prime, x)

    def _over(self, a: Residues | None, b: Residues) -> Residues:
        return self._arithmetic("reciprocal", [b]) if a is None else self._arithmetic("div", [a, b])

    def _scaled(self, field: PrimeField, whole: np.ndarray, exponent: np.ndarray) -> np.ndarray:
        """whole * 2^exponent, exactly."""
        two = field.logarithms[2]
        return whole % field.prime * field.powers[exponent * two % (field.prime - 1)] % field.prime


def _each_array(function: Callable[[np.ndarray], np.ndarray], x: Residues) -> Residues:
    return Residues(function(x.p), None if x.q is None else function(x.q), x.known)


def _map_array(function: Callable[[np.ndarray], np.ndarray], x: FieldValue) -> FieldValue:
    return _each_array(function, x) if isinstance(x, Residues) else function(x)
