"""Equal values have equal fingerprints however they are computed, and different ones do not."""

from __future__ import annotations

import pytest

from pipeline.superopt.enumeration.fingerprint import Point
from pipeline.superopt.enumeration.roles import Roles, factors
from pipeline.verification.field_algebra import NotProvable
from tests.superopt.specs import SUITE, gqa, rmsnorm_linear

K = frozenset({(1, "g"), (1, "l"), (1, "t")})


def point(seed: int = 3) -> Point:
    spec = rmsnorm_linear()
    return Point(spec, factors(spec, Roles((0, 1, 2), (1,))), seed)


def test_a_sum_in_parts_is_the_sum() -> None:
    at = point()
    x, w = at.leaf(0), at.leaf(1)
    whole = at.contract(K, x, w)
    part = at.contract(frozenset({(1, "t")}), x, w)
    in_parts = at.reduce("sum", frozenset({(1, "g")}), at.reduce("sum", frozenset({(1, "l")}), part))
    assert at.digest(whole) == at.digest(in_parts)
    assert at.digest(whole) != at.digest(at.contract(K, x, at.apply("add", w, w)))


def test_a_maximum_in_parts_is_the_maximum() -> None:
    at = point()
    x = at.leaf(0)
    in_parts = at.reduce("max", frozenset({(1, "g")}), at.reduce("max", frozenset({(1, "l"), (1, "t")}), x))
    assert at.digest(in_parts) == at.digest(at.reduce("max", K, x))
    assert at.digest(in_parts) != at.digest(at.reduce("min", K, x))


def test_the_same_numbers_along_other_axes_are_another_value() -> None:
    at = point()
    one = at.number(1.0)
    along_m = at.apply("div", at.reduce("sum", K, at.leaf(0)), at.reduce("sum", K, at.leaf(0)))
    assert not at.agrees(one, along_m) and at.digest(one) != at.digest(along_m)


def test_a_part_that_an_exponential_left_dead_says_nothing() -> None:
    at = point()
    x = at.reduce("sum", K, at.leaf(0))
    power = at.apply("exp", x)
    same = at.apply("div", at.apply("mul", x, power), power)
    assert at.agrees(x, same) and at.digest(x) != at.digest(same)
    assert not at.agrees(x, power)


def test_a_second_exponential_has_no_fingerprint() -> None:
    at = point()
    with pytest.raises(NotProvable, match="exponential"):
        at.apply("exp", at.apply("exp", at.leaf(0)))


def test_a_point_is_drawn_from_its_seed() -> None:
    assert point(3).digest(point(3).leaf(0)) == point(3).digest(point(3).leaf(0))
    assert point(3).digest(point(3).leaf(0)) != point(4).digest(point(4).leaf(0))


def test_every_program_of_the_suite_has_values_at_a_point() -> None:
    for make in SUITE.values():
        spec = make()
        values = Point(spec, factors(spec, Roles((), ())), 1).run()
        assert [tuple(sorted({label for label, _ in value.factors})) for value in values] == [
            spec.labels(value) for value in range(len(values))
        ]


def test_a_difference_from_itself_is_nowhere() -> None:
    at = Point(gqa(), factors(gqa(), Roles((), ())), 1)
    assert not at.is_anywhere(at.apply("sub", at.leaf(0), at.leaf(0))) and at.is_anywhere(at.leaf(0))
