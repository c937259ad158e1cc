"""A finding as JSON comes back as it was; what is not one is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pipeline.errors import PipelineError
from pipeline.superopt.enumeration.finding import Finding, from_json, to_json
from pipeline.superopt.enumeration.search import superoptimize
from pipeline.superopt.label import specify
from pipeline.superopt.spec import Spec
from tests.superopt.model_graphs import TARGET
from tests.superopt.stage_cases import finding, fused, normalised


def spec() -> Spec:
    made = specify(normalised())
    assert isinstance(made, Spec)
    return made


def test_a_finding_survives_json() -> None:
    assumed = finding(spec(), fused())
    assumed = replace(assumed, graphs=(replace(assumed.graphs[0], assumptions=("roots behave", "µ")),))
    for one in (assumed, finding(spec())):
        assert from_json(to_json(one)) == one
        assert "\n" not in to_json(one)


def test_what_a_search_gives_is_a_finding() -> None:
    found = superoptimize(spec(), TARGET, seconds=2.0)
    made = Finding.of(found)
    assert from_json(to_json(made)) == made
    assert len(made.graphs) == len(found.graphs) > 0
    assert made.graphs[0].tests >= 1 and 0 < made.graphs[0].bound < 1e-6
    assert made.statistics["proven"] == len(found.graphs)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"graphs": [{"text": "mugraph"}]}', "null"])
def test_what_is_not_a_finding_is_refused(text: str) -> None:
    with pytest.raises((ValueError, PipelineError)):
        from_json(text)
