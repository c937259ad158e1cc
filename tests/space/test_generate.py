"""The space of a task: which sketches the rules of the configuration make, and that all of them are legal."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any

import numpy as np
import pytest

from pipeline.errors import CheckError, StepError
from pipeline.ir.graph import Graph
from pipeline.ir.graph_builder import GraphBuilder
from pipeline.ir.program import Block, Loop, Program, walk
from pipeline.ir.program_text import to_text
from pipeline.ir.target import Target
from pipeline.schedule.sketch import Sketch
from pipeline.schedule.space import ParameterSpace
from pipeline.schedule.trace import from_json, replay, to_json
from pipeline.space.generate import MOST, generate
from pipeline.space.lower import lower
from pipeline.space.partition import partition
from tests.codegen.kernel_runs import cpu_rules, described, native


def product(m: int = 64, k: int = 48, n: int = 80) -> Program:
    b = GraphBuilder()
    graph = b.finish([("y", b.matmul(b.input("x", (m, k), "float32"), b.input("w", (k, n), "float32")))])
    return lower(graph, "product")


@dataclass(frozen=True)
class Twice:
    """Offers every sketch twice."""

    def apply(self, sketch: Sketch, block: str, target: Target) -> list[Sketch]:
        del block, target
        return [sketch, sketch]


@dataclass(frozen=True)
class Breaks:
    """Takes a loop away, which leaves its variable unbound."""

    def apply(self, sketch: Sketch, block: str, target: Target) -> list[Sketch]:
        del block, target
        loop = sketch.program.body.body[0]
        assert isinstance(loop, Loop)
        return [replace(sketch, program=replace(sketch.program, body=replace(sketch.program.body, body=(loop.body,))))]


def test_no_rule_leaves_one_sketch_without_parameters() -> None:
    (sketch,) = generate(product(), (), native())
    assert sketch.program == product() and not sketch.variables


def test_equal_sketches_are_one() -> None:
    assert len(generate(product(), (Twice(), Twice()), native())) == 1


@dataclass(frozen=True)
class Says:
    """Gives the same answer for every block, or raises it."""

    answer: Any

    def apply(self, sketch: Sketch, block: str, target: Target) -> Any:
        del sketch, block, target
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer() if callable(self.answer) else self.answer


def test_a_rule_that_breaks_a_program_is_named_with_the_block() -> None:
    with pytest.raises(CheckError, match=r"the rule \S+\.Breaks does not work on block '\w+'.*not legal"):
        generate(product(), (Twice(), Breaks(), Twice()), native())


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (ZeroDivisionError("by zero"), "it raised ZeroDivisionError: by zero"),
        (StepError("split is not legal", why="because"), "it raised StepError: split is not legal"),
        ([3], "it gave 3 where a Sketch was expected"),
        (3, "it raised TypeError"),
        ("abc", "it gave 'a' where a Sketch was expected"),
    ],
)
def test_what_goes_wrong_in_a_rule_is_told_with_its_name_and_the_block(answer: Any, said: str) -> None:
    with pytest.raises(CheckError, match=r"the rule \S+\.Says does not work on block '\w+'") as caught:
        generate(product(), (Twice(), Says(answer)), native())
    assert said in str(caught.value)


@pytest.mark.parametrize("answer", [None, [], ()])
def test_a_rule_that_has_nothing_to_say_leaves_the_sketch_as_it_is(answer: Any) -> None:
    assert generate(product(), (Says(answer),), native()) == generate(product(), (), native())


def test_a_rule_that_never_ends_its_list_is_cut() -> None:
    @dataclass(frozen=True)
    class Endless:
        def apply(self, sketch: Sketch, block: str, target: Target) -> Any:
            return repeat(sketch)

    assert len(generate(product(), (Endless(), Endless()), native())) == 1


@pytest.mark.parametrize("target", ["native", "avx2", "aarch64"])
def test_sketches_replay_from_their_traces_and_their_parameters_can_be_drawn(target: str) -> None:
    machine = native() if target == "native" else described(target)
    sketches = generate(product(), cpu_rules(), machine)
    assert 1 <= len(sketches) <= MOST
    assert len({to_text(sketch.program) for sketch in sketches}) == len(sketches)
    for sketch in sketches:
        assert replay(product(), from_json(to_json(sketch.trace))).program == sketch.program
        space = ParameterSpace.of(sketch)
        assert space.valid(space.draw(32, np.random.default_rng(0))).all()


def small_graphs() -> dict[str, Graph]:
    made = {}
    for name in ("softmax", "layer_norm", "transpose", "scan", "topk", "scatter"):
        b = GraphBuilder()
        x = b.input("x", (16, 40), "float32")
        match name:
            case "softmax":
                y = b.softmax(x, 1)
            case "layer_norm":
                y = b.layer_norm(x, [1])
            case "transpose":
                y = b.transpose(x, (1, 0))
            case "scan":
                y = b.scan("sum", x, 1)
            case "topk":
                y = b.topk(x, 3, 1)[0]
            case _:
                y = b.scatter_nd(x, b.input("i", (4, 1), "int64"), b.input("u", (4, 40), "float32"))
        made[name] = b.finish([("y", y)])
    return made


@pytest.mark.parametrize("name", small_graphs())
def test_every_task_has_a_sketch_whose_reductions_are_decomposed(name: str) -> None:
    for task in partition(small_graphs()[name]).tasks:
        for sketch in generate(lower(task.graph, task.name, task.constants), cpu_rules(), native()):
            blocks = [stmt for stmt in walk(sketch.program.body) if isinstance(stmt, Block)]
            assert not any(block.init is not None for block in blocks)


@pytest.mark.parametrize("name", ["softmax", "layer_norm", "transpose"])
def test_work_that_can_be_shared_out_is(name: str) -> None:
    for task in partition(small_graphs()[name]).tasks:
        for sketch in generate(lower(task.graph, task.name, task.constants), cpu_rules(), native()):
            kinds = [stmt.kind for stmt in walk(sketch.program.body) if isinstance(stmt, Loop)]
            assert "parallel" in kinds and "vectorized" in kinds
