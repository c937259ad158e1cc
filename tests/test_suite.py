"""Tests of the table of several runs: its columns, what counts as the best peer, and the row of means."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.suite import table, write_table


def run(ms: float | None = 2.0, roofline: float | None = 1.0, verified: bool = True, **peers: Any) -> dict[str, Any]:
    """A summary; a peer is given by its ratio, or by its status where it has none that counts."""
    found = {
        name: {"ratio": 0.1 if value == "disagrees" else None, "status": value}
        if isinstance(value, str)
        else {"ratio": value, "status": "ok"}
        for name, value in peers.items()
    }
    latency = None if ms is None else {"median": ms}
    return {"latency_ms": latency, "roofline_ms": roofline, "verified": verified, "peers": found}


def cells(summaries: dict[str, dict[str, Any]]) -> dict[str, dict[str, str]]:
    """The table by row and column; columns are told by where their heads end."""
    lines = table(summaries)
    heads = ["run", "ms", "fast", "slow", "best peer", "roofline", "verified"]
    heads = [head for head in heads if f" {head}" in f" {lines[0]}"]
    ends = [lines[0].index(head) + len(head) for head in heads]
    rows = {}
    for line in lines[1:]:
        starts = [max(len(name) for name in [*summaries, "geometric mean"] if line.startswith(name)), *ends[1:-1]]
        name = line[: starts[0]]
        rows[name] = {h: line[a:b].strip() for h, a, b in zip(heads[1:], starts, ends[1:], strict=True)}
    return rows


def test_a_row_has_our_time_the_ratios_the_best_and_the_share_of_the_roofline() -> None:
    found = cells({"a-0": run(fast=0.8, slow=3.0)})
    assert found == {
        "a-0": {"ms": "2", "fast": "0.8x", "slow": "3x", "best peer": "0.8x", "roofline": "50%", "verified": "yes"}
    }


def test_the_last_row_has_the_geometric_means() -> None:
    found = cells({"a-0": run(fast=2.0, slow=1.0), "a-1": run(roofline=0.5, verified=False, fast=0.5, slow=4.0)})
    assert list(found) == ["a-0", "a-1", "geometric mean"]
    assert found["a-1"]["verified"] == "NO"
    assert found["geometric mean"] == {
        "ms": "", "fast": "1x", "slow": "2x", "best peer": "0.7071x", "roofline": "35%", "verified": "1 of 2"
    }  # fmt: skip


@pytest.mark.parametrize("status", ["disagrees", "failed", "missing"])
def test_a_peer_that_gave_no_result_of_ours_says_so_and_is_not_the_best(status: str) -> None:
    found = cells({"a-0": run(fast=status, slow=3.0), "a-1": run(fast=2.0, slow=3.0)})
    assert (found["a-0"]["fast"], found["a-0"]["best peer"]) == (status, "3x")
    assert found["geometric mean"]["fast"] == "2x"


def test_a_run_without_a_time_has_no_figures() -> None:
    found = cells({"a-0": {"verified": False, "latency_ms": None, "peers": {}}, "a-1": run(fast=2.0)})
    assert found["a-0"] == {"ms": "-", "fast": "-", "best peer": "-", "roofline": "-", "verified": "NO"}
    assert found["geometric mean"]["best peer"] == "2x"


def test_runs_without_peers_have_no_columns_for_them() -> None:
    assert table({"a-0": run(), "a-1": run()})[0].split() == ["run", "ms", "roofline", "verified"]


def test_a_time_that_was_predicted_is_marked() -> None:
    predicted = {"latency_ms": {"median": 2.0}, "predicted": True, "verified": True}
    measured = {"latency_ms": {"median": 2.0}, "predicted": False, "verified": True}
    rows = table({"a": predicted, "b": measured})
    assert rows[1].split()[2] == "predicted"
    assert "predicted" not in rows[2]


def test_a_verification_that_did_not_see_all_is_marked_and_not_counted() -> None:
    found = cells({"a-0": run(), "a-1": {**run(), "unchecked": "the emitted source"}})
    assert [row["verified"] for row in found.values()] == ["yes", "in part", "1 of 2"]


def test_no_run_at_all_is_a_head_alone() -> None:
    assert [line.split() for line in table({})] == [["run", "ms", "roofline", "verified"]]


def test_the_jobs_of_a_sweep_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for name in ("10-gmm", "9-gmm", "empty"):
        (tmp_path / name).mkdir()
    for name in ("10-gmm", "9-gmm"):
        (tmp_path / name / "summary.json").write_text(json.dumps(run()), encoding="utf-8")
    write_table(tmp_path)
    assert list(json.loads((tmp_path / "table.json").read_text(encoding="utf-8"))) == ["9-gmm", "10-gmm"]


def test_without_a_run_there_is_no_table(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "pipeline"):
        write_table(tmp_path)
    assert not caplog.messages
    assert json.loads((tmp_path / "table.json").read_text()) == {}
