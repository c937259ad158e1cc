"""Tests of every operator against ONNX's own backend suite: refusing is allowed and counted, a wrong answer is not."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import onnx.defs

from pipeline.frontend.onnx.model import FAMILIES
from pipeline.frontend.onnx.operators import registered
from tests.frontend.onnx.node_suite import outcomes

COVERAGE = Path(__file__).parent / "onnx" / "coverage.json"

# Cases whose expected values are not what the operator's definition says.
KNOWN_DISAGREEMENTS = {
    "test_resize_downsample_scales_linear_align_corners": "takes 2.4 for the length of a result of 2",
    "test_resize_downsample_scales_cubic_align_corners": "takes 3.2 for the length of a result of 3",
}

# Scan-8 had a batch dimension of its own; it lived for one opset.
NOT_REGISTERED = {"Scan": [8]}


def test_no_operator_gives_a_wrong_answer() -> None:
    wrong = {outcome.case: outcome.why for outcome in outcomes() if outcome.kind == "wrong"}
    assert wrong.keys() == KNOWN_DISAGREEMENTS.keys(), wrong


def test_no_operator_loses_a_case_that_it_passed() -> None:
    """`coverage.json` holds how many cases of each operator pass; it is raised by hand when more do."""
    right = Counter(outcome.operator for outcome in outcomes() if outcome.kind == "right")
    recorded = json.loads(COVERAGE.read_text())
    lost = {name: (right[name], count) for name, count in recorded.items() if right[name] < count}
    assert not lost, f"operator: (passing now, passing before): {lost}"
    assert sum(right.values()) >= sum(recorded.values())


def test_a_refusal_says_what_is_not_supported() -> None:
    reasons = ("not supported", "depend", "training mode", "is a sequence", "is a optional", "is a sparse tensor")
    unclear = {o.case: o.why for o in outcomes() if o.kind == "refused" and not any(r in o.why for r in reasons)}
    assert not unclear


def test_every_version_of_a_registered_operator_is_registered() -> None:
    """From opset 7 on; so a new onnx package with a new version of an operator is noticed here."""
    assert FAMILIES
    versions: dict[tuple[str, str], set[int]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        versions.setdefault((schema.domain, schema.name), set()).add(schema.since_version)
    missing = {}
    for key, have in registered().items():
        if key not in versions:
            continue
        at_seven = max((since for since in versions[key] if since <= 7), default=7)
        needed = {since for since in versions[key] if since >= at_seven}
        # the last version only says that the operator is gone
        gone = {since for since in needed if onnx.defs.get_schema(key[1], since, key[0]).deprecated}
        if needed - gone - set(have):
            missing[key[1]] = sorted(needed - gone - set(have))
    assert missing == NOT_REGISTERED
