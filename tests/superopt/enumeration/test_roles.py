"""Roles are assigned to axes, so that maps that pair elements of different tiles are never proposed."""

from __future__ import annotations

from pipeline.superopt.enumeration.roles import (
    GRID_AXES,
    LOOPS,
    Roles,
    assignments,
    factors,
    positional_maps,
    summed_labels,
)
from tests.superopt.specs import SUITE, Writer, gqa, ntrans, rmsnorm_linear


def test_every_assignment_keeps_to_the_limits_and_no_two_are_the_same() -> None:
    for make in SUITE.values():
        spec = make()
        found = list(assignments(spec))
        assert len(set(found)) == len(found) > 0
        for roles in found:
            assert len(roles.grid) <= GRID_AXES and len(roles.loops) <= LOOPS
            assert len(set(roles.loops)) == len(roles.loops)


def test_what_an_expert_would_choose_is_among_them() -> None:
    assert Roles((0, 2), (1,)) in list(assignments(rmsnorm_linear()))
    assert Roles((0, 1, 4), (2,)) in list(assignments(gqa())), "rows over the grid, a loop over keys"
    assert Roles((0, 1, 2), (2,)) in list(assignments(gqa())), "keys split over the grid, and a loop over each part"


def test_an_axis_that_is_summed_and_used_again_stays_whole() -> None:
    assert {roles.grid for roles in assignments(ntrans())} == {(0,)}
    assert all(1 not in roles.loops for roles in assignments(ntrans()))


def test_at_most_one_sum_is_split_over_the_grid() -> None:
    spec = gqa()
    inner = summed_labels(spec)
    assert inner == {2, 3}
    assert all(len(inner & {*roles.grid}) <= 1 for roles in assignments(spec))


def test_only_summed_axes_have_factors_that_terms_tell_apart() -> None:
    spec = rmsnorm_linear()
    found = factors(spec, Roles((0, 1, 2), (1,)))
    assert found == {0: ((0, "t"),), 1: ((1, "g"), (1, "l"), (1, "t")), 2: ((2, "t"),)}
    assert factors(spec, Roles((0, 2), ()))[1] == ((1, "t"),)


def test_a_specification_without_sums_has_no_loops_but_those_over_its_result() -> None:
    w = Writer((8, 16))
    spec = w.finish(w.apply("add", w.input("x", (0, 1)), w.input("y", (0, 1))))
    assert {roles.loops for roles in assignments(spec)} == {(), (0,), (1,)}


def test_the_maps_by_position_are_counted() -> None:
    """x, w and out have three choices for an axis each: one grid axis and one loop make 3^2 * 3^2 * 3."""
    assert positional_maps(rmsnorm_linear(), Roles((0,), (1,))) == 9 * 9 * 3
