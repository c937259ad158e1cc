"""Random graphs, random schedules and random programs: compiled code computes what the interpreter and the graph do."""

from __future__ import annotations

import random
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from pipeline.codegen.llvm.build import build_kernel
from pipeline.errors import CheckError, CodegenError
from pipeline.ir.graph import Graph
from pipeline.ir.interpret import interpret
from pipeline.ir.program import Block, Loop, Program, Stmt, map_statements
from pipeline.ir.program_check import check
from pipeline.schedule.nest import all_blocks
from pipeline.schedule.sketch import Sketch
from pipeline.schedule.space import ParameterSpace
from pipeline.schedule.steps import DecomposeReduction
from pipeline.space.generate import generate
from pipeline.space.lower import lower
from pipeline.space.partition import partition
from pipeline.verification.hostile import hostile_feeds, random_feeds
from tests.codegen.kernel_runs import argument_feeds, assert_right, cpu_rules, native, run_kernel, run_program
from tests.ir import random_graphs, random_programs
from tests.schedule.programs import feeds as program_feeds
from tests.schedule.test_meaning import draw_program, draw_step

SIZES = st.sampled_from((0, 1, 2, 3, 5, 7, 15, 16, 17, 33))
FEW = settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
SLOW_TO_INTERPRET = 20_000  # elements


@pytest.fixture(autouse=True)
def wider(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes around the width of vectors, too."""
    monkeypatch.setattr(random_graphs, "SIZES", SIZES)


def elements(graph: Graph) -> int:
    return sum(int(np.prod(node.type.shape)) for node in graph.nodes)


@FEW
@given(random_graphs.graphs())
def test_random_graphs_lower_to_programs_that_compute_them(graph: Graph) -> None:
    rng = np.random.default_rng(0)
    for task in partition(graph).tasks:
        if elements(task.graph) < SLOW_TO_INTERPRET:
            program = lower(task.graph, task.name, task.constants)
            check(program)
            feeds = random_feeds(task.graph, rng)
            assert_right(task.graph, feeds, interpret(program, argument_feeds(feeds)), task.name)


@FEW
@given(random_graphs.graphs(), st.integers(0, 1 << 16))
def test_random_candidates_of_random_graphs_compile_to_what_they_compute(graph: Graph, seed: int) -> None:
    """With random and with hostile numbers; inputs and outputs end where memory does."""
    rng = np.random.default_rng(seed)
    for task in partition(graph).tasks:
        feeds = random_feeds(task.graph, rng)
        hostile = [{**given, **{name: feeds[name] for name in task.constants}}
                   for _, given in hostile_feeds(task.graph, rng)]  # fmt: skip
        for sketch in generate(lower(task.graph, task.name, task.constants), cpu_rules(), native()):
            space = ParameterSpace.of(sketch)
            program = sketch.candidate(space.values(space.draw(1, rng)[0]))
            check(program)
            kernel = build_kernel(program, native())
            for numbers in (feeds, *hostile):
                got = run_kernel(kernel, argument_feeds(numbers), native(), page_ends=sys.platform == "linux")
                assert_right(task.graph, numbers, got, f"{task.name} at {space.values(space.draw(1, rng)[0])}")


def decomposed(sketch: Sketch) -> Sketch:
    """Initial values in blocks of their own, as the code generator wants them."""
    for block, place in all_blocks(sketch.program):
        if block.combine is not None and block.init is not None:
            steps = [DecomposeReduction(block.name, loop.axes[0].var) for loop in place.loops]
            legal = [step for step in steps if step.why_not(sketch.program) is None]
            assume(legal)
            sketch = sketch.apply(legal[0])
    return sketch


def assert_as_interpreted(program: Program, feeds: dict[str, np.ndarray]) -> None:
    """Or refused, by either."""
    try:
        want = interpret(program, feeds)
        got = run_program(program, feeds, native())
    except CheckError:
        return
    except CodegenError as error:
        assert "one element written by several lanes" in str(error)
        return
    for name, array in want.items():
        np.testing.assert_allclose(got[name], array, rtol=1e-4, atol=1e-5, err_msg=name)


@settings(FEW, max_examples=60)
@given(st.randoms(use_true_random=False), st.integers(0, 1 << 16))
def test_random_schedules_compile_to_what_they_compute(rng: random.Random, seed: int) -> None:
    sketch = Sketch(draw_program(rng))
    for number in range(rng.randint(1, 12)):
        declared, step = draw_step(rng, sketch, number)
        if step.why_not(declared.program) is None:
            sketch = declared.apply(step)
    feeds = program_feeds(sketch.program, seed)
    sketch = decomposed(sketch)
    space = ParameterSpace.of(sketch)
    assert_as_interpreted(sketch.candidate(space.values(space.draw(1, np.random.default_rng(seed))[0])), feeds)


def for_a_cpu(stmt: Stmt) -> Stmt:
    """Loops of the kinds that CPUs have; no initial values."""
    match stmt:
        case Block():
            return replace(stmt, init=None)
        case Loop(axes, body, kind):
            known = {"blockIdx": "parallel", "threadIdx": "vectorized"}.get(kind.partition(".")[0], kind)
            return Loop(axes, for_a_cpu(body), known)  # type: ignore[arg-type]
        case _:
            return map_statements(stmt, for_a_cpu)


@settings(FEW, max_examples=80)
@given(random_programs.runnable_programs(), st.integers(0, 1 << 16))
def test_random_programs_compile_to_what_they_compute(program: Program, seed: int) -> None:
    program = replace(program, body=for_a_cpu(program.body))  # type: ignore[arg-type]
    try:
        check(program)
    except CheckError:
        assume(False)
    assert_as_interpreted(program, random_programs.feeds(seed))


def test_a_kernel_has_the_same_text_whatever_the_hashes_of_strings() -> None:
    code = (
        "import hashlib\n"
        "from tests.codegen.test_portable import candidates, TARGETS\n"
        "from pipeline.codegen.llvm.build import emit_kernel\n"
        "texts = [emit_kernel(p, TARGETS['avx2']()).text for p in candidates('rows', 'avx2')]\n"
        "print(hashlib.sha256(''.join(texts).encode()).hexdigest())\n"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed, "PATH": ""}, capture_output=True, text=True,
            check=True, cwd=random_graphs.__file__.rpartition("/tests/")[0],
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(seen) == 1
