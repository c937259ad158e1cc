"""The local builder and runner together: each planted candidate costs one trial."""

import statistics
import sys
from pathlib import Path

import numpy as np
import pytest

from pipeline.codegen.kernel import Kernel
from pipeline.ir.graph_builder import GraphBuilder
from pipeline.measurement.failure import Failure
from pipeline.measurement.host import detect_host
from pipeline.measurement.local_builder import LocalBuilder
from pipeline.measurement.local_runner import LocalRunner
from pipeline.measurement.protocol import Built, Case, MeasureRequest, Reference
from pipeline.measurement.sampling import SamplingPolicy
from pipeline.space.lower import lower
from pipeline.verification.tolerance import evaluate_with_bound
from tests.measurement import planted_kernels as planted

ROOT = Path(__file__).resolve().parents[2]
BUILD = "tests.measurement.planted_kernels:build"
TARGET = detect_host()
POLICY = SamplingPolicy(samples=3, min_sample_ms=0.2)
LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the memory limit needs Linux")


@pytest.fixture(autouse=True, scope="module")
def _importable():
    sys.path.insert(0, str(ROOT))
    yield
    sys.path.remove(str(ROOT))


@pytest.fixture(scope="module")
def runner(_importable):
    with LocalRunner(TARGET, POLICY, timeout_s=100.0, memory_mb=512) as runner:
        yield runner


def built(*names, threads=1):
    return [Built(name, planted.build(name, TARGET, threads=threads), 0.25) for name in names]


def test_a_right_kernel_is_timed_and_its_error_told(runner):
    (result,) = runner.run(built("right"), planted.reference())
    assert result.failure is None
    assert result.key == "right"
    assert len(result.samples_ns) == 3
    assert all(sample > 0 for sample in result.samples_ns)
    assert result.inner > 1
    assert 0 <= result.max_absolute <= result.tolerance
    assert 0 <= result.max_relative < 1e-6
    assert (result.build_seconds, result.cache, result.cut) == (0.25, "warm", False)
    assert result.run_seconds > 0


def test_what_callers_hand_in_begins_where_their_arrays_do_and_the_rest_on_a_line(runner):
    kernels = built("right on a line", "right 16 bytes behind")
    on_a_line, behind = runner.run(kernels, planted.reference("made by a kernel"))
    assert on_a_line.failure is None
    assert behind.failure.reason == "wrong"
    on_a_line, behind = runner.run(kernels, planted.reference("handed in", fed=("x",)))
    assert on_a_line.failure.reason == "wrong"
    assert behind.failure is None


@pytest.mark.parametrize(
    ("name", "reason", "detail"),
    [
        ("null", "crash", "SIGSEGV"),
        pytest.param("exhaust", "memory", "the limit is", marks=LINUX),
        ("nan", "wrong", "case 0, output y: element [0] is nan"),
        ("too far", "wrong", "y: 4 bytes written after its end, from the byte 1 outside"),
        ("too early", "wrong", "y: 4 bytes written before its start, from the byte 1 outside"),
        ("forgetful", "wrong", "element [999] is nan"),
        ("inexact", "wrong", "is right"),
        ("greedy", "wrong", "input was overwritten"),
        ("unlinked", "error", "cannot be resolved"),
    ],
)
def test_a_bad_kernel_costs_one_trial_and_the_next_is_measured(runner, name, reason, detail):
    bad, good = runner.run(built(name, "right"), planted.reference())
    assert bad.failure.reason == reason
    assert detail in bad.failure.detail
    assert bad.samples_ns == ()
    assert good.failure is None
    assert len(good.samples_ns) == 3


def test_a_kernel_that_never_ends_costs_its_time_limit_and_the_next_is_measured():
    with LocalRunner(TARGET, POLICY, timeout_s=4.0, memory_mb=512) as runner:
        bad, good = runner.run(built("spin", "right"), planted.reference())
    assert bad.failure == Failure("timeout", "not finished after 4 s")
    assert good.failure is None


def test_threads_of_a_kernel_run_together(runner):
    (result,) = runner.run(built("right", threads=2), planted.reference())
    assert result.failure is None


def test_packed_arguments_are_made_by_the_prologue(runner):
    (result,) = runner.run(built("prepared"), planted.reference())
    assert result.failure is None


def test_every_case_is_checked(runner):
    reference = planted.reference("cases")
    reference.cases[1].expected["y"][17] += 1.0
    (result,) = runner.run(built("right"), reference)
    assert result.failure.reason == "wrong"
    assert result.failure.detail.startswith("case 1, output y: element [17] is")


def test_tasks_do_not_share_their_data(runner):
    for _ in range(2):
        for task, seed in (("one", 1), ("two", 2)):
            (result,) = runner.run(built("right"), planted.reference(task, seed))
            assert result.failure is None


def test_a_slow_kernel_is_cut_after_one_sample(runner):
    fast, slow = runner.run(built("right", "slow"), planted.reference())
    assert not fast.cut
    assert slow.cut
    assert len(slow.samples_ns) == 1
    assert slow.failure is None
    assert slow.samples_ns[0] > 5e6


