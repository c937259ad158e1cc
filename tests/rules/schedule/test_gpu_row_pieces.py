"""Tests of long rows in pieces: a second kernel combines them, with what follows."""

from __future__ import annotations

import pytest

from pipeline.ir.graph import Graph
from pipeline.ir.graph_builder import GraphBuilder
from rules.schedule.auto_inline import AutoInline
from rules.schedule.gpu_auto_bind import GpuAutoBind
from rules.schedule.gpu_row_pieces import GpuRowPieces
from rules.schedule.gpu_row_reduction import GpuRowReduction
from tests.rules.schedule import sketches as small
from tests.rules.schedule.gpu_cases import a100, right
from tests.rules.schedule.sketches import lowered

RULES = (AutoInline(), GpuRowPieces(), GpuRowReduction(), GpuAutoBind(reductions=True), GpuAutoBind())


def norm(batch: int, rows: int, columns: int) -> Graph:
    """The roots of the sums of squares of some matrices."""
    g = GraphBuilder()
    x = g.input("x", (batch, rows, columns), "float32")
    return g.finish([("y", g.elementwise("sqrt", g.reduce("sum", g.elementwise("mul", x, x), [1, 2])))])


@pytest.mark.parametrize("shape", [(1, 64, 64), (3, 64, 96)])
def test_long_rows_are_reduced_in_pieces_and_combined(shape: tuple[int, int, int]) -> None:
    made = right(lowered(norm(*shape)), RULES, samples=1)
    assert sorted({len(sketch.program.body.body) for sketch in made}) == [1, 2]


def test_a_sum_of_everything_is_shared_out() -> None:
    g = GraphBuilder()
    graph = g.finish([("y", g.reduce("sum", g.input("x", (64, 128), "float32"), [0, 1]))])
    made = right(lowered(graph), RULES, samples=1)
    assert any(len(sketch.program.body.body) == 3 for sketch in made)  # the pieces, an initial value, their sum


@pytest.mark.parametrize(
    "graph", [small.softmax(200, 4096), small.sum_over(1, 4, 500), small.sum_over(0, 4096, 4), small.product()]
)
def test_many_or_short_rows_are_left_whole(graph: Graph) -> None:
    assert small.says_nothing(GpuRowPieces(), lowered(graph), a100())


def test_a_cpu_is_no_business_of_the_rule() -> None:
    assert small.says_nothing(GpuRowPieces(), lowered(norm(1, 64, 64)))
