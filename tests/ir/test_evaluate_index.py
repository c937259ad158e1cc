"""Views, gathers, scatters, scans and sorting against loops over single elements."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.ir import graph as g
from pipeline.ir.evaluate import evaluate_node
from pipeline.ir.graph_types import infer, type_of


def run(op: g.Op, *operands, shape=None, dtype=None) -> np.ndarray:
    arrays = [np.asarray(x) for x in operands]
    return evaluate_node(op, arrays, infer(op, [type_of(x) for x in arrays], shape=shape, dtype=dtype))


def test_reshape_and_broadcast_are_row_major_and_from_the_right():
    assert run(g.Reshape(), np.arange(6), shape=(2, 3)).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert run(g.Broadcast(), [[1], [2]], shape=(2, 2, 2)).tolist() == [[[1, 1], [2, 2]]] * 2


def test_a_slice_may_go_backwards_and_be_empty():
    x = np.arange(6)
    assert run(g.Slice((5,), (-2,)), x, shape=(3,)).tolist() == [5, 3, 1]
    assert run(g.Slice((1,), (2,)), x, shape=(2,)).tolist() == [1, 3]
    assert run(g.Slice((0,), (1,)), x, shape=(0,)).tolist() == []


@given(st.integers(0, 4), st.integers(-3, 3), st.integers(-3, 3), st.integers(0, 2))
def test_padding_is_its_definition(size: int, low: int, high: int, interior: int):
    x = np.arange(1, size + 1)
    spread = [v for i in range(size) for v in ([x[i]] + [7] * interior if i < size - 1 else [x[i]])]
    full = [7] * max(low, 0) + spread + [7] * max(high, 0)
    if low + len(spread) + high < 0 or max(-low, 0) + max(-high, 0) > len(full):
        return
    expected = full[max(-low, 0) : len(full) - max(-high, 0)]
    assert run(g.Pad((low,), (high,), (interior,), 7.0), x).tolist() == expected


def test_padding_of_integers_with_infinity_uses_their_limit():
    assert run(g.Pad((1,), (0,), (0,), -math.inf), np.zeros(1, np.int16)).tolist() == [-32768, 0]


def test_gather_counts_from_the_end_and_clips():
    data = np.arange(12).reshape(3, 4)
    got = run(g.Gather(1), data, np.array([[0, -1], [9, -9]], np.int32))
    assert got.tolist() == data[:, [[0, 3], [3, 0]]].tolist()


def test_gather_elements_reads_along_one_axis():
    data = np.arange(12).reshape(3, 4)
    indices = np.array([[0, -1], [1, 1]])
    expected = [[data[indices[i, j], j] for j in range(2)] for i in range(2)]
    assert run(g.GatherElements(0), data, indices).tolist() == expected


@pytest.mark.parametrize(
    ("batch", "shape", "indices"),
    [(0, (3, 4), (2, 2)), (0, (3, 4), (2, 1)), (1, (3, 4, 5), (3, 2, 1)), (1, (3, 4, 5), (3, 2)), (0, (3, 4), (2, 0)),
     (2, (2, 3, 4), (2, 3, 1)), (1, (2, 3), (2, 0, 1))],
)  # fmt: skip
def test_gather_nd_is_its_definition(batch: int, shape, indices):
    data = np.arange(math.prod(shape)).reshape(shape)
    where = np.random.default_rng(0).integers(-2, 2, indices)
    got = run(g.GatherND(batch), data, where)
    for at in np.ndindex(*indices[:-1]):
        np.testing.assert_array_equal(got[at], data[at[:batch] + tuple(where[at])])
    assert got.shape == indices[:-1] + shape[batch + indices[-1] :]


@pytest.mark.parametrize(
    ("reduction", "expected"),
    [("none", [5, 3, 9]), ("add", [1 + 4 + 5, 2 + 3, 9]), ("mul", [20, 6, 9]), ("max", [5, 3, 9]), ("min", [1, 2, 9])],
)
def test_scattered_elements_are_combined(reduction: str, expected: list[int]):
    data, updates = np.array([1, 2, 9]), np.array([4, 3, 5])
    assert run(g.ScatterElements(0, reduction), data, np.array([0, 1, -3]), updates).tolist() == expected
    assert data.tolist() == [1, 2, 9], "the operand is not written to"


def test_scatter_nd_writes_rows():
    data = np.zeros((3, 2), np.int64)
    got = run(g.ScatterND("add"), data, np.array([[2], [0], [2]]), np.array([[1, 2], [3, 4], [5, 6]]))
    assert got.tolist() == [[3, 4], [0, 0], [6, 8]]


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        (g.Scan("sum", 0), [1, 3, 6]), (g.Scan("sum", 0, True), [0, 1, 3]), (g.Scan("sum", 0, False, True), [6, 5, 3]),
        (g.Scan("sum", 0, True, True), [5, 3, 0]), (g.Scan("prod", 0, True), [1, 1, 2]), (g.Scan("max", 0), [1, 2, 3]),
        (g.Scan("min", 0, False, True), [1, 2, 3]), (g.Scan("max", 0, True), [-(2**63), 1, 2]),
    ],
)  # fmt: skip
def test_a_scan_combines_what_came_before(op: g.Scan, expected: list[int]):
    assert run(op, np.array([1, 2, 3])).tolist() == expected


def test_top_k_is_stable_and_nan_is_the_largest():
    x = np.array([2.0, np.nan, 3.0, 2.0, np.nan, -np.inf])
    assert run(g.TopK(0, 4, True, "indices"), x).tolist() == [1, 4, 2, 0]
    assert run(g.TopK(0, 6, False, "indices"), x).tolist() == [5, 0, 3, 2, 1, 4]
    assert run(g.TopK(0, 2, False, "values"), x).tolist() == [-np.inf, 2.0]
    assert run(g.TopK(0, 2, True, "indices"), np.array([-128, 127, 127], np.int8)).tolist() == [1, 2]


def test_iota_counts_along_its_axis():
    assert run(g.Iota(1), shape=(2, 3), dtype="float32").tolist() == [[0, 1, 2]] * 2


@pytest.mark.parametrize(
    ("kind", "last", "expected"), [("argmax", False, 1), ("argmax", True, 3), ("argmin", False, 0), ("argmin", True, 2)]
)
def test_the_first_or_the_last_of_equals_is_chosen(kind: str, last: bool, expected: int):
    assert run(g.Reduce(kind, (0,), last), np.array([1, 5, 1, 5])).tolist() == expected


def test_reductions_of_nothing_give_the_neutral_value():
    empty = np.zeros((2, 0), np.float32)
    values = {kind: run(g.Reduce(kind, (1,)), empty).tolist()[0] for kind in ("sum", "prod", "max", "min")}
    assert values == {"sum": 0, "prod": 1, "max": -math.inf, "min": math.inf}


def test_reductions_hand_on_nan_and_keep_the_dtype_of_integers():
    assert math.isnan(run(g.Reduce("max", (0,)), np.array([1, math.nan, 3])))
    total = run(g.Reduce("sum", (0,)), np.array([100, 100], np.int8))
    assert (total.dtype, int(total)) == (np.int8, -56)
