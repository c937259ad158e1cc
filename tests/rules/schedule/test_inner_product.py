"""Tests of InnerProduct: a register tile of a product that shares its nest, and operands packed where it pays."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pipeline.ir.program import Loop, Program, walk
from pipeline.ir.target import Cache
from pipeline.schedule.nest import block_at
from pipeline.schedule.sketch import Sketch
from pipeline.schedule.steps import Annotate, CacheWrite, Pack
from rules.schedule.inner_product import InnerProduct
from tests.rules.schedule.nests import (
    columns_first,
    dot_products,
    gated_product,
    grid_of_sums,
    row_sums,
    streamed_product,
)
from tests.rules.schedule.sketches import golden, keeps, kinds, loops, lowered, product, says_nothing, softmax, through
from tests.search.spaces import TARGET

RULE = InnerProduct()


def packs(sketch: Sketch) -> list[Pack]:
    return [step for step in sketch.trace if isinstance(step, Pack)]


def test_rows_times_a_vector_stay_in_registers_over_the_whole_sum() -> None:
    program = gated_product()
    (sketch,) = through(RULE, program)
    golden(sketch.program, "inner_product/product")
    keeps(program, sketch)
    assert kinds(sketch.program, "product") == ["parallel", "serial", "serial", "unrolled", "vectorized"]


def test_what_is_known_at_compile_time_is_packed_ahead_of_time() -> None:
    program = gated_product(role="constant")
    made = through(RULE, program)
    golden(made[0].program, "inner_product/constant")
    for sketch in made:
        keeps(program, sketch)
        assert [step.key for step in sketch.trace if isinstance(step, Annotate)] == ["prefetch"]


def test_what_lies_across_the_lanes_is_packed_in_the_nest() -> None:
    program = gated_product(turned=True)
    (sketch,) = through(RULE, program)
    golden(sketch.program, "inner_product/across")
    keeps(program, sketch)


def test_what_many_rows_use_is_offered_as_it_is_and_packed() -> None:
    program = gated_product(64, 5)
    bare, packed = through(RULE, program)
    assert not packs(bare) and [step.buffer for step in packs(packed)] == ["W"]
    for sketch in (bare, packed):
        keeps(program, sketch, samples=2)


def test_partial_sums_are_added_to_what_the_accumulator_holds() -> None:
    program = streamed_product()
    (sketch,) = through(RULE, program)
    golden(sketch.program, "inner_product/streamed")
    keeps(program, sketch)


def of_pieces(made: list[Sketch]) -> list[Sketch]:
    return [sketch for sketch in made if "t_r" in sketch.program.params]


@pytest.mark.parametrize("depth", [96, 97, 131])
@pytest.mark.parametrize("role", ["input", "constant"])
def test_a_long_sum_is_offered_whole_and_in_pieces(depth: int, role: str) -> None:
    program = gated_product(64, depth, role=role)
    made = through(InnerProduct(long_sum=96), program)
    pieces = of_pieces(made)
    assert len(pieces) * 2 == len(made)
    for sketch in pieces:
        names = [loop.axes[0].var for loop in block_at(sketch.program, "product")[1].loops]
        assert names.index("r_0") < names.index("m_0") < names.index("r_1") < names.index("m_1")
        assert [axis.var for axis in block_at(sketch.program, "product_clear")[1].axes][:3] == ["p", "r_0", "m_0"]
        keeps(program, sketch, samples=2)


@pytest.mark.parametrize(
    ("rows", "depth", "long_sum"),
    [(64, 95, 96), (5, 96, 96), (64, 96, 1024)],
    ids=["a short sum", "few rows, which memory sets the pace for", "by default"],
)
def test_other_sums_stay_whole(rows: int, depth: int, long_sum: int) -> None:
    assert not of_pieces(through(InnerProduct(long_sum=long_sum), gated_product(rows, depth)))


def test_a_sum_of_any_length_may_be_called_long() -> None:
    program = gated_product(64, 3)
    for sketch in of_pieces(through(InnerProduct(long_sum=1), program)):
        keeps(program, sketch)


def test_of_a_long_sum_the_next_piece_of_what_comes_from_memory_is_asked_for() -> None:
    large = replace(TARGET, caches=(Cache(2, 1024, 8, 1),))
    program = gated_product(64, 96, role="constant")
    made = of_pieces(InnerProduct(long_sum=96).apply(Sketch(program), "product", large))
    hints = [step for sketch in made for step in sketch.trace if isinstance(step, Annotate)]
    assert hints and {(step.loop, step.key, step.value) for step in hints} == {("r_1", "prefetch_next", "r_0")}


def test_the_next_tile_of_what_is_streamed_is_asked_for() -> None:
    program = streamed_product(beside=True)
    (sketch,) = through(RULE, program)
    hints = [loop.annotations for loop in walk(sketch.program.body) if isinstance(loop, Loop) and loop.annotations]
    assert hints == [(("prefetch_next", "s"),)]
    keeps(program, sketch)


def test_the_next_tile_is_that_of_the_loop_that_moves_what_is_streamed() -> None:
    """And not that of a loop over rows between, in each iteration of which the same tile is read."""
    program = streamed_product(4, beside=True, blocks=2)
    (sketch,) = through(RULE, program)
    hints = [loop.annotations for loop in walk(sketch.program.body) if isinstance(loop, Loop) and loop.annotations]
    assert hints == [(("prefetch_next", "s"),)]
    keeps(program, sketch)


def test_where_no_loop_around_moves_it_the_next_panel_is_asked_for() -> None:
    program = gated_product(2, width=32)
    (sketch,) = through(InnerProduct(vectors=1), program)
    hints = [loop.annotations for loop in walk(sketch.program.body) if isinstance(loop, Loop) and loop.annotations]
    assert hints == [(("prefetch_next", "n_0"),)]
    keeps(program, sketch)


def test_of_two_operands_along_the_lanes_the_one_that_lies_across_is_packed() -> None:
    program = dot_products()
    made = through(RULE, program)
    assert all("Z" in [step.buffer for step in packs(sketch)] for sketch in made)
    for sketch in made:
        keeps(program, sketch)


def test_the_tile_of_a_grid_point_lies_inside_the_fused_loop() -> None:
    program = grid_of_sums(columns=8)
    (sketch,) = through(RULE, program)
    keeps(program, sketch)
    assert [step.at for step in packs(sketch)] == ["p"]
    assert any(isinstance(step, CacheWrite) and step.at == "p" for step in sketch.trace)


def test_a_sum_that_cannot_be_cached_begins_with_a_block_of_its_own_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(CacheWrite, "why_not", lambda self, program: "not here")
    for program in (gated_product(), grid_of_sums()):
        for sketch in through(RULE, program):
            assert not any(isinstance(step, CacheWrite) for step in sketch.trace)
            assert block_at(sketch.program, "product_init")
            keeps(program, sketch)


@pytest.mark.parametrize("rows", [1, 3, 16, 17])
@pytest.mark.parametrize("depth", [1, 2, 13])
@pytest.mark.parametrize("columns", [1, 8, 19])
def test_products_of_any_size_keep_their_meaning(rows: int, depth: int, columns: int) -> None:
    for role, turned in (("input", False), ("constant", True)):
        program = gated_product(rows, depth, columns, role=role, turned=turned)
        for sketch in through(RULE, program):
            keeps(program, sketch, samples=2)
    program = streamed_product(rows, depth, columns, min(depth, 5))
    for sketch in through(RULE, program):
        keeps(program, sketch, samples=2)


@pytest.mark.parametrize(
    "program",
    [row_sums(), columns_first(), lowered(product()), lowered(product(9, 13, 5, bias=True)), lowered(softmax())],
    ids=["sums of rows", "copies", "a product of its own", "a product with a bias", "a softmax of its own"],
)
def test_what_is_no_product_or_shares_no_nest_is_left_to_other_rules(program: Program) -> None:
    assert says_nothing(RULE, program)


def test_rows_shorter_than_half_a_vector_are_left_alone() -> None:
    assert says_nothing(RULE, dot_products(rows=3))
    assert not says_nothing(RULE, dot_products(rows=4))


def test_what_has_its_schedule_is_left_alone() -> None:
    for sketch in through(RULE, gated_product(turned=True)):
        for name in ("product", "product_init", "product_write", "product_pack0"):
            assert loops(sketch.program, name) and block_at(sketch.program, name)
            assert RULE.apply(sketch, name, TARGET) == []
