"""The store: what is kept, what is best, several writers, kills, and bad places."""

import os
import sqlite3
import subprocess
import sys
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from pipeline.errors import UserError
from pipeline.store.record import Record
from pipeline.store.schema import LAYOUT, SCHEMA_VERSION
from pipeline.store.store import Store

ROOT = Path(__file__).resolve().parents[2]
NOW = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
TASK, HERE, VERSION = "a" * 64, "here", "1"


def record(latency_ns=10.0, **changes):
    base = Record(
        task_key=TASK,
        task_name="gmm",
        sketch="split(i)",
        values={"t0": int(latency_ns or 0)},
        target=HERE,
        version=VERSION,
        status="ok",
        created=NOW,
        samples=(latency_ns,),
        latency_ns=latency_ns,
        max_error=1e-6,
        tolerance=1e-4,
        seed=2**40,
    )
    return replace(base, **changes)


def failed(number=0):
    values = {"t0": -number}
    return replace(record(), values=values, status="failed", reason="crash", samples=(), latency_ns=None)


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/new/folder/store.db"


@pytest.fixture
def store(url):
    with Store(url) as store:
        yield store


def test_a_record_comes_back_as_it_was(store):
    store.add([record()])
    assert store.records(TASK, HERE, VERSION) == [record()]


def test_a_record_is_there_for_the_next_process(store, url):
    store.add([record(), failed()])
    store.close()
    with Store(url) as again:
        assert again.records(TASK, HERE, VERSION) == [record(), failed()]


def test_a_candidate_is_kept_once_and_the_first_stays(store):
    assert store.add([record(), record(20.0)]) == 2
    assert store.add([record(99.0, values={"t0": 10}), record(30.0)]) == 1
    assert [found.latency_ns for found in store.records(TASK, HERE, VERSION)] == [10.0, 20.0, 30.0]


def test_a_store_in_memory_forgets_when_it_is_closed():
    with Store("sqlite://") as store:
        assert store.add([record()]) == 1
        assert store.records(TASK, HERE, VERSION) == [record()]
    with Store("sqlite://") as store:
        assert store.everything() == []


@pytest.mark.parametrize("change", [{"target": "there"}, {"version": "2"}, {"task_key": "b" * 64}])
def test_another_target_version_or_task_is_another_record(store, change):
    assert store.add([record(), record(**change)]) == 2
    assert store.records(TASK, HERE, VERSION) == [record()]
    assert store.known(TASK, HERE, VERSION) == {record().candidate_key}


def test_the_best_is_the_fastest_that_is_ok_and_measured(store):
    assert store.best(TASK, HERE, VERSION) is None
    store.add([failed(), record(1.0, predicted=True, samples=()), record(30.0), record(20.0), record(25.0)])
    assert store.best(TASK, HERE, VERSION) == record(20.0)


def test_a_prediction_is_best_only_among_predictions(store):
    store.add([record(5.0), record(1.0, predicted=True, samples=())])
    assert store.best(TASK, HERE, VERSION, predicted=True) == record(1.0, predicted=True, samples=())
    assert store.records(TASK, HERE, VERSION) == [record(5.0)]
    assert len(store.records(TASK, HERE, VERSION, predicted=None)) == 2


def test_a_prediction_and_a_measurement_of_one_candidate_are_both_kept(store):
    assert store.add([record(predicted=True, samples=()), record()]) == 2


def test_failed_candidates_are_known_so_that_they_are_not_tried_again(store):
    store.add([failed(3), record()])
    assert store.known(TASK, HERE, VERSION) == {failed(3).candidate_key, record().candidate_key}


def test_a_batch_is_all_or_nothing(store):
    with pytest.raises(ValueError, match="no reason"):
        store.add([record(), record(20.0, status="failed")])
    assert store.records(TASK, HERE, VERSION) == []


def test_an_empty_batch_is_no_transaction(store):
    assert store.add([]) == 0


