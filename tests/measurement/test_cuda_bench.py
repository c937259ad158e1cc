"""Tests of checking and timing on a GPU, whose launches a driver without a device computes in NumPy.

What is under test is what happens around the launches: spoiled outputs, guards, inputs, samples, failures. That real
kernels compute what they should is tested by executing their source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.codegen.cuda.driver import Device
from pipeline.codegen.cuda.kernel import CudaKernel
from pipeline.errors import UserError
from pipeline.measurement import cuda_bench
from pipeline.measurement.bench_job import BenchJob, BenchResult
from pipeline.measurement.protocol import Case, Reference
from pipeline.measurement.reference_files import ReferenceFiles, write
from pipeline.measurement.sampling import SamplingPolicy
from tests.codegen.cuda.small_plans import N, add_kernel, packed_kernel
from tests.runtime.fake_driver import FakeDriver

COLD = SamplingPolicy(warmup=2, samples=4, min_sample_ms=1.0, flush_cache=True)
WARM = replace(COLD, flush_cache=False)
Kernel = Callable[[FakeDriver, list[int]], None]


def add(driver: FakeDriver, at: list[int]) -> None:
    driver.view(at[2], N)[:] = driver.view(at[0], N) + driver.view(at[1], N)


class Bench:
    """The worker's state over a driver whose function `add` is what a test says."""

    def __init__(self) -> None:
        self.kernel: Kernel = add
        self.driver = FakeDriver(launch=self._launch)
        device = Device(cuda=self.driver)
        cuda_bench._BENCH[:] = [cuda_bench._Bench(device, device.stream())]

    def _launch(self, driver: FakeDriver, symbol: str, arguments: int) -> None:
        match symbol:
            case "add":
                self.kernel(driver, driver.pointers(arguments, 3))
            case "twice":
                w, p = driver.pointers(arguments, 2)
                driver.view(p, N)[:] = 2 * driver.view(w, N)
            case "first":
                x, p, t = driver.pointers(arguments, 3)
                driver.view(t, N)[:] = driver.view(x, N) * driver.view(p, N)
            case "second":
                t, y = driver.pointers(arguments, 2)
                driver.view(y, N)[:] = driver.view(t, N)[::-1]


@pytest.fixture
def bench() -> Iterator[Bench]:
    yield Bench()
    cuda_bench._BENCH.clear()


def files(folder: Path, cases: int = 2) -> ReferenceFiles:
    made = []
    for seed in range(cases):
        a, b = np.random.default_rng(seed).normal(size=(2, N)).astype(np.float32)
        made.append(Case({"a": a, "b": b}, {"c": a.astype(np.float64) + b}, {"c": np.full(N, 1e-5)}))
    return write(Reference("task", {}, tuple(made)), folder / "reference")


def judged(reference: ReferenceFiles, *kernels: CudaKernel, **job: Any) -> tuple[BenchResult, ...]:
    return cuda_bench.perform(BenchJob(kernels or (add_kernel(),), reference, job.pop("policy", COLD), **job))


def test_a_right_kernel_is_checked_and_timed_by_events(bench: Bench, tmp_path: Path) -> None:
    (result,) = judged(files(tmp_path))
    assert result.failure is None
    assert result.cache == "cold"
    assert result.samples.nanoseconds == (0.25e6,) * 4
    assert 0 <= result.max_absolute <= result.tolerance == 1e-5


def test_l2_is_written_over_before_each_cold_sample_and_not_before_warm_ones(bench: Bench, tmp_path: Path) -> None:
    reference = files(tmp_path)
    large = 2 * (8 << 20)
    for policy, expected in ((COLD, True), (WARM, False)):
        bench.driver.calls.clear()
        judged(reference, policy=policy)
        fills = [given for name, given in bench.driver.calls if name == "cuMemsetD8Async" and given[2] == large]
        assert bool(fills) == expected
        order = bench.driver.names("cuMemsetD8Async", "cuEventRecord", "cuLaunchKernel", "cuGraphLaunch")
        first = order.index("cuEventRecord")
        assert (order[first - 1] == "cuMemsetD8Async") == expected
        assert order[first + 1] == "cuLaunchKernel"


