"""Contractions and window reductions against the definition, one element at a time."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.ir import evaluate_product
from pipeline.ir.evaluate_product import contract, magnitudes, reduce_window
from pipeline.ir.graph import AffineDim, AffineMap, Contract, ReduceWindow
from pipeline.ir.graph_primitives import axis_map

EXTENTS = st.lists(st.integers(1, 3), max_size=3).map(tuple)


@st.composite
def affine_maps(draw: st.DrawFn, extents: tuple[int, ...]) -> tuple[AffineMap, tuple[int, ...]]:
    """Random indices, with negative coefficients and repeated variables, and the shape that they need."""
    dims, shape = [], []
    for _ in range(draw(st.integers(0, 3))):
        chosen = sorted(draw(st.sets(st.integers(0, len(extents) - 1), max_size=2))) if extents else []
        terms = tuple((v, draw(st.sampled_from((-1, 1, 2)))) for v in chosen)
        ends = [c * (extents[v] - 1) for v, c in terms]
        offset = draw(st.integers(0, 1)) - sum(min(0, end) for end in ends)
        dims.append(AffineDim(terms, offset))
        shape.append(offset + sum(max(0, end) for end in ends) + 1)
    return tuple(dims), tuple(shape)


def at(x: np.ndarray, affine: AffineMap, point: tuple[int, ...]):
    return x[tuple(dim.offset + sum(c * point[v] for v, c in dim.terms) for dim in affine)]


def direct_contract(op: Contract, lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
    out = np.zeros(op.spatial, np.result_type(lhs, rhs))
    for s in np.ndindex(*op.spatial):
        for r in itertools.product(*map(range, op.reduced)):
            out[s] += at(lhs, op.lhs, s + r) * at(rhs, op.rhs, s + r)
    return out


@given(st.data(), EXTENTS, EXTENTS, st.sampled_from((1, 4, evaluate_product.BATCH)))
def test_a_contract_is_its_definition(
    data: st.DataObject, spatial: tuple[int, ...], reduced: tuple[int, ...], batch: int
):
    lhs_map, lhs_shape = data.draw(affine_maps(spatial + reduced))
    rhs_map, rhs_shape = data.draw(affine_maps(spatial + reduced))
    rng = np.random.default_rng(0)
    lhs, rhs = rng.integers(-9, 9, lhs_shape), rng.integers(-9, 9, rhs_shape)
    op = Contract(spatial, reduced, lhs_map, rhs_map)
    expected = direct_contract(op, lhs, rhs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluate_product, "BATCH", batch)
        np.testing.assert_array_equal(contract(op, lhs, rhs, "int64"), expected)
        np.testing.assert_array_equal(contract(op, lhs.astype(float), rhs.astype(float), "float64"), expected)
        size = magnitudes(op, lhs, rhs, np.dtype(np.float32))
        np.testing.assert_array_equal(size, direct_contract(op, abs(lhs), abs(rhs)))


@given(st.data(), EXTENTS, EXTENTS, st.sampled_from(("sum", "max", "min")), st.sampled_from((1, 64)))
def test_a_window_reduction_is_its_definition(data: st.DataObject, spatial, reduced, kind: str, large: int):
    affine, shape = data.draw(affine_maps(spatial + reduced))
    x = np.random.default_rng(0).integers(-9, 9, shape)
    op = ReduceWindow(kind, spatial, reduced, affine)
    combine = {"sum": sum, "max": max, "min": min}[kind]
    expected = np.zeros(spatial, np.int64)
    for s in np.ndindex(*spatial):
        expected[s] = combine([at(x, affine, s + r) for r in itertools.product(*map(range, reduced))])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluate_product, "LARGE_WINDOW", large)
        np.testing.assert_array_equal(reduce_window(op, x, "int64"), expected)


def test_an_empty_sum_is_zero_and_an_empty_maximum_the_lowest_value():
    op = Contract((2,), (0,), axis_map(1), axis_map(1))
    assert contract(op, np.zeros(0), np.zeros(0), "float64").tolist() == [0, 0]
    window = ReduceWindow("max", (2,), (0,), axis_map(1))
    assert reduce_window(window, np.zeros(0), "float64").tolist() == [-np.inf, -np.inf]
    assert reduce_window(window, np.zeros(0, np.int8), "int8").tolist() == [-128, -128]


MATMUL = Contract((2, 2), (3,), axis_map(0, 2), axis_map(2, 1))


def test_products_of_large_integers_wrap_and_stay_exact():
    a = np.array([[1 << 40, 3, 1], [5, -7, 1 << 62]])
    b = np.array([[1 << 22, 1], [7, 2], [9, (1 << 61) + 3]])
    np.testing.assert_array_equal(contract(MATMUL, a, b, "int64"), a @ b)


def test_small_integers_are_summed_in_int32():
    a = np.full((2, 3), -128, np.int8)
    got = contract(MATMUL, a, np.full((3, 2), 255, np.uint8), "int32")
    assert (got.dtype, got.tolist()) == (np.int32, [[-97920, -97920]] * 2)


def test_halves_are_summed_in_float32():
    a, b = np.full((2, 3), 300, np.float16), np.full((3, 2), 300, np.float16)
    assert contract(MATMUL, a, b, "float32")[0, 0] == 270000
    assert np.isinf(contract(MATMUL, a, b, "float16")).all()


def test_infinity_times_zero_is_nan_without_a_warning():
    a, b = np.array([[np.inf, 0, 0], [1, 1, 1]]), np.zeros((3, 2))
    with np.errstate(all="raise"):
        got = contract(MATMUL, a, b, "float64")
    assert np.isnan(got[0]).all() and not got[1].any()


@pytest.mark.parametrize("chunk", [1, 7, 60])
def test_a_product_in_pieces_is_the_same(monkeypatch: pytest.MonkeyPatch, chunk: int):
    monkeypatch.setattr(evaluate_product, "CHUNK", chunk)
    rng = np.random.default_rng(0)
    x, w = rng.integers(-9, 9, (2, 5, 9)), rng.integers(-9, 9, (4, 5, 3))
    op = Contract((2, 4, 7), (5, 3), (AffineDim(((0, 1),)), AffineDim(((3, 1),)), AffineDim(((2, 1), (4, 1)))),
                  axis_map(1, 3, 4))  # fmt: skip
    np.testing.assert_array_equal(contract(op, x, w, "int64"), direct_contract(op, x, w))


def test_an_operand_with_infinities_is_multiplied_before_it_is_summed() -> None:
    """inf * 1 + inf * -2 is NaN, and inf * (1 - 2) is not."""
    op = Contract((3,), (2,), (AffineDim(((0, 1),)),), (AffineDim(((1, 1),)),))
    rows = np.array([np.inf, 1.0, -2.0], np.float32)
    np.testing.assert_array_equal(contract(op, rows, np.array([1, -2], np.float32), "float32"), [np.nan, -1, 2])
    np.testing.assert_array_equal(contract(op, rows, np.array([np.inf, 1], np.float32), "float32"),
                                  [np.inf, np.inf, -np.inf])  # fmt: skip
