"""The console: the bar, the plain lines and the tables."""

import io

import pytest

from pipeline.report.console import Progress, duration, kernel_table, peer_table, summary_lines, task_table
from pipeline.report.summary import KernelFacts, Latency, PeerSummary, TaskSummary
from tests.report.test_summary import SUMMARY


class Clock:
    """Time that the test moves."""

    now = 0.0

    def __call__(self):
        return self.now


def progress(terminal, **budget):
    stream, clock = io.StringIO(), Clock()
    return Progress(stream, terminal=terminal, clock=clock, **budget), stream, clock


def test_a_terminal_gets_one_line_with_the_time_left_and_the_best():
    bar, stream, clock = progress(True, trials=100)
    clock.now = 10.0
    bar.update(25, best_ms=4.0, untuned_ms=8.0, task="gmm")
    assert (
        stream.getvalue() == "\r[======                  ]  25% 10 s, 30 s left  25/100 trials, best 4 ms (2.00x), gmm"
    )
    clock.now = 20.0
    bar.update(50)
    bar.close()
    lines = stream.getvalue().split("\r")
    assert lines[2].rstrip() == "[============            ]  50% 20 s, 20 s left  50/100 trials"
    assert len(lines[2]) == len(lines[1]), "the rest of the longer line is not wiped out"
    assert stream.getvalue().endswith("\n")


@pytest.mark.parametrize(("done", "said"), [(0, "0 subprograms"), (1, "1 subprogram"), (2, "2 subprograms")])
def test_one_is_a_singular(done, said):
    bar, stream, _ = progress(False, unit="subprograms")
    bar.update(done, task="of 3")
    assert stream.getvalue() == f"{said}, of 3, 0 s\n"


def test_one_trial_and_one_core_are_singulars():
    machine = SUMMARY.machine.model_copy(update={"cores": 1})
    lines = "\n".join(summary_lines(SUMMARY.model_copy(update={"trials": 1, "machine": machine})))
    assert "search: 1 trial in" in lines and ", 1 core, " in lines


def test_a_terminal_line_never_wraps():
    bar, stream, _ = progress(True, trials=10, columns=40)
    bar.update(1, task="x" * 100)
    assert len(stream.getvalue().strip("\r")) == 39


def test_a_file_gets_plain_lines_and_not_too_many():
    bar, stream, clock = progress(False, trials=1000)
    for second in range(31):
        clock.now = float(second)
        bar.update(second * 10)
    bar.close()
    lines = stream.getvalue().splitlines()
    assert "\r" not in stream.getvalue()
    assert 4 <= len(lines) <= 6
    assert lines[1] == " 10%  100/1000 trials, 10 s, 1 min 30 s left"


class Gone(io.StringIO):
    """A pipe that nobody reads."""

    def write(self, text):
        raise BrokenPipeError


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("stream", [None, Gone()])
def test_a_reader_that_went_away_costs_the_bar_and_not_the_run(stream, terminal):
    with Progress(stream, trials=10, terminal=terminal) as bar:
        bar.update(1, task="gmm")
        bar.message("said")
        bar.update(2)


def test_without_a_stream_there_is_no_terminal():
    with Progress(None, trials=10) as bar:
        bar.update(1)


def test_messages_stand_above_the_bar():
    bar, stream, _ = progress(True, trials=10)
    bar.update(1)
    bar.message("a candidate was wrong")
    bar.close()
    screen = stream.getvalue().split("\n")
    assert screen[0].split("\r")[-1] == "a candidate was wrong"
    assert screen[1].endswith("1/10 trials")


def test_nothing_is_printed_where_nothing_was_done():
    bar, stream, _ = progress(True, trials=10)
    bar.close()
    assert stream.getvalue() == ""


@pytest.mark.parametrize(
    ("budget", "done", "now", "left"),
    [
        ({"trials": 100}, 0, 5.0, None),
        ({"trials": 100}, 50, 5.0, 5.0),
        ({"seconds": 60.0}, 3, 15.0, 45.0),
        ({"trials": 10, "seconds": 60.0}, 5, 10.0, 10.0),
        ({"trials": 1000, "seconds": 60.0}, 1, 10.0, 50.0),
        ({"trials": 10}, 20, 10.0, 0.0),
        ({}, 20, 10.0, None),
    ],
)
def test_the_time_left_is_that_of_the_budget_that_ends_first(budget, done, now, left):
    bar, _, clock = progress(True, **budget)
    clock.now = now
    bar.update(done)
    assert bar.left_seconds() == (None if left is None else pytest.approx(left))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (8.12e-4, "812 us"), (4.264e-3, "4.26 ms"), (0.9999, "1 s"), (9.44, "9.44 s"), (59.97, "1 min 00 s"),
     (185, "3 min 05 s"), (7800, "2 h 10 min"), (-1, "0 s")],
)  # fmt: skip
def test_durations_are_in_the_unit_that_suits(seconds, text):
    assert duration(seconds) == text