def test_the_runs_of_a_warm_sample_are_one_graph(bench: Bench, tmp_path: Path) -> None:
    (result,) = judged(files(tmp_path), policy=WARM)
    assert result.samples.inner == 4, "each run takes a quarter of a millisecond, and a sample one at least"
    assert result.samples.nanoseconds == (0.25e6 / 4,) * 4
    assert bench.driver.names("cuGraphLaunch", "cuGraphExecDestroy") == ["cuGraphLaunch"] * 4 + ["cuGraphExecDestroy"]


def test_a_far_slower_kernel_is_cut_after_one_sample(bench: Bench, tmp_path: Path) -> None:
    (result,) = judged(files(tmp_path), best_ns=1000.0)
    assert (result.samples.cut, len(result.samples.nanoseconds)) == (True, 1)


def wrong_sum(driver: FakeDriver, at: list[int]) -> None:
    driver.view(at[2], N)[:] = driver.view(at[0], N) - driver.view(at[1], N)


def forgets(driver: FakeDriver, at: list[int]) -> None:
    driver.view(at[2], N - 1)[:] = (driver.view(at[0], N) + driver.view(at[1], N))[:-1]


def writes_behind(driver: FakeDriver, at: list[int]) -> None:
    add(driver, at)
    driver.view(at[2] + 4 * N, 1)[:] = 1.0


def writes_before(driver: FakeDriver, at: list[int]) -> None:
    add(driver, at)
    driver.view(at[2] - 8, 1)[:] = 1.0


def writes_an_input(driver: FakeDriver, at: list[int]) -> None:
    add(driver, at)
    driver.view(at[0], 1)[:] = 99.0


@pytest.mark.parametrize(
    ("kernel", "said"),
    [
        (wrong_sum, "is right"),
        (forgets, "element [99] is nan"),
        (writes_behind, "c: bytes behind it were overwritten"),
        (writes_before, "c: bytes before it were overwritten"),
        (writes_an_input, "a: an input was overwritten"),
    ],
)
def test_a_wrong_kernel_is_a_failure_and_is_not_timed(kernel: Kernel, said: str, bench: Bench, tmp_path: Path) -> None:
    bench.kernel = kernel
    (result,) = judged(files(tmp_path))
    assert result.failure is not None
    assert (result.failure.reason, result.samples.nanoseconds) == ("wrong", ())
    assert said in result.failure.detail


def test_an_input_that_was_overwritten_is_whole_again_for_the_next_kernel(bench: Bench, tmp_path: Path) -> None:
    reference = files(tmp_path)
    bench.kernel = writes_an_input
    judged(reference)
    bench.kernel = add
    (result,) = judged(reference)
    assert result.failure is None


def test_a_kernel_that_goes_wrong_only_while_it_is_timed_is_a_failure(bench: Bench, tmp_path: Path) -> None:
    runs = []

    def later(driver: FakeDriver, at: list[int]) -> None:
        runs.append(at)
        (writes_behind if len(runs) > 3 else add)(driver, at)

    bench.kernel = later
    (result,) = judged(files(tmp_path))
    assert result.failure is not None and "while it was timed" in result.failure.detail


def test_a_prologue_runs_once_before_all_and_launches_in_order(bench: Bench, tmp_path: Path) -> None:
    x, w = np.random.default_rng(0).normal(size=(2, N)).astype(np.float32)
    case = Case({"x": x}, {"y": (2.0 * w.astype(np.float64) * x)[::-1]}, {"y": np.full(N, 1e-4)})
    reference = write(Reference("packed", {"w": w}, (case,)), tmp_path / "reference")
    (result,) = judged(reference, packed_kernel())
    assert result.failure is None
    launched = [given[0] for name, given in bench.driver.calls if name == "cuLaunchKernel"]
    assert launched.count("twice") == 1
    assert launched[:3] == ["twice", "first", "second"]


