"""Tests of ParallelVectorize: threads and lanes for whatever no other rule has touched."""

from __future__ import annotations

import pytest

from pipeline.ir.graph import Graph
from pipeline.ir.graph_builder import GraphBuilder
from pipeline.ir.program import blocks
from rules.schedule.multi_level_tiling import MultiLevelTiling
from rules.schedule.parallel_vectorize import LONGEST, ParallelVectorize
from tests.rules.schedule.sketches import (
    convolution,
    elementwise,
    golden,
    keeps,
    kinds,
    loops,
    lowered,
    product,
    softmax,
    sum_over,
    through,
    transposed,
)
from tests.search.spaces import TARGET

RULE = ParallelVectorize()


def test_rows_are_shared_and_columns_are_lanes() -> None:
    program = lowered(transposed(20, 9))
    (sketch,) = through(RULE, program)
    golden(sketch.program, "parallel_vectorize/copy")
    keeps(program, sketch)


@pytest.mark.parametrize("rows", [1, 2, 7, 16])
@pytest.mark.parametrize("columns", [1, 3, 8, 13, 64])
def test_every_kind_of_program_keeps_its_meaning(rows: int, columns: int) -> None:
    graphs = (
        elementwise(rows, columns), transposed(rows, columns), sum_over(0, rows, columns), sum_over(1, rows, columns),
        product(rows, columns, 3),
    )  # fmt: skip
    for graph in graphs:
        program = lowered(graph)
        (sketch,) = through(RULE, program)
        keeps(program, sketch)


@pytest.mark.parametrize("graph", [softmax(), convolution(), product(bias=True, gelu=True)], ids=["s", "c", "p"])
def test_programs_of_many_blocks_keep_their_meaning(graph: Graph) -> None:
    program = lowered(graph)
    (sketch,) = through(RULE, program)
    keeps(program, sketch)


def test_every_reduction_gets_its_initial_value_as_a_block_of_its_own() -> None:
    """Code is generated for nothing else."""
    for graph in (softmax(), convolution(), product(), sum_over(0)):
        (sketch,) = through(RULE, lowered(graph))
        assert all(block.init is None for block in blocks(sketch.program))


def test_a_short_vector_alone_is_neither_split_nor_shared() -> None:
    (sketch,) = through(RULE, lowered(elementwise(1, 8)))
    assert not sketch.variables
    assert "parallel" not in [kind for block in blocks(sketch.program) for kind in kinds(sketch.program, block.name)]


def test_a_long_vector_is_cut_into_pieces_that_threads_share() -> None:
    g = GraphBuilder()
    x = g.input("x", (100_003,), "float32")
    program = lowered(g.finish([("y", g.elementwise("neg", x))]))
    (sketch,) = through(RULE, program)
    (variable,) = sketch.variables
    (block,) = blocks(sketch.program)
    assert kinds(sketch.program, block.name) == ["parallel", "vectorized"]
    assert variable.bounds()[1][0] <= LONGEST
    keeps(program, sketch, samples=2)


def test_lanes_lie_along_the_axis_that_is_contiguous_in_the_result() -> None:
    (sketch,) = through(RULE, lowered(transposed(32, 48)))
    (block,) = blocks(sketch.program)
    assert loops(sketch.program, block.name)[-1].endswith("s1")


def test_what_another_rule_has_scheduled_is_left_alone() -> None:
    tiled = through(MultiLevelTiling(), lowered(product()))
    assert tiled
    for sketch in tiled:
        for block in blocks(sketch.program):
            assert RULE.apply(sketch, block.name, TARGET) == []


def test_a_program_without_loops_is_left_alone() -> None:
    g = GraphBuilder()
    program = lowered(g.finish([("y", g.elementwise("neg", g.input("x", (), "float32")))]))
    (sketch,) = through(RULE, program)
    assert sketch.trace == ()
    keeps(program, sketch)
