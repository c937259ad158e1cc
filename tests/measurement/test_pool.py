"""The worker pool: what goes wrong in a job costs that job, and no worker outlives its parent."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

from pipeline.errors import MeasureError
from pipeline.measurement.failure import Failure
from pipeline.measurement.pool import WorkerPool

JOBS = "tests.measurement.planted_jobs:"
ROOT = Path(__file__).resolve().parents[2]
LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc and the limits of Linux")
MEMORY = 1 << 28


@pytest.fixture(autouse=True)
def _importable(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))


@pytest.fixture
def pool():
    with WorkerPool(1, memory_bytes=MEMORY) as pool:
        yield pool


def ask(pool, name, argument=None, timeout_s=20.0):
    return pool.submit(JOBS + name, argument, timeout_s).result(timeout=60)


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as stream:
            return stream.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def families(pids):
    """These processes and those that they started."""
    found = list(pids)
    for pid in found:
        found += [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    assert len(found) == 2 * len(pids)
    return found


def wait_until(condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


def test_a_job_gives_its_result(pool):
    assert ask(pool, "double", 21) == 42


def test_a_function_that_can_be_imported_may_be_given_itself(pool):
    assert pool.submit(os.path.basename, "a/b", 20.0).result(60) == "b"


def test_a_function_that_cannot_be_imported_is_refused(pool):
    with pytest.raises(MeasureError, match="import this function"):
        pool.submit(lambda x: x, 1, 1.0)


def test_a_worker_persists_from_job_to_job(pool):
    assert ask(pool, "pid") == ask(pool, "pid") != os.getpid()


@pytest.mark.parametrize(
    ("job", "argument", "reason", "detail"),
    [
        ("segfault", None, "crash", "SIGSEGV"),
        ("shout_and_die", "assertion of a library", "crash", "SIGABRT; its output: assertion of a library"),
        ("die", 7, "crash", "exited with code 7"),
        ("fail", "bad shape", "error", "ValueError: bad shape"),
        ("leave", 3, "error", "SystemExit: 3"),
        ("unpicklable", None, "error", "pickle"),
        ("absent", None, "error", "has no attribute 'absent'"),
        ("spin", None, "timeout", "not finished after 0.3 s"),
        pytest.param("spin_and_hold_the_lock", None, "timeout", "0.3 s", marks=LINUX),
        pytest.param("exhaust", None, "memory", "MemoryError", marks=LINUX),
        pytest.param("exhaust_natively", None, "memory", "SIGSEGV after growing by", marks=LINUX),
    ],
)
def test_a_job_that_goes_wrong_costs_that_job_only(pool, job, argument, reason, detail):
    timeout_s = 0.3 if reason == "timeout" else 20.0
    bad = pool.submit(JOBS + job, argument, timeout_s)
    good = pool.submit(JOBS + "double", 4, 20.0)
    failure = bad.result(60)
    assert isinstance(failure, Failure)
    assert failure.reason == reason
    assert detail in failure.detail
    assert good.result(60) == 8


def test_other_workers_go_on_while_one_hangs_and_one_crashes():
    with WorkerPool(2, memory_bytes=MEMORY) as pool:
        hung = pool.submit(JOBS + "spin", None, 1000.0)
        crashed = pool.submit(JOBS + "segfault", None, 20.0)
        assert [pool.submit(JOBS + "double", i, 20.0).result(60) for i in range(20)] == [2 * i for i in range(20)]
        assert crashed.result(60).reason == "crash"
        assert not hung.done()


def test_the_clock_starts_with_the_job_and_not_while_it_waits(pool):
    futures = [pool.submit(JOBS + "sleep", 0.5, 1.9) for _ in range(4)]
    assert [future.result(60) for future in futures] == ["slept"] * 4


def test_an_argument_that_cannot_be_pickled_is_a_failure_of_its_job(pool):
    failure = pool.submit(JOBS + "double", lambda: None, 1.0).result(60)
    assert failure.reason == "error"
    assert "cannot be pickled" in failure.detail


def test_what_a_job_prints_does_not_disturb_the_pipe_nor_the_terminal(pool, capfd):
    assert ask(pool, "shout", "noise" * 100) == "quiet"
    assert ask(pool, "double", 1) == 2
    assert capfd.readouterr() == ("", "")


def test_the_output_of_an_earlier_job_is_not_blamed_for_a_crash(pool):
    ask(pool, "shout", "innocent")
    assert "innocent" not in ask(pool, "segfault").detail


@LINUX
def test_a_worker_that_holds_too_much_after_a_job_is_replaced():
    with WorkerPool(1, memory_bytes=1 << 30, recycle_bytes=1 << 27) as pool:
        first = ask(pool, "keep", 1 << 20)
        assert ask(pool, "pid") == first
        assert ask(pool, "keep", 1 << 28) == first
        assert ask(pool, "pid") != first


@LINUX
def test_the_limit_is_on_growth_so_one_job_after_another_may_use_it_all(pool):
    for _ in range(3):
        assert isinstance(ask(pool, "keep", MEMORY * 3 // 4), int)


@LINUX
def test_memory_is_told_from_a_crash_whatever_the_parent_holds():
    ballast = np.ones(3 * MEMORY, np.uint8)
    with WorkerPool(1, memory_bytes=MEMORY) as pool:
        assert ask(pool, "exhaust_natively").reason == "memory"
        assert ask(pool, "segfault").reason == "crash"
    assert ballast.all()


def test_every_new_worker_is_initialized():
    with WorkerPool(1, memory_bytes=MEMORY, initializer=JOBS + "initialize", initializer_argument="seven") as pool:
        assert ask(pool, "initialized") == "seven"
        ask(pool, "segfault")
        assert ask(pool, "initialized") == "seven"


def test_an_initializer_that_fails_is_a_failure_of_each_job():
    with WorkerPool(1, memory_bytes=MEMORY, initializer=JOBS + "refuse_to_start") as pool:
        for _ in range(2):
            failure = ask(pool, "double", 1)
            assert failure.reason == "error"
            assert "no license" in failure.detail


@LINUX
def test_workers_do_not_see_the_hash_seed_and_thread_settings_of_the_parent(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "64")
    monkeypatch.setenv("PYTHONHASHSEED", "1")
    with WorkerPool(1, memory_bytes=MEMORY) as pool:
        value, _, ignores_environment = ask(pool, "environment", "OMP_NUM_THREADS")
    assert (value, ignores_environment) == ("1", 1)


@LINUX
def test_closing_kills_workers_in_the_middle_of_a_job():
    pool = WorkerPool(2, memory_bytes=MEMORY)
    running = [pool.submit(JOBS + "spin", None, 100.0) for _ in range(2)]
    waiting = pool.submit(JOBS + "double", 1, 1.0)
    assert wait_until(lambda: all(future.running() for future in running) and len(pool.worker_pids()) == 2)
    pids = families(pool.worker_pids())
    pool.close()
    assert wait_until(lambda: not any(alive(pid) for pid in pids))
    assert all("pool was closed" in future.result(10).detail for future in [*running, waiting])
    assert "closed" in pool.submit(JOBS + "double", 1, 1.0).result(10).detail


@LINUX
def test_what_a_job_started_is_killed_with_its_worker(pool, tmp_path):
    assert ask(pool, "has_a_child_that_sleeps", str(tmp_path / "child"), 1.0).reason == "timeout"
    child = int((tmp_path / "child").read_text())
    assert wait_until(lambda: not alive(child))


PARENT = textwrap.dedent(
    """
    import sys, time
    sys.path.insert(0, {root!r})
    from pipeline.measurement.pool import WorkerPool
    pool = WorkerPool(3, memory_bytes=1 << 28)
    futures = [pool.submit("tests.measurement.planted_jobs:" + job, None, 100.0) for job in {jobs!r}]
    while len(pool.worker_pids()) < 3 or not all(future.running() for future in futures):
        time.sleep(0.01)
    time.sleep(0.3)
    print(*pool.worker_pids(), flush=True)
    futures[0].result()
    """
)


def start_parent(jobs):
    program = PARENT.format(root=str(ROOT), jobs=jobs)
    parent = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    pids = [int(word) for word in parent.stdout.readline().split()]
    assert len(pids) == 3
    return parent, families(pids)


@LINUX
def test_no_worker_survives_a_parent_that_was_killed():
    parent, pids = start_parent(["spin", "spin_and_hold_the_lock"])
    parent.kill()
    parent.communicate()
    assert wait_until(lambda: not any(alive(pid) for pid in pids))


@LINUX
def test_control_c_ends_the_parent_and_its_workers_with_one_traceback():
    parent, pids = start_parent(["spin"])
    os.killpg(parent.pid, signal.SIGINT)
    _, errors = parent.communicate(timeout=30)
    assert wait_until(lambda: not any(alive(pid) for pid in pids))
    assert errors.count("Traceback") == 1
    assert errors.strip().endswith("KeyboardInterrupt")


SCRIPT = textwrap.dedent(
    """
    import sys
    sys.path.insert(0, {root!r})
    from pipeline.measurement.pool import WorkerPool
    print("main runs")
    with WorkerPool(1, memory_bytes=1 << 28) as pool:
        print(pool.submit("tests.measurement.planted_jobs:double", 21, 20.0).result())
    """
)


@pytest.mark.parametrize("way", ["script", "module", "standard input", "interactive"])
def test_the_pool_works_whatever_the_main_module_is(way, tmp_path):
    text = SCRIPT.format(root=str(ROOT))
    (tmp_path / "unguarded.py").write_text(text)
    arguments, given = {
        "script": (["unguarded.py"], None),
        "module": (["-m", "unguarded"], None),
        "standard input": (["-"], text),
        "interactive": (["-i", "-q"], text + "\n\n"),
    }[way]
    done = subprocess.run(
        [sys.executable, *arguments], input=given, cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.split() == ["main", "runs", "42"], done.stderr
