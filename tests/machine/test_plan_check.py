"""Tests of the gate of a GPU's module without a GPU: a right plan passes, one wrong kernel or place does not."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from pipeline.codegen.assemble import assemble
from pipeline.codegen.cuda.build import emit_kernel
from pipeline.codegen.cuda.execute_build import find_compiler
from pipeline.codegen.cuda.kernel import CudaKernel
from pipeline.codegen.cuda.launch_plan import LaunchPlan
from pipeline.codegen.cuda.link import link
from pipeline.ir.graph import Graph
from pipeline.ir.graph_builder import GraphBuilder
from pipeline.machine import plan_check
from pipeline.machine.plan_check import verify_plan
from pipeline.space.lower import lower
from pipeline.space.partition import Partition, partition
from pipeline.verification.module_gate import Report
from tests.codegen.cuda.gpu_runs import bound
from tests.codegen.cuda.gpu_targets import gpu_target

TARGET = gpu_target()
FEEDS = {"x": np.random.default_rng(0).normal(size=(12, 20)).astype(np.float32)}
COMPILER = pytest.mark.skipif(find_compiler() is None, reason="there is no C++ compiler")


def model() -> Graph:
    """Two products with different weights, which are one task, around a sum of each row."""
    b = GraphBuilder()
    rng = np.random.default_rng(1)
    x = b.input("x", (12, 20), "float32")
    first, second = (b.constant(rng.normal(size=(20, 20)).astype(np.float32)) for _ in range(2))
    y = b.matmul(x, first)
    total = b.broadcast(b.reshape(b.reduce("sum", y, [1]), (12, 1)), (12, 20))
    return b.finish([("z", b.matmul(b.elementwise("add", y, total), second))])


@pytest.fixture(scope="module")
def parts() -> Partition:
    return partition(model())


def kernels(parts: Partition) -> list[CudaKernel]:
    made = []
    for task in parts.tasks:
        program = bound(lower(task.graph, task.name, task.constants), "threads")
        made.append(CudaKernel(emit_kernel(program, TARGET), b"no machine code", {}))
    return made


def plan(parts: Partition, made: list[CudaKernel] | None = None) -> LaunchPlan:
    return link(assemble(model(), parts, made or kernels(parts), TARGET, {}))


def checked(parts: Partition, given: LaunchPlan, *, least: bool = False) -> Report:
    return verify_plan(model(), parts, given, FEEDS, seed=0, workers=1, least=least)


@COMPILER
@pytest.mark.parametrize("whole", [True, False])
def test_a_right_plan_is_verified(whole: bool, parts: Partition, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_check, "WHOLE_FLOPS", 1e9 if whole else 0.0)
    assert len(parts.tasks) >= 2 and len(parts.instances) > len(parts.tasks)
    found = checked(parts, plan(parts))
    assert found.verified
    assert found.failures == ()
    assert 0 < found.max_error.absolute <= found.max_error.tolerance
    least = checked(parts, plan(parts), least=True)
    assert least.verified and 1 == len(least.cases) <= len(found.cases)


@COMPILER
def test_a_kernel_that_is_wrong_is_named_though_the_flow_of_data_is_right(
    parts: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_check, "WHOLE_FLOPS", 0.0)
    made = kernels(parts)
    source, times = re.subn(r"(out0\[.*\] = )(.*);", r"\1 1.0f + \2;", made[0].program.source)
    assert times
    made[0] = replace(made[0], program=replace(made[0].program, source=source))
    found = checked(parts, plan(parts, made))
    assert not found.verified
    assert [case.output for case in found.failures] == [plan(parts).calls[0].label]
    assert "is right" in found.failures[0].verdict.reason
    flow = checked(parts, plan(parts, made), least=True)  # kernels were checked when they were chosen
    assert flow.verified and len(flow.cases) == 1


@COMPILER
def test_a_call_that_gets_the_weights_of_another_is_seen(parts: Partition, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_check, "WHOLE_FLOPS", 0.0)
    made = plan(parts)
    weighted = [
        number for number, call in enumerate(made.calls) if any(p.area == "weights" for p in call.places.values())
    ]
    first, last = made.calls[weighted[0]], made.calls[weighted[-1]]
    swapped = {name: last.places[name] for name, place in first.places.items() if place.area == "weights"}
    calls = list(made.calls)
    calls[weighted[0]] = replace(first, places={**first.places, **swapped})
    assert not checked(parts, replace(made, calls=tuple(calls))).verified


def test_without_a_compiler_the_flow_of_data_is_checked_still(
    parts: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_check, "find_compiler", lambda: None)
    right = plan(parts)
    assert checked(parts, right).verified
    calls = (replace(right.calls[0], places={**right.calls[0].places, "out0": right.calls[-1].places["out0"]}),)
    assert not checked(parts, replace(right, calls=(*calls, *right.calls[1:]))).verified
