"""Tests of the algebra of residues: true identities hold, false ones do not, and what is not provable says so."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from pipeline.ir.graph import TensorType
from pipeline.verification.field import DrawAgain, primes
from pipeline.verification.field_algebra import FieldAlgebra, FieldValue, Maximum, NotProvable, Residues

SHAPE = (5, 4)


class Terms:
    """A test with random tensors, and the scalar functions as methods."""

    def __init__(self, seed: int = 0, maximum: Maximum = "selection", *, squares: bool = False) -> None:
        self.algebra = FieldAlgebra(np.random.default_rng(seed), maximum, squares=squares)

    def draw(self, shape: tuple[int, ...] = SHAPE) -> FieldValue:
        return self.algebra.draw(TensorType(shape, "float32"))

    def number(self, value: float) -> FieldValue:
        return self.algebra.scalar(value)

    def __getattr__(self, fn: str) -> Callable[..., FieldValue]:
        return lambda *x: self.algebra.elementwise(fn.strip("_"), *x)


def same(a: FieldValue, b: FieldValue) -> bool:
    assert isinstance(a, Residues) and isinstance(b, Residues)
    return bool((a.p == b.p).all()) and (a.q is None or b.q is None or bool((a.q == b.q).all()))


def test_exponentials_turn_sums_into_products_and_differences_into_quotients() -> None:
    t = Terms()
    x, y = t.draw(), t.draw()
    assert same(t.exp(t.add(x, y)), t.mul(t.exp(x), t.exp(y)))
    assert same(t.exp(t.sub(x, y)), t.div(t.exp(x), t.exp(y)))
    assert same(t.exp(t.number(0)), t.number(1))
    assert not same(t.exp(t.mul(x, y)), t.mul(t.exp(x), t.exp(y)))


def test_omega_is_of_order_q_and_another_in_each_test() -> None:
    p, q = primes()
    omegas = set()
    for seed in range(20):
        t = Terms(seed)
        omega = t.exp(t.number(1))
        assert isinstance(omega, Residues)
        omegas.add(int(omega.p))
        assert pow(int(omega.p), q, p) == 1 and int(omega.p) != 1
    assert len(omegas) == 20


def test_a_second_exponential_is_not_provable() -> None:
    t = Terms()
    with pytest.raises(NotProvable, match="a second exponential on one path"):
        t.exp(t.add(t.exp(t.draw()), t.draw()))
    with pytest.raises(NotProvable, match="a second exponential on one path"):
        t.sigmoid(t.tanh(t.draw()))


def test_division_by_zero_draws_again() -> None:
    t = Terms()
    x = t.draw()
    for fn in ("div", "reciprocal", "rsqrt"):
        operands = (x, t.sub(x, x)) if fn == "div" else (t.sub(x, x),)
        with pytest.raises(DrawAgain):
            t.algebra.elementwise(fn, *operands)


def test_roots_are_multiplicative_and_rsqrt_is_the_inverse() -> None:
    t = Terms()
    x, y = t.draw(), t.draw()
    assert same(t.sqrt(t.mul(x, y)), t.mul(t.sqrt(x), t.sqrt(y)))
    assert same(t.reciprocal(t.rsqrt(x)), t.sqrt(x))
    assert same(t.sqrt(t.mul(t.number(36), x)), t.mul(t.number(6), t.sqrt(x)))
    assert same(t.pow(x, t.number(0.5)), t.sqrt(x))
    assert same(t.pow(x, t.number(-1.5)), t.pow(t.rsqrt(x), t.number(3)))
    assert not same(t.sqrt(t.add(x, y)), t.add(t.sqrt(x), t.sqrt(y)))


def test_a_root_squared_is_what_it_was_the_root_of_where_only_squares_are_drawn() -> None:
    held = 0
    for seed in range(40):
        t = Terms(seed, squares=True)
        x = t.draw((1,))
        try:
            root = t.sqrt(x)
        except DrawAgain:
            continue
        held += 1
        assert same(t.mul(root, root), x)
    assert 0 < held < 40
    signed = Terms()
    x = signed.draw()
    assert not same(signed.mul(signed.sqrt(x), signed.sqrt(x)), x)
    assert "signed root" in signed.algebra.used


def test_whole_powers_are_products() -> None:
    t = Terms()
    x = t.draw()
    assert same(t.pow(x, t.number(3)), t.mul(x, t.mul(x, x)))
    assert same(t.pow(x, t.number(-1)), t.reciprocal(x))
    assert same(t.pow(x, t.number(0)), t.div(x, x))
    assert not same(t.pow(x, t.number(0.3)), t.pow(x, t.number(0.7)))


def test_sigmoid_silu_and_the_hyperbolic_functions_are_made_of_exponentials() -> None:
    t = Terms()
    x = t.draw()
    minus = t.exp(t.neg(x))
    assert same(t.mul(x, t.sigmoid(x)), t.div(x, t.add(t.number(1), minus)))
    assert same(t.tanh(x), t.sub(t.mul(t.number(2), t.sigmoid(t.mul(t.number(2), x))), t.number(1)))
    assert same(t.tanh(x), t.div(t.sinh(x), t.cosh(x)))
    assert not same(t.mul(x, t.sigmoid(x)), t.mul(x, t.exp(x)))  # what Mirage takes for silu


def test_a_selected_maximum_is_associative_commutative_idempotent_and_one_of_its_operands() -> None:
    t = Terms()
    x, y, z = t.draw(), t.draw(), t.draw()
    assert same(t.max(t.max(x, y), z), t.max(x, t.max(z, y)))
    assert same(t.max(x, x), x)
    assert same(t.min(x, t.max(x, y)), x)
    assert same(t.add(t.max(x, y), t.min(x, y)), t.add(x, y))
    assert not same(t.max(x, y), x) and not same(t.max(x, y), y)
    assert same(t.algebra.fold("max", x, [0, 1]), t.algebra.fold("max", t.algebra.fold("max", x, [1]), [0]))


def test_an_arbitrary_maximum_only_commutes() -> None:
    t = Terms(maximum="arbitrary")
    x, y, z = t.draw(), t.draw(), t.draw()
    assert same(t.max(x, y), t.max(y, x))
    assert not same(t.max(t.max(x, y), z), t.max(x, t.max(y, z)))
    shift = t.max(x, y)
    assert same(t.div(t.exp(t.sub(x, shift)), t.exp(t.sub(y, shift))), t.exp(t.sub(x, y)))


def test_minus_infinity_is_below_everything_and_comparisons_are_of_the_order_of_the_maximum() -> None:
    t = Terms()
    x, y, low = t.draw(), t.draw(), t.number(-np.inf)
    assert same(t.max(x, low), x) and same(t.min(x, t.number(np.inf)), x)
    assert same(t.where(t.lt(x, y), y, x), t.max(x, y))
    assert (np.asarray(t.lt(x, y)) == np.asarray(t.gt(y, x))).all()
    assert (np.asarray(t.le(x, y)) == ~np.asarray(t.gt(x, y))).all()
    assert np.asarray(t.eq(x, x)).all() and not np.asarray(t.ne(x, x)).any()


def test_an_unknown_function_is_one_in_a_test_and_another_in_the_next() -> None:
    t = Terms()
    x = t.draw()
    assert same(t.erf(x), t.erf(x))
    assert not same(t.erf(x), t.log(x))
    assert not same(t.erf(t.neg(x)), t.neg(t.erf(x)))
    other = Terms(1)
    assert not same(other.erf(x), t.erf(x))


def test_an_unknown_function_does_not_depend_on_whether_a_part_was_lost() -> None:
    t = Terms()
    x = t.draw()
    one = t.div(t.exp(x), t.exp(x))  # 1, without a q part
    lost = t.mul(x, one)
    assert isinstance(lost, Residues) and lost.q is None
    assert same(t.erf(lost), t.erf(x)) and same(t.max(lost, t.neg(x)), t.max(x, t.neg(x)))


def test_what_is_known_is_chosen_exactly_and_what_is_not_is_refused() -> None:
    t = Terms()
    x, y = t.draw((2,)), t.draw((2,))
    chosen = t.algebra.elementwise("where", np.array([True, False]), x, y)
    assert isinstance(chosen, Residues) and isinstance(x, Residues) and isinstance(y, Residues)
    assert int(chosen.p[0]) == int(x.p[0]) and int(chosen.p[1]) == int(y.p[1])
    with pytest.raises(NotProvable, match="cut to an integer"):
        t.algebra.elementwise("cast", x, dtype="int32")
    t.number(-np.inf)
    with pytest.raises(NotProvable, match="not known which elements are infinite"):
        t.isinf(x)
    with pytest.raises(NotProvable, match="not a number"):
        t.number(np.nan)


def test_truth_values_become_zeros_and_ones_and_inputs_of_them_are_drawn() -> None:
    t = Terms()
    mask = t.algebra.draw(TensorType((200,), "bool"))
    assert isinstance(mask, np.ndarray) and 60 < mask.sum() < 140
    numbers = t.algebra.elementwise("cast", mask, dtype="float32")
    assert isinstance(numbers, Residues) and same(numbers, Residues(mask.astype(int), mask.astype(int)))


def test_constants_are_exact_as_scalars_and_in_arrays_of_any_size() -> None:
    t = Terms()
    third = t.mul(t.number(1 / 3), t.number(3))
    assert same(third, t.number(1))
    few, many = np.array([0.5, 1 / 3, -2]), np.linspace(-4, 4, 129) * 0.5
    assert same(t.mul(t.algebra.constant(few), t.number(6)), t.algebra.constant(np.array([3.0, 2.0, -12.0])))
    assert same(t.mul(t.algebra.constant(many), t.number(64)), t.algebra.constant(many * 64))


def test_folds_are_sums_products_and_groups() -> None:
    t = Terms()
    x = t.draw((6, 4))
    parts = [t.algebra.index(x, (slice(i, i + 1), slice(None))) for i in range(6)]
    total, product = parts[0], parts[0]
    for part in parts[1:]:
        total, product = t.add(total, part), t.mul(product, part)
    assert same(t.algebra.fold("sum", x, [0]), total)
    assert same(t.algebra.fold("prod", x, [0]), product)
    kept = t.algebra.fold("sum", x, [0], keep=2)
    assert t.algebra.shape(kept) == (2, 4)
    assert same(t.algebra.index(kept, (slice(1, 2), slice(None))), t.add(t.add(parts[1], parts[3]), parts[5]))
