"""Padding of what a product makes: one task, stored inside its border at once."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.ir.evaluate import evaluate
from pipeline.ir.graph import Graph, Pad
from pipeline.ir.graph_builder import GraphBuilder
from pipeline.ir.interpret import interpret
from pipeline.ir.program import blocks
from pipeline.schedule.space import ParameterSpace
from pipeline.space.generate import generate
from pipeline.space.lower import lower, padded_value
from pipeline.space.partition import partition
from pipeline.verification.hostile import random_feeds
from tests.codegen.kernel_runs import argument_feeds, assert_right, cpu_rules, native, run_program


def padded(rows: int, low: tuple[int, ...], high: tuple[int, ...], value: float, reshaped: bool) -> Graph:
    """max(x @ w, 0), maybe as (rows, 1, columns), with a border."""
    b = GraphBuilder()
    x, w = b.input("x", (rows, 5), "float32"), b.constant(np.linspace(-1, 1, 35, dtype=np.float32).reshape(5, 7))
    y = b.elementwise("max", b.matmul(x, w), b.scalar(0.0, b.matmul(x, w)))
    if reshaped:
        y = b.reshape(y, (2, rows // 2, 7))
    return b.finish([("y", b.pad(y, low, high, value=value))])


Case = tuple[int, tuple[int, ...], tuple[int, ...], float, bool]  # the arguments of `padded`
CASES: list[Case] = [
    (6, (1, 0), (1, 0), 0.0, False),
    (6, (0, 2), (3, 1), -np.inf, False),
    (6, (1, 1, 0), (1, 1, 0), 0.0, True),
    (34, (1, 2, 3), (0, 1, 2), 1.5, True),
    (1, (0, 0), (0, 4), 0.0, False),
]


@pytest.mark.parametrize("case", CASES)
def test_a_product_and_the_border_around_it_are_one_task(
    case: Case,
) -> None:
    parts = partition(padded(*case))
    assert len(parts.tasks) == 1
    assert any(isinstance(node.op, Pad) for node in parts.tasks[0].graph.nodes)


@pytest.mark.parametrize("case", CASES)
def test_the_border_and_what_is_inside_it_are_what_the_graph_says(
    case: Case,
) -> None:
    (task,) = partition(padded(*case)).tasks
    rng = np.random.default_rng(0)
    feeds = random_feeds(task.graph, rng)
    program = lower(task.graph, "t", task.constants)
    assert_right(task.graph, feeds, interpret(program, argument_feeds(feeds)), "lowered")
    for sketch in generate(program, cpu_rules(), native()):
        space = ParameterSpace.of(sketch)
        for row in space.draw(3, rng):
            concrete = sketch.candidate(space.values(row))
            assert_right(task.graph, feeds, run_program(concrete, argument_feeds(feeds), native()), "compiled")


def test_the_product_is_stored_in_the_padded_tensor_and_nowhere_else() -> None:
    (task,) = partition(padded(*CASES[3])).tasks
    (sketch, *_) = generate(lower(task.graph, "t", task.constants), cpu_rules(), native())
    stored = {block.buffer for block in blocks(sketch.program) if not block.name.endswith(("pack0", "_init"))}
    assert {name for name in stored if not name.endswith("local")} == {"out0"}


def test_a_padding_of_an_input_or_one_that_crops_looks_its_elements_up() -> None:
    b = GraphBuilder()
    x = b.input("x", (4, 4), "float32")
    outside = b.finish([("y", b.pad(x, (1, 1), (1, 1)))])
    assert padded_value(outside, outside.outputs[0][1]) is None
    cropped = padded(6, (-1, 0), (1, 0), 0.0, False)
    assert padded_value(cropped, cropped.outputs[0][1]) is None
    feeds = {"x": np.ones((6, 5), np.float32)}
    assert evaluate(cropped, feeds)["y"].shape == (6, 7)
