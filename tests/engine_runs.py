"""Runs of the whole command in processes of their own, small enough for a test, and what they leave behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.runtime.artifact import load_artifact
from pipeline.store.record import Record
from pipeline.store.store import Store

CHECKOUT = Path(__file__).resolve().parent.parent
QUICK = (
    "measurement.runner.policy.samples=3", "measurement.runner.policy.min_sample_ms=0.1", "measurement.workers=1",
    "cost_model=roofline", "search.candidates=64",
)  # fmt: skip
SMALL = ("+workload=gmm", "workload.n=64", "workload.m=48", "workload.k=32", *QUICK)


def start(folder: Path, overrides: Sequence[str]) -> subprocess.Popen[str]:
    """The command, begun; its store, its results and its temporary files are in `folder`."""
    (folder / "tmp").mkdir(exist_ok=True)
    return subprocess.Popen(
        [sys.executable, "-m", "pipeline", *overrides, f"store.url=sqlite:///{folder}/store.sqlite",
         f"hydra.run.dir={folder}/run"],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(CHECKOUT), "TMPDIR": str(folder / "tmp")},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def run(folder: Path, *overrides: str) -> dict[str, Any]:
    """The summary of a run that must succeed."""
    process = start(folder, overrides)
    said, _ = process.communicate()
    assert process.returncode == 0, said
    return summary(folder)


def summary(folder: Path) -> dict[str, Any]:
    """What the last run says of itself."""
    found = json.loads((folder / "run" / "summary.json").read_text(encoding="utf-8"))
    assert isinstance(found, dict)
    return found


def records(folder: Path) -> dict[str, Record]:
    """Every committed record by the candidate's key; none twice, the database whole."""
    if not (folder / "store.sqlite").exists():
        return {}
    with Store(f"sqlite:///{folder}/store.sqlite") as store:
        assert store.problems() == []
        found = store.everything()
    keyed = {record.candidate_key: record for record in found}
    assert len(keyed) == len(found), "a candidate was measured twice"
    return keyed


def artifact_is_whole(folder: Path) -> bool:
    """Whether there is an artifact; one that is there must load, every file with its checksum."""
    path = folder / "run" / "artifact"
    if not path.exists():
        return False
    load_artifact(path, verify=True)
    return True
