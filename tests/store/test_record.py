"""Records: their key, their JSON, and what contradicts itself."""

import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from pipeline.store.record import Record, candidate_key, from_json, to_json

RECORD = Record(
    task_key="a" * 64,
    task_name="gmm",
    sketch="split(i); vectorize(j)",
    values={"t0": 4, "t1": 8},
    target="x86-64/avx2/2",
    version="0.1.0",
    status="ok",
    created=datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC),
    samples=(10.0, 30.0, 20.0),
    latency_ns=20.0,
    max_error=1e-6,
    tolerance=1e-4,
    seed=7,
)


def test_a_record_survives_its_json():
    assert from_json(to_json(RECORD)) == RECORD


def test_an_infinite_error_survives_its_json():
    bad = replace(RECORD, status="failed", reason="wrong", latency_ns=None, samples=(), max_error=float("inf"))
    assert from_json(to_json(bad)) == bad


def test_the_key_does_not_depend_on_the_order_of_the_values():
    assert candidate_key("t", "s", {"a": 1, "b": 2}) == candidate_key("t", "s", {"b": 2, "a": 1})


@pytest.mark.parametrize("other", [("u", "s", {"a": 1}), ("t", "r", {"a": 1}), ("t", "s", {"a": 2}), ("t", "s", {})])
def test_the_key_tells_candidates_apart(other):
    assert candidate_key("t", "s", {"a": 1}) != candidate_key(*other)


def test_the_key_is_the_same_in_another_process():
    program = "from pipeline.store.record import candidate_key; print(candidate_key('t', 's', {'a': 1, 'b': 2}))"
    there = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert there.stdout.strip() == candidate_key("t", "s", {"a": 1, "b": 2})


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"status": "maybe"}, "not ok or failed"),
        ({"latency_ns": None}, "latency is None"),
        ({"latency_ns": 0.0}, "latency is 0"),
        ({"latency_ns": float("nan")}, "latency is nan"),
        ({"samples": ()}, "no sample"),
        ({"status": "failed"}, "no reason"),
        ({"created": datetime(2026, 1, 1)}, "no zone"),
    ],
)
def test_a_record_that_contradicts_itself_says_so(change, reason):
    assert reason in replace(RECORD, **change).why_invalid()


def test_a_prediction_needs_no_sample():
    assert replace(RECORD, predicted=True, samples=()).why_invalid() is None


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("[]", "not an object"),
        ("{", "Expecting"),
        ("{}", "missing"),
        (to_json(RECORD).replace('"seed"', '"sed"'), "unknown keys sed"),
        (to_json(RECORD).replace('"ok"', '"fine"'), "fine"),
        (to_json(RECORD).replace('"t0": 4', '"t0": null'), "mistyped"),
    ],
)
def test_a_line_that_is_not_a_record_is_refused(line, reason):
    with pytest.raises(ValueError, match=reason):
        from_json(line)
