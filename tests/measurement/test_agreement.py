"""The comparison of an output with its reference."""

import numpy as np
import pytest

from pipeline.measurement.agreement import agreement

NAN, INF = np.nan, np.inf


def check(got, want, tolerance=0.1, dtype=np.float32):
    want = np.asarray(want, np.float64 if np.dtype(dtype).kind == "f" else dtype)
    return agreement("y", np.asarray(got, dtype), want, np.asarray(tolerance, np.float64))


@pytest.mark.parametrize(
    ("got", "want"),
    [
        ([1.0, 2.0], [1.05, 1.95]),
        ([NAN, INF, -INF], [NAN, INF, -INF]),
        ([-0.0], [0.0]),
        ([], []),
    ],
)
def test_what_is_within_the_tolerance_is_right(got, want):
    assert check(got, want).wrong == ""


@pytest.mark.parametrize(
    ("got", "want", "place"),
    [
        ([1.0, 2.2], [1.0, 2.0], "y[1]"),
        ([NAN], [1.0], "y[0]"),
        ([1.0], [NAN], "y[0]"),
        ([INF], [-INF], "y[0]"),
        ([INF], [3e38], "y[0]"),
        ([1.0], [INF], "y[0]"),
        ([INF], [NAN], "y[0]"),
        ([[1.0, 1.0], [9.0, 1.5]], [[1.0, 1.0], [1.0, 1.0]], "y[1, 0]"),
    ],
)
def test_what_is_not_is_wrong_and_the_worst_place_is_named(got, want, place):
    assert check(got, want).wrong.startswith(place + " is ")


def test_an_infinite_tolerance_excuses_no_infinity():
    assert check([INF], [1.0], INF).wrong
    assert check([NAN], [1.0], INF).wrong
    assert not check([5.0], [1.0], INF).wrong


def test_a_tolerance_of_each_element_is_used():
    found = check([1.0, 2.0], [1.5, 2.5], [1.0, 0.1])
    assert found.wrong.startswith("y[1] is 2.0, not 2.5 (tolerance 0.1)")
    assert found.tolerance == pytest.approx(0.1)
    assert "1 of 2 elements" in found.wrong


def test_the_errors_are_over_all_finite_elements():
    found = check([1.0, 2.05, NAN], [1.0, 2.0, NAN])
    assert found.max_absolute == pytest.approx(0.05, abs=1e-6)
    assert found.max_relative == pytest.approx(0.025, abs=1e-6)


def test_integers_are_compared_exactly():
    big = 2**62
    assert check([big], [big], 0.0, np.int64).wrong == ""
    found = check([big + 1], [big], 0.0, np.int64)
    assert found.wrong.startswith("y[0] is")
    assert found.max_absolute == 1.0


def test_bools_are_compared():
    assert check([True], [True], 0.0, bool).wrong == ""
    assert check([True, False], [True, True], 0.0, bool).wrong.startswith("y[1] is False, not True")


def test_unsigned_integers_do_not_wrap():
    assert check([0], [255], 0.0, np.uint8).max_absolute == 255.0
