"""The pruned enumeration finds every class of small programs that brute force finds; here a part of them."""

from __future__ import annotations

import pytest

from pipeline.superopt.enumeration.enumerate import Table
from tests.superopt.completeness import (
    BINARY,
    UNARY,
    brute_force,
    chosen,
    is_found,
    leads_to,
    operators,
    shortest,
    without_waste,
)

SEED = 7


def test_every_class_of_two_operators_and_a_sample_of_three_are_found() -> None:
    two, three = brute_force(2, SEED), brute_force(3, SEED)
    assert len(two) > 300 and len(three) > 5000
    programs = [*two.values(), *chosen(three, 300, SEED)]
    assert [program for program in programs if not is_found(program, SEED)] == []


def test_the_shortest_program_is_found_from_a_longer_one_where_the_axioms_lead_to_it() -> None:
    longer: dict[int, tuple[tuple[str, tuple[int, ...]], ...]] = {}
    first = brute_force(3, SEED, longer)
    pairs = [(first[value], program) for value, program in longer.items() if value in first]
    led = [(least, program) for least, program in pairs if leads_to(program, least)]
    assert len(led) > 30
    assert [(least, program) for least, program in led if shortest(program, SEED) > len(least)] == []


def test_brute_force_tries_every_operator_on_every_choice_of_values() -> None:
    steps = set(operators(3))
    assert len(steps) == 3 * len(UNARY) + 6 * (len(BINARY) - 1) + 9
    assert without_waste((("exp", (0,)), ("sum", (0,)), ("add", (2, 4)))) == (("sum", (0,)), ("add", (2, 3)))


def test_a_class_is_missed_when_what_it_needs_is_pruned(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison can fail: a pruning that lets no value be an exponent loses the classes that need one."""
    program = (("dot", (0, 1)), ("exp", (3,)))
    assert is_found(program, SEED)
    monkeypatch.setattr(Table, "_may_be_exponent", lambda table, number: False)
    assert not is_found(program, SEED)
