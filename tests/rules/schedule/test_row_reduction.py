"""Tests of RowReduction: whole rows in one loop, vectorized along them; pieces where there are few rows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pipeline.ir.graph import Graph
from pipeline.ir.program import blocks
from pipeline.schedule.steps import Rfactor
from pipeline.space.generate import generate
from rules.schedule.auto_inline import AutoInline
from rules.schedule.row_reduction import RowReduction
from tests.rules.schedule.sketches import (
    convolution,
    elementwise,
    golden,
    keeps,
    kinds,
    layer_norm,
    lowered,
    product,
    says_nothing,
    softmax,
    sum_over,
    through,
    transposed,
)
from tests.search.spaces import TARGET

RULE = RowReduction()


def test_a_sum_over_rows_shares_the_rows_and_is_vectorized_along_them() -> None:
    program = lowered(sum_over(1))
    (sketch,) = through(RULE, program)
    golden(sketch.program, "row_reduction/sum")
    keeps(program, sketch)


@pytest.mark.parametrize("rows", [4, 5, 7, 16])
@pytest.mark.parametrize("columns", [1, 2, 7, 8, 17, 31])
def test_softmax_and_normalisation_keep_their_meaning(rows: int, columns: int) -> None:
    for graph in (softmax(rows, columns), layer_norm(rows, columns)):
        program = lowered(graph)
        for sketch in generate(program, [AutoInline(), RULE], TARGET):
            keeps(program, sketch)


def test_all_of_a_softmax_is_done_in_one_loop_over_the_rows() -> None:
    (sketch,) = generate(lowered(softmax()), [AutoInline(), RULE], TARGET)
    assert len(sketch.program.body.body) == 1
    for block in blocks(sketch.program):
        around = kinds(sketch.program, block.name)
        assert around[0] == "parallel" and around.count("parallel") == 1
        assert around[-1] == "vectorized" or block.name.endswith("_init")


@pytest.mark.parametrize("kind", ["sum", "max", "min", "prod"])
@pytest.mark.parametrize("columns", [5, 64, 97])
def test_few_rows_are_cut_into_pieces_and_keep_their_meaning(kind: str, columns: int) -> None:
    program = lowered(sum_over(1, 1, columns, kind))
    made = through(RULE, program)
    for sketch in made:
        keeps(program, sketch)
    if columns >= 2 * TARGET.lanes():
        assert any(isinstance(step, Rfactor) for sketch in made for step in sketch.trace)


def test_as_many_rows_as_threads_need_no_pieces() -> None:
    for cores, pieces in ((4, False), (8, True)):
        made = through(RULE, lowered(sum_over(1, 4, 64)), replace(TARGET, cores=cores))
        assert any(isinstance(step, Rfactor) for sketch in made for step in sketch.trace) == pieces


@pytest.mark.parametrize(
    "graph", [elementwise(), transposed(), product(), convolution(), sum_over(0)],
    ids=["map", "copy", "product", "convolution", "columns"],
)  # fmt: skip
def test_what_does_not_reduce_rows_is_left_to_other_rules(graph: Graph) -> None:
    assert says_nothing(RULE, lowered(graph))


def test_what_has_its_schedule_is_left_alone() -> None:
    (sketch,) = through(RULE, lowered(sum_over(1)))
    for block in blocks(sketch.program):
        assert RULE.apply(sketch, block.name, TARGET) == []