def test_the_best_of_an_earlier_batch_cuts_too(runner):
    (result,) = runner.run(built("right"), planted.reference(), best_ns=0.001)
    assert result.cut


def test_kernels_are_measured_again_in_turns(runner):
    fast, slow = runner.remeasure(built("right", "slow"), planted.reference(), rounds=4)
    assert len(fast.samples_ns) == len(slow.samples_ns) == 4
    assert statistics.median(fast.samples_ns) < statistics.median(slow.samples_ns)
    assert fast.cache == "warm"
    assert runner.remeasure([], planted.reference(), rounds=2) == []


def test_kernels_are_measured_again_with_empty_caches(runner):
    fast, slow = runner.remeasure(built("right", "slow"), planted.reference(), rounds=2, cold=True)
    assert fast.cache == slow.cache == "cold"
    assert fast.inner == 1 and len(fast.samples_ns) == 2
    assert statistics.median(fast.samples_ns) < statistics.median(slow.samples_ns)


def test_a_kernel_that_dies_while_measured_again_fails_alone(runner):
    good, bad = runner.remeasure(built("right", "null"), planted.reference(), rounds=2)
    assert good.failure is None
    assert bad.failure.reason == "crash"


def test_a_task_that_is_forgotten_can_come_back(runner):
    runner.forget("task")
    runner.forget("never seen")
    (result,) = runner.run(built("right"), planted.reference())
    assert result.failure is None


def test_a_reference_that_lacks_an_argument_is_an_error_that_names_it(runner):
    reference = planted.reference("lacking")
    del reference.constants["w"]
    (result,) = runner.run(built("right"), reference)
    assert result.failure.reason == "error"
    assert "w" in result.failure.detail


def test_cold_samples_say_so():
    with LocalRunner(TARGET, SamplingPolicy(samples=2, flush_cache=True), timeout_s=20.0) as runner:
        (result,) = runner.run(built("right"), planted.reference())
    assert (result.cache, result.inner, len(result.samples_ns), result.failure) == ("cold", 1, 2, None)


def test_the_folder_of_the_references_goes_with_the_runner():
    runner = LocalRunner(TARGET, POLICY)
    runner.run([], planted.reference())
    folder = Path(runner._folder.name)
    assert any(folder.rglob("*.npy"))
    runner.close()
    assert not folder.exists()


def test_programs_are_built_in_order_and_bad_ones_cost_themselves_only():
    names = ["right", "build raises", "broken ir", "build gives nothing", "build hangs", "nan", "right"]
    with LocalBuilder(BUILD, TARGET, workers=2, timeout_s=2.0, memory_mb=1024) as builder:
        done = builder.build([MeasureRequest(name, f"{i}") for i, name in enumerate(names)])
    assert [each.key for each in done] == ["0", "1", "2", "3", "4", "5", "6"]
    kinds = [each.outcome.reason if isinstance(each.outcome, Failure) else type(each.outcome) for each in done]
    assert kinds == [Kernel, "build", "build", "build", "timeout", Kernel, Kernel]
    assert "no such tile" in done[1].outcome.detail
    assert done[0].seconds > 0


@LINUX
def test_a_build_that_takes_too_much_memory_is_a_failure():
    with LocalBuilder(BUILD, TARGET, workers=1, memory_mb=512) as builder:
        greedy, good = builder.build([MeasureRequest("build exhausts", "a"), MeasureRequest("right", "b")])
    assert greedy.outcome.reason == "memory"
    assert isinstance(good.outcome, Kernel)


def test_a_failed_build_is_a_failed_result_with_the_same_reason(runner):
    failure = Failure("build", "no such tile")
    bad, good = runner.run([Built("a", failure, 0.5), *built("right")], planted.reference())
    assert (bad.failure, bad.build_seconds, bad.samples_ns) == (failure, 0.5, ())
    assert good.failure is None


def test_options_reach_the_build_function():
    with LocalBuilder(planted.build, TARGET, workers=1, options={"threads": 2}) as builder:
        (done,) = builder.build([MeasureRequest("right", "a")])
    assert done.outcome.threads == 2


def test_a_build_function_that_is_not_there_fails_each_build():
    with LocalBuilder("tests.measurement.planted_kernels:absent", TARGET, workers=1) as builder:
        (done,) = builder.build([MeasureRequest("right", "a")])
    assert done.outcome.reason == "build"
    assert "absent" in done.outcome.detail


def test_a_graph_goes_through_the_code_generator_and_is_measured(runner):
    b = GraphBuilder()
    x = b.input("x", (37, 5), "float32")
    graph = b.finish([("y", b.elementwise("add", b.elementwise("exp", x), x))])
    feeds = {"x": np.random.default_rng(0).standard_normal((37, 5)).astype(np.float32)}
    exact = evaluate_with_bound(graph, feeds)["y"]
    case = Case(feeds, {"out0": exact.value}, {"out0": exact.bound})
    with LocalBuilder("pipeline.codegen.llvm.build:build_kernel", TARGET, workers=1) as builder:
        made = builder.build([MeasureRequest(lower(graph, "task"), "key")])
    (result,) = runner.run(made, Reference("chain", {}, (case,)))
    assert result.failure is None
    assert result.samples_ns
