"""Tests of rows that warps reduce: whole rows in one kernel, right at any length, within every limit."""

from __future__ import annotations

import pytest

from pipeline.ir.graph_builder import GraphBuilder
from pipeline.ir.program import Alloc, Loop, walk
from pipeline.space.generate import generate
from rules.schedule.auto_inline import AutoInline
from rules.schedule.gpu_auto_bind import GpuAutoBind
from rules.schedule.gpu_row_reduction import GpuRowReduction
from tests.rules.schedule import sketches as small
from tests.rules.schedule.gpu_cases import a100, demands, fits, right, rows
from tests.rules.schedule.sketches import lowered

RULES = (AutoInline(), GpuRowReduction(), GpuAutoBind())


@pytest.mark.parametrize("shape", [(1, 64), (5, 17), (33, 40), (3, 128)])
@pytest.mark.parametrize("make", [small.softmax, small.layer_norm])
def test_a_row_is_read_reduced_and_written_in_one_kernel(make: object, shape: tuple[int, int]) -> None:
    for sketch in right(lowered(make(*shape)), RULES, samples=2):  # type: ignore[operator]
        assert len(sketch.program.body.body) == 1
        units = [s.annotation("tensorize") for s in walk(sketch.program.body) if isinstance(s, Loop)]
        assert {"warp.sum_32"} <= {unit for unit in units if unit is not None}


@pytest.mark.parametrize("kind", ["sum", "max", "min", "prod"])
def test_every_combination_has_a_reduction_over_lanes(kind: str) -> None:
    made = right(lowered(small.sum_over(1, 6, 50, kind)), RULES, samples=2)
    assert len(made) == 2


@pytest.mark.parametrize("dtype", ["float16", "float64", "int32"])
def test_sums_of_other_numbers_are_right(dtype: str) -> None:
    g = GraphBuilder()
    x = g.input("x", (5, 40), dtype)  # type: ignore[arg-type]
    right(lowered(g.finish([("y", g.reduce("sum", x, [1]))])), RULES, samples=2)


def test_rows_may_have_several_dimensions() -> None:
    g = GraphBuilder()
    x = g.input("x", (2, 3, 4, 40), "float32")
    for sketch in right(lowered(g.finish([("y", g.softmax(x, 3))])), RULES, samples=2):
        assert len(sketch.program.body.body) == 1


def test_a_reduction_over_two_dimensions_runs_over_the_first_inside_a_thread() -> None:
    g = GraphBuilder()
    x = g.input("x", (5, 3, 40), "float32")
    right(lowered(g.finish([("y", g.reduce("sum", x, [1, 2]))])), RULES, samples=2)


def test_what_a_thread_makes_and_reads_stays_in_its_registers() -> None:
    for sketch in generate(lowered(small.softmax(64, 1024)), RULES, a100()):
        scopes = {s.buffer.name: s.buffer.scope for s in walk(sketch.program.body) if isinstance(s, Alloc)}
        assert "local" in {scopes[name] for name in scopes if name.startswith("v")}


@pytest.mark.parametrize("columns", [768, 1024, 50257, 1000003])
@pytest.mark.parametrize("make", [small.softmax, small.layer_norm])
def test_no_candidate_exceeds_a_limit(make: object, columns: int) -> None:
    for sketch in generate(lowered(make(512, columns)), RULES, a100()):  # type: ignore[operator]
        for candidate in rows(sketch, 100):
            fits(candidate, a100())
            assert all(demand.threads % 32 == 0 for demand in demands(candidate))


@pytest.mark.parametrize("columns", [2, 7, 15])
@pytest.mark.parametrize("make", [small.softmax, small.layer_norm])
def test_short_rows_that_are_reduced_more_than_once_are_one_kernel_all_the_same(make: object, columns: int) -> None:
    made = generate(lowered(make(33, columns)), RULES, a100())  # type: ignore[operator]
    assert any(len(sketch.program.body.body) == 1 for sketch in made)
    right(lowered(make(33, columns)), RULES, samples=1)  # type: ignore[operator]


def test_short_rows_and_columns_are_left_to_other_rules() -> None:
    for graph in (small.sum_over(1, 40, 7), small.sum_over(0, 40, 70), small.elementwise(), small.product()):
        assert small.says_nothing(GpuRowReduction(), lowered(graph), a100())


def test_a_cpu_is_no_business_of_the_rule() -> None:
    assert small.says_nothing(GpuRowReduction(), lowered(small.softmax()))
