"""Tests of what a task's candidates are checked on: hostile feeds only where the reference stays cheap."""

from __future__ import annotations

import numpy as np

from pipeline.ir.graph_builder import GraphBuilder
from pipeline.measurement.protocol import Reference
from pipeline.measurement.task_reference import HOSTILE_BYTES, HOSTILE_FLOPS, task_reference
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
