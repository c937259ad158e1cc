"""Tests of the rule that gives what is left to blocks and threads: whatever the program, it is bound and right."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.ir.graph_builder import GraphBuilder
from pipeline.ir.program import Loop, Program, walk
from pipeline.ir.program_parse import from_text
from pipeline.schedule.space import ParameterSpace
from pipeline.space.generate import generate
from rules.schedule.gpu_auto_bind import GpuAutoBind
from tests.rules.schedule import sketches as small
from tests.rules.schedule.gpu_cases import a100, demands, right, rows
from tests.rules.schedule.sketches import lowered

RULE = (GpuAutoBind(),)


@pytest.mark.parametrize("shape", [(1, 1), (7, 1), (1, 1000), (33, 64), (5, 100), (130, 3), (2, 4096)])
def test_elements_are_shared_out_in_vectors_along_the_last_axis(shape: tuple[int, int]) -> None:
    (sketch,) = right(lowered(small.elementwise(*shape)), RULE)
    assert sketch.program.body


@pytest.mark.parametrize("axis", [0, 1])
def test_a_reduction_runs_inside_a_thread(axis: int) -> None:
    (sketch,) = right(lowered(small.sum_over(axis, 40, 70)), RULE)
    total = next(loop for loop in walk(sketch.program.body) if isinstance(loop, Loop) and loop.kind == "threadIdx.x")
    assert any(isinstance(stmt, Loop) and stmt.kind == "serial" for stmt in walk(total.body))


def test_blocks_are_whole_warps_of_at_most_so_many_threads() -> None:
    (sketch,) = generate(lowered(small.elementwise(64, 8192)), RULE, a100())
    for candidate in rows(sketch, 200):
        for demand in demands(candidate):
            assert demand.threads % 32 == 0 and demand.threads <= 1024


def test_vectors_are_no_wider_than_sixteen_bytes_and_divide_the_rows() -> None:
    for columns, widths in ((4096, {1, 2, 4}), (4098, {1, 2}), (4097, {1})):
        (sketch,) = generate(lowered(small.elementwise(2, columns)), RULE, a100())
        found = {
            loop.axes[0].extent.value
            for candidate in rows(sketch, 60)
            for loop in walk(candidate.body)
            if isinstance(loop, Loop) and loop.kind == "vectorized"
        }
        assert found | {1} == widths | {1}


def test_a_number_alone_is_the_work_of_one_thread() -> None:
    g = GraphBuilder()
    x = g.input("x", (), "float32")
    (sketch,) = right(lowered(g.finish([("y", g.elementwise("exp", x))])), RULE)
    assert [demand.threads for demand in demands(sketch.program)] == [1]


def test_what_has_to_stay_in_order_stays_inside_a_thread() -> None:
    g = GraphBuilder()
    x = g.input("x", (5, 40), "float32")
    (sketch,) = right(lowered(g.finish([("y", g.scan("sum", x, 1, False, False))])), RULE)
    scan = next(s for s in walk(sketch.program.body) if isinstance(s, Loop) and s.axes[0].var.endswith("s1"))
    assert scan.kind == "serial"


def test_selection_in_rows_gives_each_thread_its_rows() -> None:
    g = GraphBuilder()
    x = g.input("x", (6, 9), "float32")
    right(lowered(g.finish([("y", value) for value in g.topk(x, 3, 1)[:1]])), RULE)


def shared_nest(kind: str = "parallel") -> Program:
    """Two blocks that share a tile, and a reduction of it."""
    return from_text(f"""program p():
    input X: float32[6, 50]
    output Y: float32[6, 50]
    body:
        for p in {kind}(6):
            alloc T: float32[50] in shared:
                alloc S: float32[] in shared:
                    seq:
                        for a in serial(50):
                            block first:
                                spatial i in range(6) = p
                                spatial j in range(50) = a
                                T[j] = exp(X[i, j])
                        for r in serial(50):
                            block total:
                                reduce k in range(50) = r
                                init 0.0:float32
                                S[] += T[k]
                        for b in serial(50):
                            block last:
                                spatial i in range(6) = p
                                spatial j in range(50) = b
                                Y[i, j] = T[j] / S[]
""")


@pytest.mark.parametrize("kind", ["parallel", "serial", "blockIdx.x"])
def test_blocks_that_share_a_nest_share_its_grid(kind: str) -> None:
    (sketch,) = right(shared_nest(kind), RULE)
    assert [demand.grid for demand in demands(sketch.program)] == [6]


def test_what_threads_run_already_is_left_alone() -> None:
    program = shared_nest()
    once = right(program, RULE)[0]
    assert all(GpuAutoBind().apply(once, name, a100()) == [] for name in ("first", "last"))


def test_a_cpu_is_no_business_of_the_rule() -> None:
    assert small.says_nothing(GpuAutoBind(), lowered(small.elementwise()))


def test_the_space_of_a_large_tensor_has_many_candidates() -> None:
    (sketch,) = generate(lowered(small.elementwise(3, 70000)), RULE, a100())
    space = ParameterSpace.of(sketch)
    assert len(space.unique(space.draw(500, np.random.default_rng(0)))) > 100