def test_finalists_are_timed_in_turns(bench: Bench, tmp_path: Path) -> None:
    results = judged(files(tmp_path), add_kernel(), add_kernel(), rounds=3)
    assert [len(result.samples.nanoseconds) for result in results] == [3, 3]


def test_what_a_kernel_took_is_given_back(bench: Bench, tmp_path: Path) -> None:
    reference = files(tmp_path)
    judged(reference)
    before = len(bench.driver.memory)
    judged(reference)
    assert len(bench.driver.memory) == before
    assert bench.driver.names().count("cuModuleUnload") == 2


def held(bench: Bench) -> tuple[int, int]:
    """Allocations that are no inputs of the task, and modules, which a job has left behind."""
    loads, unloads = (len(bench.driver.names(name)) for name in ("cuModuleLoadData", "cuModuleUnload"))
    return len(bench.driver.memory) - len(cuda_bench._BENCH[0].inputs), loads - unloads


OUT_OF_MEMORY = "CUDA_ERROR_OUT_OF_MEMORY"


@pytest.mark.parametrize("function", ["cuMemAlloc", "cuMemsetD8Async", "cuMemcpyHtoDAsync", "cuLaunchKernel"])
def test_a_kernel_for_which_there_is_no_room_leaves_nothing_and_the_next_is_judged(
    function: str, bench: Bench, tmp_path: Path
) -> None:
    reference = files(tmp_path)
    bench.driver.planted = {function: OUT_OF_MEMORY}
    with pytest.raises(UserError, match="not enough memory"):
        judged(reference)
    assert held(bench) == (0, 0)
    bench.driver.planted = {}
    (result,) = judged(reference)
    assert result.failure is None and result.samples.nanoseconds


@pytest.mark.parametrize("rounds", [None, 3])
@pytest.mark.parametrize("function", ["cuMemAlloc", "cuEventCreate", "cuGraphInstantiate"])
def test_where_there_is_no_room_later_the_kernels_before_are_given_back_too(
    function: str, rounds: int | None, bench: Bench, tmp_path: Path
) -> None:
    def add_and_fill(driver: FakeDriver, at: list[int]) -> None:
        add(driver, at)
        driver.planted = {function: OUT_OF_MEMORY}

    bench.kernel = add_and_fill
    with pytest.raises(UserError, match="not enough memory"):
        judged(files(tmp_path), add_kernel(), add_kernel(), policy=WARM, rounds=rounds)
    assert held(bench) == (0, 0)


def test_a_reference_that_lacks_an_argument_leaves_nothing_behind(bench: Bench, tmp_path: Path) -> None:
    a = np.ones(N, np.float32)
    case = Case({"a": a}, {"c": a.astype(np.float64)}, {"c": np.ones(N)})
    with pytest.raises(ValueError, match="the reference lacks b"):
        judged(write(Reference("short", {}, (case,)), tmp_path / "reference"))
    assert held(bench) == (0, 0)


def test_an_illegal_access_ends_the_process(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Ended(Exception):
        pass

    def end(code: int) -> None:
        raise Ended(code)

    monkeypatch.setattr(cuda_bench.os, "_exit", end)
    bench.driver.planted = {"cuStreamSynchronize": "CUDA_ERROR_ILLEGAL_ADDRESS"}
    with pytest.raises(Ended, match="70"):
        judged(files(tmp_path))


def test_another_gpu_than_the_targets_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_bench, "Device", lambda: Device(cuda=FakeDriver(capability=(9, 0))))
    with pytest.raises(UserError, match="for another GPU"):
        cuda_bench.set_up("sm_80")
