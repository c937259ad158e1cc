"""Tests of the analytic model of GPUs: near the peaks where a program is good, and slower in proportion where not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pipeline.ir.program import Program
from pipeline.ir.program_check import check
from pipeline.ir.target import Target
from pipeline.search.gpu_model import FEATURES, IMPOSSIBLE, MEMORY_SHARE, GpuModel, RegionReport
from tests.known_gpus import GPUS, gpu
from tests.search.gpu_programs import elementwise, simt_gemm, tensor_gemm

A100 = gpu("a100")
GOOD_SIMT_TILES: tuple[tuple[int, int], ...] = ((8, 8), (4, 4), (16, 8))


def report(program: Program, target: Target = A100) -> RegionReport:
    (only,) = GpuModel(program, target).explain()
    return only


def seconds(program: Program, target: Target = A100) -> float:
    return report(program, target).seconds


def changed(target: Target, **facts: Any) -> Target:
    """The target with other facts of its GPU."""
    assert target.gpu is not None
    return replace(target, gpu=replace(target.gpu, **facts))


def feature(program: Program, name: str) -> float:
    _, features = GpuModel(program, A100).evaluate({}, 1)
    return float(features[0, FEATURES.index(name)])


@pytest.mark.parametrize("program", [tensor_gemm(), simt_gemm(), elementwise()], ids=["tensor", "simt", "elementwise"])
def test_the_programs_of_these_tests_are_valid(program: Program) -> None:
    check(program)


@pytest.mark.parametrize(("tile", "warps"), [((128, 128, 32), (2, 2)), ((128, 256, 32), (2, 4))])
def test_a_good_product_comes_near_the_peak_of_the_tensor_cores(
    tile: tuple[int, int, int], warps: tuple[int, int]
) -> None:
    found = report(tensor_gemm(tile=tile, warps=warps, stages=4 if tile[1] == 128 else 3))
    assert found.bound == "tensor"
    assert 0.75 <= found.tensor_share <= 0.95


@pytest.mark.parametrize("own", GOOD_SIMT_TILES)
def test_a_good_product_comes_near_the_peak_of_ordinary_units(own: tuple[int, int]) -> None:
    assert 0.6 < report(simt_gemm(own=own)).fma_share < 1.0


@pytest.mark.parametrize("name", GPUS)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_an_elementwise_program_is_bound_by_memory(name: str, dtype: str) -> None:
    found = report(elementwise(1 << 27, vector=4 if dtype == "float32" else 8, dtype=dtype), gpu(name))
    assert found.bound == "memory"
    assert 0.85 <= found.memory_share <= MEMORY_SHARE


@pytest.mark.parametrize("name", GPUS)
@pytest.mark.parametrize("program", [tensor_gemm(stages=2), simt_gemm(), elementwise()], ids=["tensor", "simt", "map"])
def test_no_prediction_is_faster_than_the_machine(name: str, program: Program) -> None:
    found = report(program, gpu(name))
    assert max(found.tensor_share, found.fma_share, found.memory_share) < 1.0
    assert all(found.seconds >= time for unit, time in found.units.items() if unit != "path")


def test_ordinary_units_are_slower_than_tensor_cores() -> None:
    assert seconds(simt_gemm()) > 8 * seconds(tensor_gemm())


def test_threads_that_are_apart_pay_for_the_sectors_that_they_do_not_use() -> None:
    together = seconds(elementwise(1 << 24, vector=1))
    apart = seconds(elementwise(1 << 24, vector=1, stride=8, touched=1))
    assert 6.0 < apart / together < 9.0
    assert feature(elementwise(1 << 24, vector=1), "coalescing") == 1.0
    assert feature(elementwise(1 << 24, vector=1, stride=8, touched=1), "coalescing") == pytest.approx(1 / 8)


def test_banks_that_lanes_meet_in_cost_as_many_wavefronts() -> None:
    free, meeting = report(tensor_gemm(swizzled=True)), report(tensor_gemm(swizzled=False))
    assert feature(tensor_gemm(swizzled=True), "conflicts") == pytest.approx(0.0)  # its logarithm
    assert meeting.bound == "shared" and meeting.seconds > 2 * free.seconds
    padded = report(tensor_gemm(swizzled=False, pad=8))
    assert free.seconds <= padded.seconds < 1.1 * free.seconds


def test_narrow_accesses_leave_memory_waiting() -> None:
    wide, narrow = (report(elementwise(1 << 26, threads=32, vector=v)) for v in (4, 1))
    assert wide.bound == "memory" and narrow.seconds > 1.1 * wide.seconds


def test_few_resident_blocks_are_slow() -> None:
    """With shared memory for one block of one warp, nothing hides the latencies."""
    assert A100.gpu is not None
    program = elementwise(1 << 26, threads=32)
    lonely = changed(A100, blocks=1)
    assert report(program, lonely).resident == 1
    assert report(program, lonely).bound == "latency"
    assert seconds(program, lonely) > 8 * seconds(program)


def test_the_last_round_of_blocks_costs_as_much_as_a_full_one() -> None:
    assert A100.gpu is not None
    held = report(simt_gemm()).resident * A100.gpu.multiprocessors
    full, one_more, twice = (seconds(simt_gemm(128 * n, 128)) for n in (held, held + 1, 2 * held))
    assert 1.4 < one_more / full < 1.8  # one multiprocessor has a third block, and no second to hide its latencies
    assert 1.9 < twice / full < 2.1


def test_stages_hide_the_latency_of_copies() -> None:
    times = [seconds(tensor_gemm(tile=(64, 64, 32), stages=stages)) for stages in (1, 2, 3)]
    assert times[0] > 1.2 * times[1] and times[1] >= times[2]


def test_stages_take_shared_memory() -> None:
    one, four = report(tensor_gemm(stages=1)), report(tensor_gemm(stages=4))
    assert four.shared_bytes == 4 * one.shared_bytes == 4 * 2 * (128 * 32 + 32 * 128)
    assert report(tensor_gemm(stages=4), gpu("t4")).shared_bytes == 2 * one.shared_bytes  # no asynchronous copies


def test_a_block_that_no_multiprocessor_can_hold_is_out_of_the_question() -> None:
    found = report(tensor_gemm(stages=8, tile=(128, 256, 64), warps=(2, 4)))
    assert found.shared_bytes > 166912 and found.seconds == IMPOSSIBLE
    assert report(elementwise(threads=2048)).seconds == IMPOSSIBLE


def test_more_accumulators_than_registers_are_spilled_and_slow() -> None:
    fits, spills = report(tensor_gemm()), report(tensor_gemm(tile=(256, 256, 32), warps=(2, 2), stages=2))
    assert fits.spilled == 0 and spills.spilled > 0
    assert spills.seconds > fits.seconds


@pytest.mark.parametrize(
    ("program", "what"),
    [(elementwise(), "bandwidth_gbs"), (tensor_gemm(), "clock_ghz"), (simt_gemm(), "clock_ghz")],
    ids=["bandwidth", "tensor clock", "fma clock"],
)
def test_a_faster_machine_is_predicted_faster(program: Program, what: str) -> None:
    times = [seconds(program, replace(A100, **{what: getattr(A100, what) * factor})) for factor in (0.5, 1.0, 2.0)]
    assert times[0] > 1.5 * times[1] and times[1] > times[2]


def test_more_multiprocessors_are_never_slower() -> None:
    for program in (tensor_gemm(), simt_gemm(), elementwise()):
        times = [seconds(program, changed(A100, multiprocessors=n)) for n in (27, 54, 108)]
        assert times[0] >= times[1] >= times[2]


def test_what_is_read_again_is_in_l2_if_it_fits() -> None:
    small, large = (report(tensor_gemm(), changed(A100, l2_bytes=size)) for size in (1 << 20, 1 << 30))
    compulsory = 3 * 4096 * 4096 * 2
    moved = large.memory_share * large.seconds * A100.bandwidth_gbs * 1e9
    assert moved == pytest.approx(compulsory, rel=0.01)
    assert small.memory_share * small.seconds > 1.5 * large.memory_share * large.seconds


def test_the_compilers_registers_change_how_many_blocks_are_resident() -> None:
    model = GpuModel(tensor_gemm(), A100)
    (estimated,) = model.explain()
    assert model.refined([(int(estimated.registers), 0)]) == pytest.approx(estimated.seconds)
    assert model.refined([(255, 0)]) == pytest.approx(estimated.seconds)  # two blocks still
    assert model.refined([(255, 512)]) > 1.2 * estimated.seconds  # spilled in the inner loop
    few = GpuModel(elementwise(1 << 26, threads=1024, vector=1), A100)
    assert few.refined([(64, 0)]) > few.refined([(32, 0)])


def test_a_launch_costs_even_if_there_is_nothing_to_do() -> None:
    assert A100.gpu is not None
    found = report(elementwise(256))
    assert found.bound == "launch" and found.seconds >= A100.gpu.launch_us * 1e-6


def test_features_are_finite_and_named() -> None:
    for program in (tensor_gemm(), simt_gemm(), elementwise(), elementwise(value="exp(x[i])")):
        times, features = GpuModel(program, A100).evaluate({}, 3)
        assert times.shape == (3,) and features.shape == (3, len(FEATURES))
        assert np.isfinite(times).all() and np.isfinite(features).all()
        assert (features[0] == features[2]).all()
