"""Tests of the runner without a GPU: right kernels get a prediction that says so, wrong and faulty ones a failure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pipeline.codegen.cuda.build import build_kernel, emit_kernel
from pipeline.codegen.cuda.execute_build import find_compiler
from pipeline.codegen.cuda.kernel import CudaKernel, Resources
from pipeline.codegen.kernel import Kernel
from pipeline.ir.graph import Graph
from pipeline.ir.graph_builder import GraphBuilder
from pipeline.ir.program import Program
from pipeline.ir.program_parse import from_text
from pipeline.ir.program_text import to_text
from pipeline.measurement import cuda_check
from pipeline.measurement.cuda_check import CheckJob
from pipeline.measurement.cuda_predicted import PredictedRunner, allotted, too_many_registers
from pipeline.measurement.failure import Failure
from pipeline.measurement.local_builder import LocalBuilder
from pipeline.measurement.protocol import Built, Case, MeasureRequest, Reference
from pipeline.measurement.reference_files import write
from pipeline.space.lower import lower
from pipeline.verification.tolerance import evaluate_with_bound
from tests.codegen.cuda.gpu_runs import bound
from tests.codegen.cuda.gpu_targets import gpu_target

TARGET = gpu_target()
ROWS, COLUMNS = 7, 33  # few enough rows that all blocks are run
COMPILER = pytest.mark.skipif(find_compiler() is None, reason="there is no C++ compiler")


def model(rows: int = ROWS) -> Graph:
    b = GraphBuilder()
    x, y = (b.input(name, (rows, COLUMNS), "float32") for name in "xy")
    return b.finish([("z", b.elementwise("add", b.elementwise("mul", x, y), x))])


def program(rows: int = ROWS) -> Program:
    return bound(lower(model(rows), "small"), "threads")


def reference(cases: int = 2, rows: int = ROWS) -> Reference:
    made = []
    for seed in range(cases):
        x, y = np.random.default_rng(seed).normal(size=(2, rows, COLUMNS)).astype(np.float32)
        found = evaluate_with_bound(model(rows), {"x": x, "y": y})["z"]
        made.append(Case({"x": x, "y": y}, {"out0": found.value}, {"out0": found.bound}))
    return Reference("small", {}, tuple(made))


def kernel(**resources: int) -> CudaKernel:
    source = emit_kernel(program(), TARGET)
    found = Resources(
        **{"registers": 20, "spill_stores": 0, "spill_loads": 0, "stack": 0, "static_shared": 0, **resources}
    )
    return CudaKernel(source, b"", {launch.symbol: found for launch in source.launches})


def changed(old: str, new: str) -> CudaKernel:
    made = kernel()
    text = made.program.source
    assert text.count(old) == 1, text
    return replace(made, program=replace(made.program, symbol=f"other_{abs(hash(new))}", source=text.replace(old, new)))


def built(outcome: CudaKernel | Kernel | Failure) -> Built:
    return Built("key", outcome, 0.5, program())


@pytest.fixture(scope="module")
def runner() -> Iterator[PredictedRunner]:
    with PredictedRunner(TARGET, predict=lambda program, kernel: 3e-6, workers=1, timeout_s=60.0) as made:
        yield made


def test_a_right_kernel_gets_a_time_that_is_marked_as_predicted(runner: PredictedRunner) -> None:
    (result,) = runner.run([built(kernel())], reference())
    assert result.failure is None
    assert (result.samples_ns, result.predicted, result.cut) == ((pytest.approx(3000.0),), True, False)
    assert result.build_seconds == 0.5
    assert result.max_absolute is not None and result.tolerance is not None
    assert 0 <= result.max_absolute <= result.tolerance


@COMPILER
@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("* y[", "* x[", "is right"),
        ("out0[", "if (thread != 3) out0[", "were not written"),
        ("out0[", "out0[1 + ", "out of bounds"),
    ],
)
def test_a_kernel_that_computes_something_else_is_a_failure(
    old: str, new: str, said: str, runner: PredictedRunner
) -> None:
    (result,) = runner.run([built(changed(old, new))], reference())
    assert result.failure is not None
    assert (result.failure.reason, result.samples_ns, result.predicted) == ("wrong", (), True)
    assert said in result.failure.detail


@COMPILER
def test_a_kernel_whose_threads_race_is_a_failure_though_its_values_are_right(runner: PredictedRunner) -> None:
    made = kernel()
    body = made.program.source
    head, _, rest = body.partition("{")
    racing = f"{head}{{\n    MS_SHARED(float, meeting, 0, 4);\n    meeting[0] = ms::thread();{rest}"
    launches = tuple(replace(launch, shared_bytes=16) for launch in made.program.launches)
    wrong = replace(made, program=replace(made.program, symbol="racing", source=racing, launches=launches))
    (result,) = runner.run([built(wrong)], reference())
    assert result.failure is not None
    assert "race" in result.failure.detail


@COMPILER
@pytest.mark.parametrize("forgets", [False, True])
def test_an_element_that_a_sampled_block_forgets_is_seen(
    forgets: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of 40 blocks leaves out the same element of its row: the sample alone does not show that it is nobody's."""
    monkeypatch.setattr(cuda_check, "WHOLE_SECONDS", 0.0)
    large = program(40)
    source = emit_kernel(large, TARGET)
    if forgets:
        source = replace(source, source=source.source.replace("out0[", "if (thread != 3) out0["))
    cuda_check.set_up(None)
    job = CheckJob(source, large, write(reference(1, 40), tmp_path / "reference"), 8)
    failure = cuda_check.check_kernel(job).failure
    assert (failure is not None) == forgets
    assert failure is None or "that the blocks have to write were not, such as [0, 3]" in failure.detail


