"""Regions: closed formulas against counting."""

from __future__ import annotations

from itertools import product

import hypothesis.strategies as st
import pytest
from hypothesis import given

from pipeline.ir.expr import Affine
from pipeline.ir.poly import Poly
from pipeline.ir.program import Derived
from pipeline.ir.region import at_least, covers, dense, inner, interval, separates, sign

T1, T2, T3 = (Poly.symbol(name) for name in ("t1", "t2", "t3"))


def form(constant: int = 0, **terms: Poly | int) -> Affine:
    return Affine(tuple(sorted((name, Poly.of(c)) for name, c in terms.items())), Poly.of(constant))


TILED = form(3, m0=T1 * T2 * T3, m1=T2 * T3, m2=T3, m3=1)
RANGES = {"m1": T1, "m2": T2, "m3": T3}


def test_the_region_of_tiled_loops_is_the_product_of_their_extents() -> None:
    assert interval(TILED, RANGES) == (form(3, m0=T1 * T2 * T3), T1 * T2 * T3)
    assert interval(TILED, {"m2": T2, "m3": T3}) == (form(3, m0=T1 * T2 * T3, m1=T2 * T3), T2 * T3)
    assert interval(TILED, {"m3": T3}) == (form(3, m0=T1 * T2 * T3, m1=T2 * T3, m2=T3), T3)
    assert interval(TILED, {}) == (TILED, Poly.of(1))


def test_a_window_is_as_long_as_the_stride_and_the_kernel_make_it() -> None:
    assert interval(form(h=2, r=1), {"h": T1, "r": Poly.of(3)}) == (form(), 2 * T1 + 1)


def test_a_sign_that_is_not_known_gives_no_region() -> None:
    assert interval(form(i=T1 - T2), {"i": T3}) is None
    assert [sign(p) for p in (Poly.of(0), T1, T1 * -1, T1 - 2, T1 + 1)] == [
        "zero", "positive", "negative", "unknown", "positive",
    ]  # fmt: skip


SMALL = st.integers(-4, 4)


@given(st.lists(st.tuples(SMALL, st.integers(1, 4)), min_size=1, max_size=3), SMALL)
def test_the_interval_is_tight_and_says_when_it_has_no_gaps(loops: list[tuple[int, int]], constant: int) -> None:
    names = [f"i{n}" for n in range(len(loops))]
    index = Affine(tuple((n, Poly.of(c)) for n, (c, _) in zip(names, loops, strict=True) if c), Poly.of(constant))
    ranges = {name: Poly.of(extent) for name, (_, extent) in zip(names, loops, strict=True)}
    found = interval(index, ranges)
    assert found is not None and not found[0].terms
    base, extent = found[0].constant.value, found[1].value
    points = list(product(*(range(e) for _, e in loops)))
    values = [constant + sum(c * p for (c, _), p in zip(loops, point, strict=True)) for point in points]
    assert (min(values), max(values)) == (base, base + extent - 1)
    if dense(index, ranges):
        assert set(values) == set(range(base, base + extent))
    rest = inner(index, ranges)
    assert rest.constant.value == constant - base
    for number, name in enumerate(names):
        if separates(index, name, ranges):
            by_value: dict[int, set[int]] = {}
            for value, point in zip(values, points, strict=True):
                by_value.setdefault(value, set()).add(point[number])
            assert all(len(seen) == 1 for seen in by_value.values())


def test_tiled_indices_are_dense_and_tell_their_loops_apart() -> None:
    assert dense(TILED, RANGES) and all(separates(TILED, var, RANGES) for var in RANGES)
    assert not dense(form(i=2), {"i": T1}) and separates(form(i=2), "i", {"i": T1})
    assert not separates(form(h=2, r=1), "h", {"h": T1, "r": Poly.of(3)})
    assert not separates(form(j=1), "i", {"i": T1, "j": T2})


@given(st.lists(st.tuples(st.sampled_from([(), ("t1",), ("t2",), ("t1", "t2")]), SMALL), max_size=4), st.data())
def test_what_is_proven_of_sizes_holds_at_every_value(
    terms: list[tuple[tuple[str, ...], int]], data: st.DataObject
) -> None:
    poly = Poly.of(0)
    for monomial, coefficient in terms:
        poly = poly + Poly(((monomial, coefficient),) if coefficient else ())
    if at_least(poly, Poly.of(0)):
        values = {name: data.draw(st.integers(1, 9)) for name in ("t1", "t2")}
        assert poly.evaluate(values) >= 0


def test_a_derived_symbol_covers_what_it_was_made_for() -> None:
    n = Derived("n", Poly.of(100), T1)
    o = Derived("o", Poly.symbol("n"), T2)
    whole = Poly.symbol("o") * T1 * T2
    assert at_least(Poly.symbol("n") * T1, Poly.of(100), (n, o))
    assert at_least(whole, Poly.of(100), (n, o)) and not at_least(whole, Poly.of(101), (n, o))
    assert not at_least(Poly.symbol("n") * T1, Poly.of(100))


@pytest.mark.parametrize(
    ("index", "extent", "limit", "known"),
    [
        (form(i0=4, i1=1), Poly.of(25), 100, True),
        (form(i0=4, i1=1), Poly.of(24), 100, False),
        (form(-1, i0=4, i1=1), Poly.of(25), 100, False),
        (form(i0=4, i1=-1), Poly.of(25), 100, False),
        (form(i1=1), Poly.of(25), 1, False),
    ],
)
def test_an_iteration_ends_with_a_loop_where_that_is_certain(
    index: Affine, extent: Poly, limit: int, known: bool
) -> None:
    assert covers(index, "i0", extent, Poly.of(limit)) is known
