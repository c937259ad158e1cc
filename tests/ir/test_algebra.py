"""Tests of the floating-point algebra: contractions, folds, pads and windows do what NumPy's definitions say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import CheckError
from pipeline.ir.algebra import FloatAlgebra, IndivisibleError, contract_arrays, contraction_shape
from pipeline.ir.graph import AffineDim

SIZES = dict(zip("abcdef", (1, 2, 3, 4, 1, 5), strict=True))


@st.composite
def subscripts(draw: st.DrawFn) -> str:
    """Two operands of up to four letters, and a result of some of their letters in any order."""
    left = "".join(draw(st.permutations("abcdef"))[: draw(st.integers(0, 4))])
    right = "".join(draw(st.permutations("abcdef"))[: draw(st.integers(0, 4))])
    either = sorted(set(left + right))
    kept = draw(st.permutations(either))[: draw(st.integers(0, len(either)))]
    return f"{left},{right}->{''.join(kept)}"


def operands(text: str, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    left, right = text.partition("->")[0].split(",")
    first, second = ([SIZES[letter] for letter in letters] for letters in (left, right))
    return rng.integers(-9, 9, first).astype(np.float64), rng.integers(-9, 9, second).astype(np.float64)


@given(subscripts())
def test_a_contraction_is_what_einsum_says(text: str) -> None:
    a, b = operands(text, np.random.default_rng(0))
    out = FloatAlgebra().contract(text, a, b)
    np.testing.assert_array_equal(out, np.einsum(text, a, b))
    assert out.shape == contraction_shape(text, a.shape, b.shape)


@given(subscripts())
def test_a_contraction_multiplies_matrices_and_sums_and_nothing_else(text: str) -> None:
    a, b = operands(text, np.random.default_rng(1))
    exact = np.einsum(text, a, b)

    def product(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        assert x.ndim == y.ndim == 3 and x.shape[2] == y.shape[1]
        return np.matmul(x, y)

    np.testing.assert_array_equal(contract_arrays(text, a, b, product, lambda x, axes: np.asarray(x.sum(axes))), exact)


@pytest.mark.parametrize("text", ["ab,bc", "abbc->ac", "aa,ab->b", "ab,bc->ad", "ab,bc->aa", "a1,1b->ab"])
def test_what_is_no_contraction_of_two_operands_is_refused(text: str) -> None:
    with pytest.raises(CheckError, match="no contraction of two operands"):
        FloatAlgebra().contract(text, np.ones((2, 2)), np.ones((2, 2)))


def test_operands_that_disagree_are_refused() -> None:
    with pytest.raises(CheckError, match="b is 3 and 2"):
        FloatAlgebra().contract("ab,bc->ac", np.ones((2, 3)), np.ones((2, 3)))
    with pytest.raises(CheckError, match="the wrong rank"):
        FloatAlgebra().contract("ab,bc->ac", np.ones((2, 3)), np.ones(3))


@pytest.mark.parametrize("kind", ["sum", "prod", "max", "min"])
def test_a_fold_combines_every_keep_th_element(kind: str) -> None:
    x = np.arange(24.0).reshape(4, 6) - 7
    whole: Callable[..., Any] = getattr(np, kind)
    out = FloatAlgebra().fold(kind, x, [1], keep=2)
    np.testing.assert_array_equal(out, np.stack([whole(x[:, 0::2], axis=1), whole(x[:, 1::2], axis=1)], axis=1))
    np.testing.assert_array_equal(FloatAlgebra().fold(kind, x, [0, 1]), whole(x, axis=(0, 1), keepdims=True))


def test_a_fold_of_what_does_not_divide_says_what_would_have_to() -> None:
    with pytest.raises(IndivisibleError) as caught:
        FloatAlgebra().fold("sum", np.ones((4, 6)), [1], keep=4)
    assert (caught.value.size, caught.value.pieces) == (6, 4)


def test_padding_crops_and_spreads() -> None:
    x = np.arange(1.0, 7.0).reshape(2, 3)
    out = FloatAlgebra().pad(x, (1, -1), (0, 2), (0, 1), 9.0)
    np.testing.assert_array_equal(out, [[9] * 6, [9, 2, 9, 3, 9, 9], [9, 5, 9, 6, 9, 9]])


def test_a_window_has_one_dimension_for_each_iteration_variable() -> None:
    x = np.arange(20.0)
    out = FloatAlgebra().window(x, (AffineDim(((0, 3), (1, 2)), 1),), (4, 3, 2))
    rows, columns, _ = np.indices((4, 3, 2))
    np.testing.assert_array_equal(out, x[3 * rows + 2 * columns + 1])


def test_everything_is_computed_in_the_chosen_dtype_and_whole_numbers_stay() -> None:
    single = FloatAlgebra("float32")
    x = single.constant(np.arange(3.0))
    assert x.dtype == single.elementwise("exp", x).dtype == single.fold("sum", x, [0]).dtype == np.float32
    assert single.elementwise("mul", x, single.scalar(0.1)).dtype == np.float32
    assert single.constant(np.arange(3)).dtype == np.int64
    assert single.elementwise("lt", x, x).dtype == np.bool_
    assert single.elementwise("cast", single.constant(np.arange(3)), dtype="float64").dtype == np.float32