def test_summaries_count_by_task_target_and_version(store):
    store.add(
        [record(10.0), record(20.0), failed(), record(1.0, target="there"), record(3.0, task_name="x", task_key="c")]
    )
    rows = [(task.task_name, task.target, task.ok, task.failed, task.best_ns) for task in store.tasks()]
    assert rows == [("gmm", "here", 2, 1, 10.0), ("gmm", "there", 1, 0, 1.0), ("x", "here", 1, 0, 3.0)]
    assert [task.task_name for task in store.tasks("x")] == ["x"]
    assert store.tasks()[0].newest == NOW


def test_pruning_deletes_what_was_asked_for_and_nothing_else(store):
    old = record(40.0, created=NOW - timedelta(days=30))
    other = record(500.0, target="there")
    store.add([record(10.0), record(20.0), record(21.0), old, failed(), other])
    assert store.prune() == 0
    assert store.prune(slower_than=2.0, dry=True) == 2
    assert store.prune(slower_than=2.0) == 2
    assert store.prune(failed=True) == 1
    assert store.everything() == [record(10.0), record(20.0), other]
    store.add([old])
    assert store.prune(before=NOW - timedelta(days=1)) == 1
    assert store.everything() == [record(10.0), record(20.0), other]


def test_a_sound_store_has_no_problems(store):
    store.add([record(), failed()])
    assert store.problems() == []


def test_a_record_that_was_altered_is_found(store, tmp_path):
    store.add([record()])
    with sqlite3.connect(tmp_path / "new/folder/store.db") as raw:
        raw.execute("update muschedule_records set sketch = 'other'")
    assert "not that of its contents" in store.problems()[0]


def start_writer(url, writer, count):
    return subprocess.Popen(
        [sys.executable, str(ROOT / "tests/store/planted_writer.py"), url, writer, str(count)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )


def test_two_processes_write_at_once_and_nothing_is_lost(url):
    writers = [start_writer(url, name, 25) for name in ("one", "two")]
    for writer in writers:
        _, errors = writer.communicate(timeout=60)
        assert writer.returncode == 0, errors
    with Store(url) as store:
        assert len(store.everything()) == 2 * 25 * 8
        assert store.problems() == []


@pytest.mark.parametrize("place", ["file", "memory"])
def test_threads_of_one_process_may_share_a_store(url, place):
    store = Store(url if place == "file" else "sqlite://")
    threads = [
        threading.Thread(target=lambda base=base: [store.add([record(float(base + i))]) for i in range(10)])
        for base in (100, 200, 300)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(store.everything()) == 30
    store.close()


def test_a_kill_at_any_moment_loses_no_committed_record(url):
    committed = {}
    for attempt in range(5):
        writer = start_writer(url, f"writer {attempt}", 10**6)
        assert writer.stdout.readline() == "ready\n"
        time.sleep(0.35 + 0.043 * attempt)
        writer.kill()
        said, _ = writer.communicate()
        committed[f"writer {attempt}"] = [int(line) for line in said.splitlines()]
        with Store(url) as store:
            assert store.problems() == []
            found = {}
            for each in store.everything():
                found.setdefault(each.sketch.split(" step")[0], set()).add((each.values["number"], each.values["row"]))
            for name, numbers in committed.items():
                assert {(number, row) for number in numbers for row in range(8)} <= found.get(name, set())
            assert all(len(rows) % 8 == 0 for rows in found.values()), "half a batch is there"
    assert sum(len(numbers) for numbers in committed.values()) > 0


def test_a_run_resumes_without_measuring_again(url):
    candidates = [record(float(i)) for i in range(1, 11)]
    with Store(url) as store:
        store.add(candidates[:6])
    with Store(url) as store:
        known = store.known(TASK, HERE, VERSION)
        rest = [candidate for candidate in candidates if candidate.candidate_key not in known]
        assert rest == candidates[6:]
        assert store.add(rest) == 4


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("no url", "cannot be read"),
        ("mysql://host/name", "mysql cannot hold"),
        ("sqlite:////dev/null/folder/store.db", "cannot make the folder"),
        ("sqlite:////proc/store.db", "cannot use the tuning store"),
        ("postgresql+nodriver://host/name", "cannot open"),
    ],
)
def test_a_bad_place_is_the_users_error_and_names_the_setting(bad, message):
    with pytest.raises(UserError, match=message) as caught:
        Store(bad)
    assert "store.url" in str(caught.value)


