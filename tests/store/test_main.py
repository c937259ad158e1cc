"""The store command: every subcommand, and the mistakes that exit with 2."""

import io
import json
import os
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from pipeline.store.__main__ import main
from pipeline.store.record import Record, from_json, to_json
from pipeline.store.store import Store

ROOT = Path(__file__).resolve().parents[2]
FAST = Record(
    task_key="ab" * 32,
    task_name="gmm",
    sketch="split(i)",
    values={"t0": 4},
    target="x86-64",
    version="0.1.0",
    status="ok",
    created=datetime(2026, 1, 2, 3, 4, tzinfo=UTC),
    samples=(2000.0,),
    latency_ns=2000.0,
)
SLOW = replace(FAST, values={"t0": 8}, samples=(9000.0,), latency_ns=9000.0)
BROKEN = replace(FAST, values={"t0": 9}, samples=(), latency_ns=None, status="failed", reason="crash: SIGSEGV")


def url_of(path):
    return f"sqlite:///{path}"


def filled(path, *records):
    with Store(url_of(path)) as store:
        store.add(records)
    return path


def content(path):
    with Store(url_of(path)) as store:
        return store.everything()


def run(path, *arguments):
    output = io.StringIO()
    code = main(["--url", url_of(path), *arguments], output=output)
    return code, output.getvalue()


@pytest.fixture
def path(tmp_path):
    return filled(tmp_path / "store.db", FAST, SLOW, BROKEN)


def test_list_prints_one_line_for_a_task(path):
    code, text = run(path, "list")
    assert code == 0
    head, line = text.splitlines()
    assert head.split() == ["task", "key", "target", "version", "kind", "ok", "failed", "best", "newest"]
    assert line.split() == [
        "gmm",
        "abababababab",
        "x86-64",
        "0.1.0",
        "measured",
        "2",
        "1",
        "2.0",
        "us",
        "2026-01-02",
        "03:04",
    ]


def test_list_says_that_there_is_nothing(tmp_path):
    _, text = run(filled(tmp_path / "empty.db"), "list")
    assert "(no records)" in text


def test_export_and_import_give_the_same_records(path, tmp_path):
    code, text = run(path, "export", "-")
    assert code == 0
    assert [from_json(line) for line in text.splitlines()] == content(path)
    file = tmp_path / "records.jsonl"
    assert run(path, "export", str(file))[0] == 0
    assert run(tmp_path / "copy.db", "import", str(file)) == (0, "3 records read, 3 of them new\n")
    assert content(tmp_path / "copy.db") == content(path)
    assert run(tmp_path / "copy.db", "import", str(file)) == (0, "3 records read, 0 of them new\n")


def test_export_can_be_limited_to_a_task(path):
    assert run(path, "export", "-", "--task", "gm")[1] == ""
    assert len(run(path, "export", "-", "--task", "gmm")[1].splitlines()) == 3
    assert len(run(path, "export", "-", "--task", "abab")[1].splitlines()) == 3


def test_export_does_not_overwrite(path, tmp_path, capsys):
    (tmp_path / "there").write_text("precious")
    assert run(path, "export", str(tmp_path / "there"))[0] == 2
    assert "exists" in capsys.readouterr().err
    assert (tmp_path / "there").read_text() == "precious"


def test_import_of_a_bad_line_names_it_and_imports_nothing(tmp_path, capsys):
    file = tmp_path / "records.jsonl"
    file.write_text(to_json(FAST) + "\n" + json.dumps({"task_key": 1}) + "\n")
    assert run(tmp_path / "copy.db", "import", str(file))[0] == 2
    assert "line 2" in capsys.readouterr().err
    assert content(tmp_path / "copy.db") == []


def test_merge_adds_what_is_new(path, tmp_path):
    other = filled(tmp_path / "other.db", FAST, replace(FAST, target="aarch64"))
    code, text = run(path, "merge", str(other), url_of(other))
    assert code == 0
    assert "2 records read, 1 of them new" in text.splitlines()[0]
    assert "2 records read, 0 of them new" in text.splitlines()[1]
    assert content(path) == [FAST, SLOW, BROKEN, replace(FAST, target="aarch64")]


def test_prune_deletes_and_can_only_say_how_many(path):
    assert run(path, "prune", "--failed", "--dry-run") == (0, "1 record would be deleted\n")
    assert run(path, "prune", "--failed", "--slower-than-best", "2") == (0, "2 records deleted\n")
    assert content(path) == [FAST]
    assert run(path, "prune", "--older-than", "0.5") == (0, "1 record deleted\n")


def test_prune_without_a_choice_is_refused(path, capsys):
    assert run(path, "prune")[0] == 2
    assert "--failed" in capsys.readouterr().err
    assert len(content(path)) == 3


def test_check_finds_nothing_in_a_sound_store(path):
    assert run(path, "check") == (0, "no problem found\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--url", "sqlite:////nowhere/at/all.db", "list"],
        ["--url", "nonsense", "list"],
        ["merge"],
        ["prune", "--slower-than-best", "0.5"],
        ["prune", "--older-than", "soon"],
        ["frobnicate"],
        [],
    ],
)
def test_a_mistake_of_the_user_exits_with_2_and_no_traceback(arguments, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "pipeline.store", *arguments],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 2
    assert "error" in done.stderr
    assert "Traceback" not in done.stderr


def test_merging_a_store_that_is_not_there_does_not_make_one(path, tmp_path, capsys):
    assert run(path, "merge", str(tmp_path / "absent.db"))[0] == 2
    assert "absent.db" in capsys.readouterr().err
    assert not (tmp_path / "absent.db").exists()
