"""The session: right values, clear refusals, several callers at once, and where the time goes."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.codegen.llvm.link import link
from pipeline.errors import PipelineError, UserError
from pipeline.runtime.artifact import save
from pipeline.runtime.loading import load
from pipeline.runtime.session import Session
from tests.codegen.hand_kernels import add_plan
from tests.codegen.test_module import chain

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def add_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(link(add_plan()), tmp_path_factory.mktemp("add") / "model")


@pytest.fixture(scope="module")
def chain_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(link(chain()), tmp_path_factory.mktemp("chain") / "model")


@pytest.fixture
def add(add_path: Path) -> Session:
    return load(add_path)


def feeds(n: int = 64, seed: int = 0) -> dict[str, np.ndarray]:
    a, b = np.random.default_rng(seed).standard_normal((2, n)).astype(np.float32)
    return {"a": a, "b": b}


def test_inputs_and_outputs_are_described_as_in_onnx_runtime(add: Session) -> None:
    assert [(i.name, i.shape, i.type, i.dtype) for i in add.get_inputs()] == [
        ("a", [64], "tensor(float)", np.float32),
        ("b", [64], "tensor(float)", np.float32),
    ]
    assert [o.name for o in add.get_outputs()] == ["y"]


def test_a_run_gives_the_outputs_in_the_order_asked_for(chain_path: Path) -> None:
    with load(chain_path) as session:
        given = feeds(100)
        everything = session.run(None, given)
        z, y = session.run(["z", "y"], given)
        np.testing.assert_array_equal(y, everything[0])
        np.testing.assert_array_equal(z, everything[1])
        np.testing.assert_array_equal(y, (given["a"] + given["b"])[::-1] - given["a"] * given["b"])
        assert z.shape == (50, 2)


def test_every_run_gives_new_arrays(add: Session) -> None:
    first = add.run(None, feeds(seed=1))[0]
    kept = first.copy()
    add.run(None, feeds(seed=2))
    np.testing.assert_array_equal(first, kept)


def test_large_outputs_begin_on_a_cache_line(tmp_path: Path) -> None:
    with load(save(link(add_plan(10_000)), tmp_path / "large")) as session:
        given = feeds(10_000)
        outputs = [session.run(None, given)[0] for _ in range(5)]
    assert all(output.ctypes.data % 64 == 0 and output.flags.c_contiguous for output in outputs)
    np.testing.assert_array_equal(outputs[0], given["a"] + given["b"])


def test_arrays_that_cannot_be_written_are_read_where_they_are(add: Session) -> None:
    given = feeds()
    wanted = given["a"] + given["b"]
    given["a"].setflags(write=False)
    given["b"] = np.frombuffer(given["b"].tobytes(), np.float32)
    assert not given["b"].flags.writeable
    np.testing.assert_array_equal(add.run(None, given)[0], wanted)


def test_arrays_that_are_not_contiguous_not_aligned_or_swapped_are_copied(add: Session) -> None:
    given = feeds()
    wanted = given["a"] + given["b"]
    raw = np.zeros(64 * 4 + 1, np.uint8)
    crooked = raw[1:].view(np.float32)
    crooked[:] = given["a"]
    assert not crooked.flags.aligned
    strided = np.repeat(given["b"], 2)[::2]
    assert not strided.flags.c_contiguous
    np.testing.assert_array_equal(add.run(None, {"a": crooked, "b": strided})[0], wanted)
    swapped = given["a"].astype(given["a"].dtype.newbyteorder())
    np.testing.assert_array_equal(add.run(None, {"a": swapped, "b": given["b"]})[0], wanted)


REFUSED = {
    "a missing input": ({"a": np.zeros(64, np.float32)}, None, "b: an input is missing"),
    "an unknown input": ({**feeds(), "c": np.zeros(1)}, None, "c: the model has no such input.*a, b"),
    "a misspelt input": ({"a": feeds()["a"], "bee": feeds()["b"]}, None, "bee: the model has no such input"),
    "a wrong shape": ({"a": np.zeros(63, np.float32), "b": feeds()["b"]}, None, r"a: .*wrong shape.*\[63\].*\[64\]"),
    "a wrong rank": ({"a": np.zeros((1, 64), np.float32), "b": feeds()["b"]}, None, r"a: .*wrong shape.*\[1, 64\]"),
    "a wrong dtype": ({"a": np.zeros(64), "b": feeds()["b"]}, None, r"a: .*wrong dtype.*float64.*float32.*astype"),
    "a list": ({"a": [0.0] * 64, "b": feeds()["b"]}, None, "wrong dtype"),
    "an unknown output": (feeds(), ["x"], "x: the model has no such output.*y"),
    "a number of an output": (feeds(), 5, "outputs are no list of names. int was given"),
    "a list of names in a list": (feeds(), [["y"]], "outputs are no list of names"),
    "a name in bytes": (feeds(), b"y", "outputs are no list of names"),
    "a ragged list": ({"a": [[1.0], [1.0, 2.0]], "b": feeds()["b"]}, None, "a: the input is no array"),
    "an array of feeds": (np.zeros((2, 64), np.float32), None, "feeds are no mapping"),
    "nothing": (None, None, "feeds are no mapping"),
    "no mapping": ([feeds()["a"], feeds()["b"]], None, "feeds are no mapping"),
}


def test_names_may_be_given_one_by_one(add: Session) -> None:
    (got,) = add.run(iter(["y"]), feeds())
    np.testing.assert_array_equal(got, feeds()["a"] + feeds()["b"])


@pytest.mark.parametrize("name", REFUSED)
def test_a_wrong_call_is_refused_with_its_reason_and_the_session_goes_on(add: Session, name: str) -> None:
    given, outputs, message = REFUSED[name]
    with pytest.raises(UserError, match=message):
        add.run(outputs, given)
    right = feeds()
    np.testing.assert_array_equal(add.run(None, right)[0], right["a"] + right["b"])


@pytest.mark.parametrize("threads", [1, 2])
def test_several_python_threads_share_a_session(chain_path: Path, threads: int) -> None:
    with load(chain_path, threads=threads) as session:

        def work(seed: int) -> bool:
            given = feeds(100, seed)
            wanted = (given["a"] + given["b"])[::-1] - given["a"] * given["b"]
            return all((session.run(["y"], given)[0] == wanted).all() for _ in range(50))

        with ThreadPoolExecutor(4) as pool:
            assert all(pool.map(work, range(8)))


def test_more_threads_than_the_model_was_made_for_are_refused(chain_path: Path) -> None:
    for threads in (0, 3):
        with pytest.raises(UserError, match=f"threads is {threads}. Ask for 1 to 2"):
            load(chain_path, threads=threads)


def test_a_path_and_threads_of_another_type_are_refused(chain_path: Path) -> None:
    with pytest.raises(UserError, match=r"threads is no number\. threads is 'a'\. Ask for 1 to 2"):
        load(chain_path, threads="a")
    with pytest.raises(UserError, match=r"the artifact's path is no path\. NoneType was given"):
        load(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("spin", [float("inf"), float("nan"), -5, 1e30, "a", None])
def test_a_time_to_spin_that_is_none_is_refused(chain_path: Path, spin: Any) -> None:
    with pytest.raises(UserError, match=r"spin_us is no time to spin.*Give microseconds, from 0"):
        load(chain_path, spin_us=spin)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs timers")
def test_an_interrupt_anywhere_in_a_run_leaves_the_session_usable(chain_path: Path) -> None:
    class Stop(Exception):
        pass

    def stop(*_: object) -> None:
        if armed:
            raise Stop

    armed, given, rng = False, feeds(100), np.random.default_rng(0)
    before = signal.signal(signal.SIGALRM, stop)
    try:
        with load(chain_path, threads=2) as session:
            (wanted,) = session.run(["y"], given)
            for delay in rng.uniform(2e-5, 3e-4, 300):
                with contextlib.suppress(Stop):
                    armed = True
                    signal.setitimer(signal.ITIMER_REAL, delay)
                    while True:
                        session.run(["y"], given)
                armed = False
                assert not session._turn.locked()
            np.testing.assert_array_equal(session.run(["y"], given)[0], wanted)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_callers_that_wait_while_the_session_is_closed_are_told_that_it_is(chain_path: Path) -> None:
    session = load(chain_path, threads=2)
    session._team.close()
    with pytest.raises(PipelineError, match="team is closed"):
        session.run(None, feeds(100))
    session._closed = True
    for call in (lambda: session._run_in(session._context, feeds(100)), lambda: session.profile(feeds(100))):
        with pytest.raises(UserError, match="the session is closed"):
            call()


def test_a_process_of_one_core_runs_on_one_thread(chain_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0}, raising=False)
    with load(chain_path) as session:
        assert session.threads == 1
        given = feeds(100)
        np.testing.assert_array_equal(session.run(["same_a"], given)[0], given["a"])
    with load(chain_path, threads=2) as session:
        assert session.threads == 2


def test_threads_can_be_pinned(chain_path: Path) -> None:
    before = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    with load(chain_path, pin=True) as session:
        given = feeds(100)
        np.testing.assert_array_equal(session.run(["same_a"], given)[0], given["a"])
    if before is not None:
        assert os.sched_getaffinity(0) == before


@pytest.mark.parametrize("threads", [1, 2])
def test_a_closed_session_refuses_to_run(chain_path: Path, threads: int) -> None:
    session = load(chain_path, threads=threads)
    session.close()
    session.close()
    with pytest.raises(PipelineError, match="closed"):
        session.run(None, feeds(100))


def test_a_profile_lists_every_call_and_adds_up_to_no_more_than_the_total(chain_path: Path) -> None:
    with load(chain_path) as session:
        profile = session.profile(feeds(100), repeats=3)
    assert [call["label"] for call in profile["calls"]][:4] == ["add", "rev", "mul", "sub"]
    assert all(call["ms"] >= 0 for call in profile["calls"])
    assert profile["total_ms"] > 0


def test_a_chrome_trace_has_a_bar_for_each_call_of_each_thread(chain_path: Path, tmp_path: Path) -> None:
    with load(chain_path, threads=2) as session:
        session.chrome_trace(tmp_path / "trace.json", feeds(100))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    bars = [event for event in events if event["ph"] == "X"]
    assert {bar["tid"] for bar in bars if bar["name"] == "rev"} == {0, 1}
    assert {bar["tid"] for bar in bars if bar["name"] == "copy to same_a"} == {0}
    assert all(bar["dur"] >= 0 and bar["ts"] >= 0 for bar in bars)
    own = [bar for bar in bars if bar["tid"] == 0]
    assert all(a["ts"] + a["dur"] <= b["ts"] + 1e-6 for a, b in itertools.pairwise(own))


def test_a_trace_that_cannot_be_written_is_a_clear_error(add: Session, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="trace cannot be written"):
        add.chrome_trace(tmp_path / "no" / "trace.json", feeds())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_runs_with_workers_of_its_own(chain_path: Path) -> None:
    code = f"""
import os, sys, numpy as np, pipeline
session = pipeline.load({str(chain_path)!r})
a = np.arange(100, dtype=np.float32)
want = session.run(["y"], {{"a": a, "b": a}})[0]
child = os.fork()
if child == 0:
    ok = all((session.run(["y"], {{"a": a, "b": a}})[0] == want).all() for _ in range(3))
    os._exit(0 if ok else 1)
status = os.waitpid(child, 0)[1]
assert (session.run(["y"], {{"a": a, "b": a}})[0] == want).all()
sys.exit(os.waitstatus_to_exitcode(status))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_model_without_elements_runs(tmp_path: Path) -> None:
    with load(save(link(add_plan(0)), tmp_path / "empty")) as session:
        assert session.run(None, feeds(0))[0].shape == (0,)


def test_a_model_without_kernels_hands_its_input_on(tmp_path: Path) -> None:
    plan = replace(
        add_plan(), kernels=(), calls=(), outputs=("same",), aliases={"same": "a"}, buffers=add_plan().buffers[:2]
    )
    with load(save(link(plan), tmp_path / "identity")) as session:
        given = feeds()
        np.testing.assert_array_equal(session.run(None, given)[0], given["a"])
        assert session.threads == 1
