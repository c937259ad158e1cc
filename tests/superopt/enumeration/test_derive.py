"""Programs over a table of values come cheapest first, each once, and none that goes round in a circle."""

from __future__ import annotations

from pipeline.superopt.enumeration.derive import PATIENCE, Derivation, completions, derivations, least_costs, needed
from pipeline.superopt.enumeration.labelled import Handed, Maker, Pointwise, Read
from pipeline.superopt.enumeration.statistics import Statistics


def way(cost: float, *inputs: int, fn: str = "add") -> Maker:
    return Maker(Pointwise(fn) if inputs else Read(0), inputs, cost)


# 0 and 1 are inputs; 2 has a cheap and a dear way; 3 needs 2; 4 is another way to the goal; 5 is in no program
TABLE = [
    [way(1)],
    [way(1)],
    [way(2, 0, 1), way(5, 0, 0, fn="mul")],
    [way(1, 2, 0), way(9, 4, 1)],
    [way(3, 1)],
    [way(1, 3)],
]


def costs(goals: list[int], table: list[list[Maker]], **limits: float) -> list[float]:
    return [one.cost for one in derivations(table, goals, Statistics(), **limits)]


def test_every_program_comes_once_and_the_cheapest_first() -> None:
    found = costs([3], TABLE, factor=100.0)
    assert found == [5.0, 7.0, 13.0]  # 3 from 2 (a shared input counts once), from the dear 2, and from 4


def test_what_costs_a_multiple_of_the_best_is_left_out() -> None:
    statistics = Statistics()
    found = [one.cost for one in derivations(TABLE, [3], statistics, factor=1.5)]
    assert found == [5.0, 7.0] and statistics.pruned_roofline > 0


def test_ways_that_need_each_other_make_no_program() -> None:
    circle = [[way(1)], [way(1, 2)], [way(1, 1)]]
    assert costs([1], circle) == []
    open_circle = [[way(1)], [way(1, 2), way(7, 0)], [way(1, 1)]]
    assert costs([1], open_circle) == [8.0]
    assert Derivation(1, {1: way(1, 2), 2: way(1, 1)}, 2.0).order() is None


def test_a_value_that_is_shared_counts_once() -> None:
    diamond = [[way(4)], [way(1, 0)], [way(1, 0)], [way(1, 1, 2)]]
    assert costs([3], diamond) == [7.0]
    assert completions(diamond)[0][3] == 0b1111
    assert least_costs(diamond)[3] == 6.0, "a bound does not count both sides"


def test_a_second_kernel_costs_extra_once() -> None:
    handed = [
        [way(1)],
        [way(1, 0)],
        [Maker(Handed(), (0,), 1.0)],
        [Maker(Handed(), (1,), 1.0)],
        [way(1, 2, 3)],
    ]
    (one,) = costs([4], handed)
    assert 3e4 < one < 2 * 3e4


def test_values_in_no_program_are_known() -> None:
    assert needed(TABLE, [3]) == {0, 1, 2, 3, 4}
    assert needed(TABLE, []) == set()


def test_an_order_has_operands_first() -> None:
    for one in derivations(TABLE, [3], Statistics(), factor=100.0):
        order = one.order()
        assert order is not None and order[-1] == 3
        for place, value in enumerate(order):
            assert all(order.index(i) < place for i in one.ways[value].inputs)


def test_no_more_partial_programs_than_patience_allows_follow_the_last_whole_one() -> None:
    wide = [[way(1)]] + [[way(1, i), way(1, i, i), way(1, 0, i), way(1, i, 0)] for i in range(12)]
    statistics = Statistics()
    list(derivations(wide, [12], statistics))
    assert 0 < statistics.prefixes < 10 * PATIENCE
