"""Tests of launch plans run on the CPU: the same results as the model, and mistakes in a plan are seen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pipeline.codegen.cuda.execute_build import find_compiler
from pipeline.codegen.cuda.kernel import CudaKernel
from pipeline.codegen.cuda.launch_plan import LaunchPlan, PlannedCall
from pipeline.codegen.cuda.link import link
from pipeline.errors import CheckError, UserError
from pipeline.runtime.host_module import HostModule
from tests.codegen.cuda.small_plans import chain, expected, plan

COMPILER = pytest.mark.skipif(find_compiler() is None, reason="there is no C++ compiler")
X, Y = (np.random.default_rng(0).normal(size=(2, 100))).astype(np.float32)


def reference(call: PlannedCall, kernel: CudaKernel, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What the kernels of the plan compute, by NumPy."""
    if kernel.symbol == "add":
        return {"c": arrays["a"] + arrays["b"]}
    return {"y": (arrays["x"] * 2 * arrays["w"])[::-1]}


@pytest.fixture(params=[pytest.param(None, id="source", marks=COMPILER), pytest.param(reference, id="reference")])
def compute(request: pytest.FixtureRequest) -> Any:
    return request.param


def test_a_plan_gives_what_the_model_does(compute: Any) -> None:
    with HostModule(link(plan()), compute) as module:
        for feeds in ({"x": X, "y": Y}, {"x": Y, "y": X}):
            got = module.run(None, feeds)
            for name, array in zip(expected(X, Y), got, strict=True):
                np.testing.assert_allclose(array, expected(feeds["x"], feeds["y"])[name], rtol=1e-5, atol=1e-4)


def test_outputs_are_chosen_by_name(compute: Any) -> None:
    (total,) = HostModule(link(plan()), compute).run(["s"], {"x": X, "y": Y})
    np.testing.assert_array_equal(total, X + Y)


def moved(made: LaunchPlan, number: int, name: str, to: str) -> LaunchPlan:
    """One argument of one call at the place of another."""
    call = made.calls[number]
    calls = list(made.calls)
    calls[number] = replace(call, places={**call.places, name: call.places[to]})
    return replace(made, calls=tuple(calls))


def test_an_intermediate_that_lies_on_one_that_is_still_needed_is_seen(compute: Any) -> None:
    made = link(plan())
    wrong = moved(made, 1, "y", "x")  # back is written over the sum, which the next call reads
    got = HostModule(wrong, compute).run(["z"], {"x": X, "y": Y})[0]
    assert not np.allclose(got, expected(X, Y)["z"], equal_nan=False)


def test_what_a_call_does_not_write_is_no_value(compute: Any) -> None:
    made = link(chain(3))
    skipped = replace(made, calls=(made.calls[0], made.calls[2]))
    assert np.isnan(HostModule(skipped, compute).run(None, {"x": X})[0]).all()


def test_feeds_that_are_not_the_models_are_refused(compute: Any) -> None:
    with pytest.raises(UserError, match="Give x, y"):
        HostModule(link(plan()), compute).run(None, {"x": X})


@COMPILER
def test_a_kernel_that_faults_is_told_with_its_call() -> None:
    made = plan()
    add = made.kernels[0]
    wrong = add.program.source.replace("if (i < 100) ", "")
    broken = replace(made, kernels=(replace(add, program=replace(add.program, source=wrong)), made.kernels[1]))
    with pytest.raises(CheckError, match=r"sum: a kernel is at fault.*out of bounds"):
        HostModule(link(broken)).run(None, {"x": X, "y": Y})


@COMPILER
def test_a_prologue_that_faults_is_told() -> None:
    made = plan()
    packed = made.kernels[1]
    wrong = packed.program.source.replace("p[i] = 2.0f * w[i]", "p[i + 1] = 2.0f * w[i]")
    broken = replace(made, kernels=(made.kernels[0], replace(packed, program=replace(packed.program, source=wrong))))
    with pytest.raises(CheckError, match="a prologue is at fault"):
        HostModule(link(broken)).run(None, {"x": X, "y": Y})