@COMPILER
def test_the_last_row_is_in_the_sample_where_the_last_blocks_of_the_grid_have_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """43 rows in groups of four blocks: the last block of the last group has nothing to do."""
    monkeypatch.setattr(cuda_check, "WHOLE_SECONDS", 0.0)
    text = to_text(program(43)).replace("for add3_s0 in blockIdx.x(43)", "for g, r in blockIdx.x(11, 4)")
    grouped = from_text(text.replace("= add3_s0", "= g * 4 + r"))
    cuda_check.set_up(None)
    job = CheckJob(emit_kernel(grouped, TARGET), grouped, write(reference(1, 43), tmp_path / "reference"), 8)
    assert cuda_check.check_kernel(job).failure is None


def test_a_failure_of_the_builder_stays_what_it_is(runner: PredictedRunner) -> None:
    (result,) = runner.run([built(Failure("build", "no luck"))], reference())
    assert result.failure == Failure("build", "no luck")
    assert result.predicted


def test_a_kernel_for_a_cpu_is_a_failure(runner: PredictedRunner) -> None:
    (result,) = runner.run([built(Kernel("k", None, b"", (), 1, False))], reference())
    assert result.failure is not None
    assert "no GPU's kernel" in result.failure.detail


def test_a_kernel_over_a_limit_is_a_failure_before_anything_is_run(runner: PredictedRunner) -> None:
    made = kernel(registers=200_000)
    (result,) = runner.run([built(made)], reference())
    assert result.failure is not None
    assert (result.failure.reason, "takes 200000 registers" in result.failure.detail) == ("build", True)


def test_one_of_a_batch_that_fails_costs_the_others_nothing(runner: PredictedRunner) -> None:
    results = runner.run([built(kernel()), built(Failure("build", "no luck")), built(kernel())], reference())
    assert [result.failure is None for result in results] == [True, False, True]


def test_measuring_again_says_the_same_and_runs_nothing_again(runner: PredictedRunner) -> None:
    (first,) = runner.run([built(kernel())], reference())
    (again,) = runner.remeasure([built(kernel())], reference(), rounds=5)
    assert again == first


def test_another_task_is_checked_by_its_own_reference(runner: PredictedRunner) -> None:
    other = reference()
    wrong = tuple(replace(case, expected={"out0": case.expected["out0"] + 1.0}) for case in other.cases)
    (result,) = runner.run([built(kernel())], replace(other, task_id="other", cases=wrong))
    assert result.failure is not None and result.failure.reason == "wrong"
    (right,) = runner.run([built(kernel())], reference())
    assert right.failure is None


def test_a_kernel_needs_the_registers_of_one_block_at_least() -> None:
    made = build_kernel(program(), TARGET)
    launches = (*made.program.prologue, *made.program.launches)
    least = max(allotted(made.resources[launch.symbol].registers, launch.threads) for launch in launches)
    gpu = TARGET.gpu
    assert gpu is not None
    assert too_many_registers(made, replace(gpu, registers=least)) is None
    said = too_many_registers(made, replace(gpu, registers=least - 1))
    assert said is not None and "no block fits" in said


def test_registers_are_allotted_to_warps_in_units_of_256() -> None:
    assert allotted(1, 1) == 256
    assert allotted(33, 64) == 2 * 1280
    assert allotted(255, 1024) == 32 * 8192


def test_the_builder_hands_the_program_on_to_the_model() -> None:
    with LocalBuilder(build_kernel, TARGET, workers=1, timeout_s=60.0) as builder:
        (made,) = builder.build([MeasureRequest(program(), "key")])
    assert isinstance(made.outcome, CudaKernel), made.outcome
    assert made.program == program()
    assert made.outcome.cubin
    assert set(made.outcome.resources) == {launch.symbol for launch in made.outcome.program.launches}
