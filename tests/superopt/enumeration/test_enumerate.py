"""The table of values reaches every program, keeps to what a block can do, and proposes nothing unsafe."""

from __future__ import annotations

import math

import pytest

from pipeline.superopt.enumeration.enumerate import Limits, Table, Vocabulary
from pipeline.superopt.enumeration.explore import frames, nominal
from pipeline.superopt.enumeration.fingerprint import Point
from pipeline.superopt.enumeration.labelled import Gathered, Pointwise, Rescaled, RunningMost, Summed
from pipeline.superopt.enumeration.roles import Roles, factors
from pipeline.superopt.enumeration.statistics import Statistics
from pipeline.superopt.goal.goal import Goal
from pipeline.superopt.spec import Spec
from tests.superopt.specs import Writer, gqa, moe, rmsnorm_linear
from tests.superopt.topologies import TWO_CORES


def table(spec: Spec, roles: Roles, *, foreign: int = 1, scratch: float = math.inf) -> Table:
    """Filled, without any limit of time."""
    factored = factors(spec, roles)
    boxes, split = frames(spec, roles)
    goal = Goal.of(spec, {label: tuple(part for _, part in own) for label, own in factored.items()})
    made = Table(
        spec, Point(spec, factored, 1), boxes, split, nominal(spec, roles, TWO_CORES), goal, Vocabulary.of(spec),
        Statistics(), scratch,
    )  # fmt: skip
    made.fill(Limits(foreign, 2000, 0))
    return made


def product_with_a_function_of_the_second_operand() -> Spec:
    """X silu(W): what a lexicographic order of operands cannot reach."""
    w = Writer((8, 16, 12))
    x, weight = w.input("x", (0, 1)), w.input("w", (1, 2))
    return w.finish(w.product(x, w.silu(weight), (1,)))


@pytest.mark.parametrize("roles", [Roles((0, 2), ()), Roles((0, 2), (1,)), Roles((0, 1, 2), ())])
def test_a_product_with_a_function_of_the_second_operand_is_reached(roles: Roles) -> None:
    assert table(product_with_a_function_of_the_second_operand(), roles, foreign=0).goals


def test_values_are_numbered_after_what_they_were_first_made_of() -> None:
    made = table(gqa(), Roles((0, 1, 4), (2,)))
    for value, ways in enumerate(made.makers):
        assert ways and all(i < value for i in ways[0].inputs)


def test_nothing_that_depends_on_an_accumulator_is_read_in_its_loops() -> None:
    made = table(gqa(), Roles((0, 1, 4), (2, 3)))
    for value, ways in zip(made.values, made.makers, strict=True):
        assert value.depth <= value.after
        for way in ways:
            deepest = max((made.values[i].depth for i in way.inputs), default=0)
            assert all(deepest <= made.values[i].after for i in way.inputs)


def test_what_depends_on_a_running_maximum_leaves_its_loop_only_rescaled() -> None:
    made = table(gqa(), Roles((0, 1, 4), (2,)))
    assert any(isinstance(way.op, Rescaled) for ways in made.makers for way in ways)
    for ways in made.makers:
        for way in ways:
            if isinstance(way.op, Gathered | RunningMost):
                assert not made.values[way.inputs[0]].stale
            if isinstance(way.op, Rescaled):
                assert made.values[way.inputs[0]].stale == {way.inputs[1]}


def test_a_score_is_exponentiated_only_below_its_own_maximum() -> None:
    made = table(gqa(), Roles((0, 1, 2), (2,)), foreign=2)
    exponents = {i for ways in made.makers for way in ways if way.op == Pointwise("exp") for i in way.inputs}
    assert exponents
    for number in exponents:
        assert any(way.op == Pointwise("sub") for way in made.makers[number])


def test_what_the_specification_exponentiates_without_a_maximum_may_be() -> None:
    made = table(moe(), Roles((0, 1, 4), (2,)))
    assert any(way.op == Pointwise("exp") for ways in made.makers for way in ways)


def test_tiles_that_fit_at_no_extents_are_pruned() -> None:
    """Without a loop over keys, the keys of a head are in one tile: 4096 * 64 * 4 bytes."""
    whole = table(gqa(), Roles((0, 1, 4), ()), scratch=1 << 30)
    small = table(gqa(), Roles((0, 1, 4), ()), scratch=1 << 19)
    assert whole.goals and whole.statistics.pruned_memory == 0
    assert not small.goals and small.statistics.pruned_memory > 0


def test_a_value_found_again_is_another_way_to_make_it() -> None:
    made = table(rmsnorm_linear(), Roles((0, 2), ()), foreign=2)
    assert made.statistics.pruned_equal > 0
    several = [ways for ways in made.makers if len(ways) > 1]
    assert several and all(len({(way.op, way.inputs) for way in ways}) == len(ways) for ways in several)


def test_wider_limits_go_on_from_where_the_table_is() -> None:
    made = table(rmsnorm_linear(), Roles((0, 2), (1,)), foreign=0)
    near = list(made.values)
    assert not any(way.op == Summed(frozenset({(1, "t")})) and len({*way.inputs} & {0, 1}) == 2
                   for goal, _ in made.goals for way in made.makers[goal])  # fmt: skip
    made.fill(Limits(4, 2000, 0))
    assert made.values[: len(near)] == near and len(made.values) > len(near)
    assert made.goals


def test_a_function_that_has_no_model_over_the_field_is_counted_and_not_kept() -> None:
    w = Writer((8, 16))
    power = w.apply("exp", w.input("x", (0, 1)))
    spec = w.finish(w.reduce("sum", w.apply("mul", power, w.apply("sigmoid", w.input("y", (0, 1)))), (1,)))
    made = table(spec, Roles((0,), ()), foreign=4)
    assert made.goals
    dead = [value for value in range(len(made.values)) if made.makers[value][0].op == Pointwise("exp")]
    assert all(made.makers[value][0].inputs[0] < 2 for value in dead), "exp of an input only"


def test_the_vocabulary_is_what_the_specification_has_and_arithmetic() -> None:
    words = Vocabulary.of(gqa())
    assert words.unary == ("exp",) and words.binary == ("add", "div", "mul", "sub") and words.kinds == ("max", "sum")
