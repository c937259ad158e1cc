"""Random variables: what they draw, change and repair is always allowed."""

from __future__ import annotations

from collections.abc import Callable

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from pipeline.schedule.codec import decode, encode
from pipeline.schedule.variables import VARIABLES, Choice, Rows, Tile, Variable


@st.composite
def tiles(draw: st.DrawFn) -> Tile:
    width = draw(st.integers(1, 4))
    extent = draw(st.sampled_from([0, 1, 2, 3, 7, 12, 13, 64, 97, 100, 1024]))
    symbols = tuple(f"t{i}" for i in range(width))
    if draw(st.booleans()):
        multiples = tuple(draw(st.sampled_from([1, 1, 2, 8])) for _ in symbols)
        return Tile(symbols, extent, multiples, tuple(m * draw(st.sampled_from([1, 3, 50])) for m in multiples))
    return Tile(symbols, extent, (1,) * width, tuple(draw(st.sampled_from([1, 4, 2000])) for _ in symbols), exact=True)


@st.composite
def choices(draw: st.DrawFn) -> Choice:
    return Choice("c", tuple(draw(st.lists(st.integers(0, 100), min_size=1, max_size=6, unique=True))))


def allowed(variable: Variable, rows: Rows) -> bool:
    if isinstance(variable, Choice):
        return bool(np.isin(rows, variable.options).all())
    fits = (rows % np.array(variable.multiple_of) == 0).all() and (rows <= np.array(variable.at_most)).all()
    product = rows.prod(axis=1)
    inside = (product <= variable.cap).all() if not variable.exact else (max(variable.extent, 1) % product == 0).all()
    return bool(fits and inside and (rows >= 1).all())


@settings(max_examples=60, deadline=None)
@given(tiles() | choices(), st.integers(0, 2**32 - 1))
def test_everything_that_a_variable_gives_is_allowed(variable: Variable, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = variable.draw(40, rng)
    assert rows.dtype == np.int64 and rows.shape == (40, len(variable.symbols))
    low, high = variable.bounds()
    assert isinstance(variable, Choice) or allowed(variable, rows)
    assert (rows >= low).all() and (rows <= high).all()
    wild = rng.integers(1, 3000, size=rows.shape)
    shrunk = variable.shrink(rows, int(rng.integers(len(variable.symbols))))
    for found in (variable.mutate(rows, rng), variable.repair(wild), shrunk, variable.neighbours(rows[0])):
        assert found.shape[1] == len(variable.symbols) and allowed(variable, found)
    assert (variable.repair(rows) == rows).all()
    assert (variable.neighbours(rows[0]) != rows[0]).any(axis=1).all()
    assert decode(encode(variable), VARIABLES) == variable


def test_equal_seeds_draw_equal_rows() -> None:
    tile = Tile(("a", "b"), 1000, (1, 8), (1000, 64))
    first, second = (tile.draw(100, np.random.default_rng(7)) for _ in range(2))
    assert (first == second).all()


def test_draws_reach_the_whole_tile_and_single_elements() -> None:
    rows = Tile(("a", "b"), 97, (1, 1), (97, 97)).draw(2000, np.random.default_rng(0))
    assert {1, 97} <= set(rows[:, 0].tolist()) and {1, 97} <= set(rows[:, 1].tolist())
    assert len(np.unique(rows, axis=0)) > 100


def test_draws_waste_little_of_a_prime_extent() -> None:
    rows = Tile(("a",), 97, (1,), (97,)).draw(2000, np.random.default_rng(0))
    waste = -(-97 // rows[:, 0]) * rows[:, 0] / 97
    assert np.median(waste) < 1.15


def test_an_exact_tile_has_every_factorisation() -> None:
    rows = Tile(("a", "b"), 12, (1, 1), (12, 12), exact=True).draw(3000, np.random.default_rng(0))
    assert len(np.unique(rows, axis=0)) == sum(1 for a in range(1, 13) for b in range(1, 13) if 12 % (a * b) == 0)


def test_a_small_extent_is_covered_by_one_innermost_multiple() -> None:
    rows = Tile(("a", "b"), 3, (1, 16), (8, 64)).draw(50, np.random.default_rng(0))
    assert (rows == [1, 16]).all()


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Tile((), 4, (), ()),
        lambda: Tile(("a",), 4, (1, 1), (4,)),
        lambda: Tile(("a",), -1, (1,), (4,)),
        lambda: Tile(("a",), 4, (0,), (4,)),
        lambda: Tile(("a",), 4, (8,), (4,)),
        lambda: Tile(("a",), 7, (2,), (8,), exact=True),
        lambda: Choice("c", ()),
        lambda: Choice("c", (1, 1)),
    ],
)
def test_a_variable_without_values_cannot_be_made(wrong: Callable[[], Variable]) -> None:
    with pytest.raises(AssertionError):
        wrong()
