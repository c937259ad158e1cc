"""The search as a stage asks for it: its axioms must hold, and its version tells findings apart."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pipeline.errors import ConfigError, UserError
from pipeline.superopt.enumeration.searching import Searching
from pipeline.superopt.label import specify
from pipeline.superopt.spec import Spec
from rules.graph.algebra import Algebra
from tests.superopt.model_graphs import TARGET
from tests.superopt.stage_cases import normalised


def searching(*extra: str, **given: int) -> Searching:
    return Searching.of(Algebra(extra=extra), TARGET, **{"seed": 0, "workers": 1, "tests": 3, **given})


def test_what_it_finds_is_proven_by_as_many_tests_as_it_was_told() -> None:
    spec = specify(normalised())
    assert isinstance(spec, Spec)
    finding = searching()(spec, 3.0)
    assert finding.graphs and all(one.tests == 3 for one in finding.graphs)
    assert finding.seconds < 6.0 and not finding.interrupted


def test_its_version_says_everything_that_decides_over_a_finding() -> None:
    made = searching()
    others = (searching(seed=1), searching(tests=4), replace(made, axioms=made.axioms[:-1]))
    assert len({made.version, *(other.version for other in others)}) == 4
    assert searching().version == made.version == searching(workers=2).version


@pytest.mark.parametrize(
    ("axiom", "said"),
    [
        ("bad: x + y <-> x * y", "an axiom does not hold.*x = "),
        ("x + ", "unreadable axiom"),
        ("never: log(-1 - x * x) -> x", "axiom"),
    ],
)
def test_an_axiom_that_does_not_hold_is_a_mistake_of_the_user(axiom: str, said: str) -> None:
    with pytest.raises(UserError, match=said) as caught:
        searching(axiom)
    assert isinstance(caught.value, ConfigError) or "unreadable" in str(caught.value)
