"""Tests of InnerRows: lanes along rows for what shares a nest and is no product."""

from __future__ import annotations

import pytest

from pipeline.ir.program import Program, blocks
from pipeline.space.generate import generate
from rules.schedule.inner_product import InnerProduct
from rules.schedule.inner_rows import InnerRows
from tests.rules.schedule.nests import columns_first, dot_products, gated_product, row_sums, streamed_product
from tests.rules.schedule.sketches import (
    elementwise,
    golden,
    keeps,
    kinds,
    layer_norm,
    loops,
    lowered,
    product,
    says_nothing,
    sum_over,
    through,
)
from tests.search.spaces import TARGET

RULE = InnerRows()


def test_a_sum_along_a_row_fills_a_vector_and_begins_with_a_block_of_its_own() -> None:
    program = row_sums()
    (sketch,) = through(RULE, program)
    golden(sketch.program, "inner_rows/sum")
    keeps(program, sketch)


def test_lanes_run_where_neighbours_lie_side_by_side() -> None:
    program = columns_first()
    (sketch,) = through(RULE, program)
    golden(sketch.program, "inner_rows/copies")
    keeps(program, sketch)
    assert loops(sketch.program, "copy")[-1] == "n" and kinds(sketch.program, "copy")[-1] == "vectorized"


def test_where_every_loop_strides_through_memory_none_has_lanes() -> None:
    (sketch,) = through(RULE, columns_first(3))
    assert "vectorized" not in kinds(sketch.program, "turn")


@pytest.mark.parametrize(("rows", "columns"), [(6, 11), (4, 4), (33, 70)])
def test_what_reads_along_one_loop_and_stores_along_another_is_turned(rows: int, columns: int) -> None:
    program = columns_first(rows, columns)
    (sketch,) = through(RULE, program)
    assert (loops(sketch.program, "turn")[-2:], kinds(sketch.program, "turn")[-2:]) == (
        ["a", "b"],
        ["serial", "vectorized"],
    )
    keeps(program, sketch)


@pytest.mark.parametrize("columns", [1, 2, 7, 8, 17, 31])
@pytest.mark.parametrize(
    ("kind", "init"), [("+=", "0.0"), ("max=", "-inf"), ("min=", "inf"), ("*=", "1.0"), ("+=", "5.0")]
)
def test_reductions_of_any_kind_keep_their_meaning(columns: int, kind: str, init: str) -> None:
    program = row_sums(3, columns, kind, f"init {init}:float32")
    for sketch in through(RULE, program):
        keeps(program, sketch)


@pytest.mark.parametrize("program", [gated_product(), streamed_product(), dot_products(7, 3)])
def test_products_keep_their_meaning_too_with_the_rule_for_them_before_it(program: Program) -> None:
    for rules in ([RULE], [InnerProduct(), RULE]):
        for sketch in generate(program, rules, TARGET):
            keeps(program, sketch)


@pytest.mark.parametrize(
    "program",
    [lowered(product()), lowered(sum_over(1)), lowered(elementwise()), lowered(layer_norm())],
    ids=["product", "sum", "map", "layer norm"],
)
def test_what_stands_alone_is_left_to_other_rules(program: Program) -> None:
    assert says_nothing(RULE, program)


def test_a_block_has_its_schedule_once() -> None:
    (sketch,) = through(RULE, row_sums())
    for block in blocks(sketch.program):
        if block.name != "total_init":
            assert RULE.apply(sketch, block.name, TARGET) == []
