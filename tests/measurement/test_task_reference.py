"""Tests of what a task's candidates are checked on: hostile feeds only where the reference stays cheap."""

from __future__ import annotations

import numpy as np

from pipeline.ir.graph_builder import GraphBuilder
from pipeline.measurement.protocol import Reference
from pipeline.measurement.task_reference import HOSTILE_BYTES, HOSTILE_FLOPS, task_reference
from pipeline.space.lower import argument_name
from pipeline.space.task import Task, make_task


def rows(count: int) -> Task:
    b = GraphBuilder()
    x = b.input("x", (count, 1024), "float32")
    return make_task(b.finish([("y", b.elementwise("neg", x))]), ())


def reference(task: Task, **options: bool) -> Reference:
    return task_reference(task, np.random.default_rng(0), rounds=2, **options)


def test_a_small_task_is_checked_on_random_and_hostile_feeds() -> None:
    assert len(reference(rows(4)).cases) > 4
    assert len(reference(rows(4), hostile=False).cases) == 2


def test_a_task_of_few_operations_on_many_bytes_is_checked_on_one_set_of_feeds() -> None:
    task = rows(4096)
    assert task.flops < HOSTILE_FLOPS and task.traffic > HOSTILE_BYTES
    assert len(reference(task).cases) == 1


def test_what_the_caller_of_the_model_hands_in_is_told_by_the_names_of_the_arguments() -> None:
    b = GraphBuilder()
    x, y = b.input("x", (4,), "float32"), b.input("y", (4,), "float32")
    task = make_task(b.finish([("z", b.elementwise("add", x, y))]), (), ("y",))
    assert reference(task).fed == {argument_name("y")}
    assert reference(rows(4)).fed == set()


def test_weights_are_as_small_as_those_of_so_many_summands_and_other_constants_are_not() -> None:
    b = GraphBuilder()
    x, w = b.input("x", (64, 400), "float32"), b.input("w", (400, 100), "float32")
    turned, bias = b.input("turned", (50, 2, 25), "float32"), b.input("bias", (50,), "float32")
    middle = b.elementwise("sigmoid", b.matmul(x, w))
    last = b.matmul(b.slice(middle, [0, 0], [64, 50]), b.reshape(turned, (50, 50)))
    task = make_task(b.finish([("y", b.elementwise("add", last, bias))]), ("w", "turned", "bias"))
    made = reference(task)
    spread = {name: float(np.std(made.constants[argument_name(name)])) for name in task.constants}
    assert abs(spread["w"] * 400**0.5 - 1) < 0.05 and abs(spread["turned"] * 50**0.5 - 1) < 0.1
    assert abs(spread["bias"] - 1) < 0.4
    assert abs(np.std(made.cases[0].inputs[argument_name("x")]) - 1) < 0.05
    assert made.constants[argument_name("w")].dtype == np.float32


def test_whole_numbers_that_are_factors_stay_what_they_are() -> None:
    b = GraphBuilder()
    x, w = b.input("x", (4, 9), "int8"), b.input("w", (9, 4), "int8")
    made = reference(make_task(b.finish([("y", b.matmul(x, w))]), ("w",)))
    assert made.constants[argument_name("w")].dtype == np.int8 and made.constants[argument_name("w")].any()