def test_tasks_are_listed_by_their_share_of_the_time():
    slow = TaskSummary(
        name="slow",
        weight=1,
        flops=1e6,
        bytes=1,
        latency_ms=2.0,
        roofline_ms=1.0,
        sketches=2,
        trials=8,
        best_at_trial=0,
    )
    often = slow.model_copy(update={"name": "often", "weight": 12, "latency_ms": 0.5, "best_at_trial": 3})
    unmeasured = slow.model_copy(update={"name": "unmeasured", "latency_ms": None})
    head, first, second, third = task_table([slow, unmeasured, often])
    assert head.split()[:4] == ["task", "weight", "latency", "share"]
    assert first.split() == ["often", "12", "500", "us", "75%", "1", "ms", "200%", "2.0", "2", "8", "3"]
    assert second.split()[0] == "slow"
    assert second.split()[-1] == "untuned"
    assert third.split()[:3] == ["unmeasured", "1", "-"]


def test_a_missing_peer_is_a_line():
    lines = peer_table(SUMMARY.peers, 4.0)
    assert lines[1].split() == ["muschedule", "5", "ms", "1.00x"]
    assert lines[2].split() == ["onnxruntime", "6", "ms", "1.25x"]
    assert lines[3].split() == ["torch", "-", "-", "missing:", "torch", "is", "not", "installed"]


def test_a_peer_that_disagrees_is_flagged():
    lines = peer_table({"torch": PeerSummary(median_ms=1.0, ratio=0.5, status="disagrees", reason="y[0] is 1")}, 2.0)
    assert lines[-1].endswith("0.50x  disagrees: y[0] is 1")


def test_the_end_says_what_was_found():
    text = "\n".join(summary_lines(SUMMARY))
    for part in (
        "gmm: 5 ms median, untuned 9 ms (1.80x)",
        "complete, verified (largest error 1e-06, tolerance 0.0001)",
        "search: 32 trials in 12.5 s, 1 failed (1 timeout)",
        "200 GFLOP/s and 30 GB/s",
        "artifact: outputs/run/artifact",
    ):
        assert part in text


@pytest.mark.parametrize(("flops", "said"), [(210e6, False), (230e6, True)])
def test_a_peak_that_was_measured_too_low_is_told(flops, said):
    fast = SUMMARY.tasks[0].model_copy(update={"flops": flops, "latency_ms": 1.0})
    lines = summary_lines(SUMMARY.model_copy(update={"tasks": [fast]}))
    assert any("a kernel reaches 230 GFLOP/s, so it was slower" in line for line in lines) == said


def test_what_is_not_verified_is_said_loudly():
    bad = SUMMARY.model_copy(update={"verified": False, "status": "failed", "latency_ms": None, "max_error": None})
    assert "failed, NOT VERIFIED" in summary_lines(bad)


def test_a_verification_that_did_not_see_all_says_what_it_did_not_see():
    part = SUMMARY.model_copy(update={"unchecked": "the emitted source"})
    assert any(
        line.startswith("complete, verified, but not the emitted source (largest") for line in summary_lines(part)
    )
    wrong = part.model_copy(update={"verified": False, "max_error": None})
    assert "complete, NOT VERIFIED" in summary_lines(wrong)


FACTS = KernelFacts(bound="memory", of_peak=0.875, registers=40, spill_bytes=0, shared_bytes=66560, launches=2)


def test_what_a_gpus_kernel_waits_for_is_told_in_the_order_of_the_tasks():
    tasks = [
        SUMMARY.tasks[0].model_copy(update={"name": name, "latency_ms": ms, "kernel": facts})
        for name, ms, facts in (("fast", 1.0, FACTS), ("slow", 2.0, FACTS), ("unknown", 3.0, None))
    ]
    lines = kernel_table(tasks)
    assert [line.split()[0] for line in lines] == ["kernel", "slow", "fast"]
    assert lines[1].split() == ["slow", "memory", "88%", "40", "0", "B", "65.0", "KiB", "2"]


def test_of_a_cpus_kernels_there_is_no_such_table():
    assert kernel_table(SUMMARY.tasks) == []


def test_figures_of_a_gpu_that_nobody_measured_are_said_to_be_its_makers():
    tasks = (SUMMARY.tasks[0].model_copy(update={"kernel": FACTS}),)
    latency = Latency(median=1.5, min=1.5, p90=1.5, samples=0)
    made = SUMMARY.model_copy(update={"predicted": True, "tasks": tasks, "latency_ms": latency})
    said = "\n".join(summary_lines(made))
    assert "multiprocessors, by its maker" in said and "measured" not in said
    assert "1.5 ms predicted" in said


def test_steps_tell_how_many_there_are() -> None:
    bar, stream, clock = progress(False, unit="turns")
    bar.step(0, 4, "torch is made ready")
    clock.now += 20
    bar.step(2, 4, "all are timed in turns")
    assert stream.getvalue().splitlines() == [
        "  0%  0/4 turns, torch is made ready, 0 s",
        " 50%  2/4 turns, all are timed in turns, 20 s, 20 s left",
    ]
    bar.close()
    assert len(stream.getvalue().splitlines()) == 2


def test_steps_leave_nothing_on_a_terminal() -> None:
    bar, stream, _ = progress(True, unit="turns")
    with bar:
        bar.step(0, 4, "torch is made ready")
    assert stream.getvalue().endswith("\r") and "\n" not in stream.getvalue()