def test_a_password_is_not_shown():
    with pytest.raises(UserError) as caught:
        Store("mysql://me:secret@host/name")
    assert "secret" not in str(caught.value)


def test_a_file_that_is_not_a_database_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "store.db"
    path.write_bytes(b"my thesis" * 1000)
    with pytest.raises(UserError, match="not a database"):
        Store(f"sqlite:///{path}")
    assert path.read_bytes() == b"my thesis" * 1000


def test_a_database_of_another_program_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "store.db"
    with sqlite3.connect(path) as raw:
        raw.execute("create table recipes (name text)")
    with pytest.raises(UserError, match=r"not a tuning store.*recipes"):
        Store(f"sqlite:///{path}")
    with sqlite3.connect(path) as raw:
        assert raw.execute("select name from sqlite_master").fetchall() == [("recipes",)]


def test_a_store_of_a_newer_program_is_refused(url, tmp_path):
    Store(url).close()
    with sqlite3.connect(tmp_path / "new/folder/store.db") as raw:
        raw.execute(f"update {LAYOUT.name} set version = {SCHEMA_VERSION + 1}")
    with pytest.raises(UserError, match=r"layout 2.*Update MuSchedule"):
        Store(url)


def test_a_damaged_store_is_a_clear_error(url, tmp_path):
    with Store(url) as store:
        store.add([record(float(i), sketch="x" * 3000) for i in range(1, 200)])
    path = tmp_path / "new/folder/store.db"
    data = bytearray(path.read_bytes())
    data[4096 : len(data) // 2] = b"\xff" * (len(data) // 2 - 4096)
    path.write_bytes(data)
    with pytest.raises(UserError, match=r"malformed.*restore a copy"), Store(url) as store:
        store.everything()


@pytest.mark.skipif(hasattr(os, "geteuid") and os.geteuid() == 0, reason="root may write everywhere")
def test_a_file_that_cannot_be_written_is_a_clear_error(url, tmp_path):
    Store(url).close()
    path = tmp_path / "new/folder/store.db"
    path.chmod(0o400)
    path.parent.chmod(0o500)
    try:
        with pytest.raises(UserError, match="writable"), Store(url) as store:
            store.add([record()])
    finally:
        path.parent.chmod(0o700)


def test_a_full_disk_asks_for_space_whatever_the_database_calls_it(tmp_path: Path) -> None:
    with Store(f"sqlite:///{tmp_path}/s.sqlite") as store:
        for cause in ("database or disk is full", "disk I/O error"):
            assert "Free some space" in store._database._told(OSError(cause)).todo


def test_a_note_is_kept_until_another_takes_its_place(store, url):
    assert store.noted("k" * 64) is None
    store.note("k" * 64, "µGraph 1")
    store.note("other", "2")
    store.note("k" * 64, "3")
    with Store(url) as again:
        assert (again.noted("k" * 64), again.noted("other")) == ("3", "2")


def test_a_store_from_before_there_were_notes_is_given_their_table(url, tmp_path):
    with Store(url) as store:
        store.add([record()])
    with sqlite3.connect(tmp_path / "new/folder/store.db") as connection:
        connection.execute("DROP TABLE muschedule_notes")
    with Store(url) as store:
        assert store.noted("k") is None
        store.note("k", "text")
        assert store.noted("k") == "text" and len(store.everything()) == 1
