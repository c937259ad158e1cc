"""Tests of MultiLevelTiling: levels as the structure says, a register tile, threads, lanes, packed operands."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pipeline.ir.graph import Graph, Input
from pipeline.ir.graph_builder import GraphBuilder
from pipeline.ir.program import blocks
from pipeline.ir.program_text import to_text
from pipeline.schedule.constraint import AtMost
from pipeline.schedule.nest import block_at
from pipeline.schedule.sketch import Sketch
from pipeline.schedule.space import ParameterSpace
from pipeline.schedule.steps import Annotate, Pack, Vectorize
from pipeline.schedule.variables import Tile
from pipeline.space.generate import generate
from rules.schedule.auto_inline import AutoInline
from rules.schedule.multi_level_tiling import MultiLevelTiling
from rules.schedule.parallel_vectorize import ParallelVectorize
from tests.codegen.kernel_runs import argument_feeds, assert_right, native, run_program
from tests.rules.schedule.sketches import (
    convolution,
    elementwise,
    keeps,
    kinds,
    loops,
    lowered,
    product,
    says_nothing,
    softmax,
    sum_over,
    through,
)
from tests.search.spaces import TARGET

RULE = MultiLevelTiling()
STRUCTURES = ("SR", "SRS", "SSRS", "SRRS", "SSRRS", "SSSRRS", "SRSRS", "SSRSRS", "SSRSRRS", "SSRRSRS")


def sketches(graph: Graph, rule: MultiLevelTiling = RULE, *constants: str) -> list[tuple[str, Sketch]]:
    """Each sketch with the name of its reduction."""
    program = lowered(graph, *constants)
    (name,) = [block.name for block in blocks(program) if block.combine is not None]
    return [(name, sketch) for sketch in through(rule, program)]


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("size", [(9, 13, 5), (1, 17, 7), (17, 1, 7), (8, 16, 4), (2, 3, 1), (7, 23, 11)], ids=str)
def test_a_product_keeps_its_meaning_at_any_structure_and_size(structure: str, size: tuple[int, int, int]) -> None:
    program = lowered(product(*size))
    for sketch in through(MultiLevelTiling(structure), program):
        keeps(program, sketch)


@pytest.mark.parametrize("structure", ["SRS", "SSRS", "SSSRRS", "SRSRS", "SSRSRS"])
@pytest.mark.parametrize("graph", [product(9, 21, 40), convolution(3, 5, 7)], ids=["product", "convolution"])
def test_kernels_are_right_at_any_structure(structure: str, graph: Graph) -> None:
    rules = [AutoInline(), MultiLevelTiling(structure), ParallelVectorize()]
    given = {
        node.op.name: np.random.default_rng(1).standard_normal(node.type.shape).astype(np.float32)
        for node in graph.nodes
        if isinstance(node.op, Input)
    }
    sketch = generate(lowered(graph), rules, native())[0]
    space = ParameterSpace.of(sketch)
    for row in space.draw(2, np.random.default_rng(0)):
        got = run_program(sketch.candidate(space.values(row)), argument_feeds(given), native())
        assert_right(graph, given, got, f"{structure} at {row}")


@pytest.mark.parametrize(
    "graph",
    [convolution(), convolution(stride=2), convolution(4, 4, 5, 3, 1, groups=2), convolution(3, 3, 6, 3, 1, groups=3),
     convolution(2, 3, 4, 1), sum_over(0), product(5, 7, 3, bias=True), product(4, 6, 5, gelu=True)],
    ids=["plain", "stride", "groups", "depthwise", "window of one", "sum of columns", "bias", "gelu"],
)  # fmt: skip
def test_other_reductions_keep_their_meaning(graph: Graph) -> None:
    program = lowered(graph)
    for sketch in through(RULE, program):
        keeps(program, sketch, samples=3)


@pytest.mark.parametrize("constants", [(), ("b",), ("a", "b")], ids=lambda names: "+".join(names) or "none")
def test_constant_operands_are_packed_and_keep_their_meaning(constants: tuple[str, ...]) -> None:
    program = lowered(product(7, 19, 5), *constants)
    made = through(RULE, program)
    for sketch in made:
        keeps(program, sketch)
    packs = [sum(isinstance(step, Pack) for step in sketch.trace) for sketch in made]
    if "b" in constants:
        assert min(packs) >= 1, "what is known ahead of time is always packed"
        assert any(block_at(made[0].program, b.name)[1].prologue for b in blocks(made[0].program))
    else:
        assert {min(packs), max(packs)} >= {0, 1}, "what is not is offered both ways"


def test_the_levels_are_those_of_the_structure() -> None:
    """SSRRS: threads, a middle level, the sum, its unrolled part, and a register tile whose last loop is of lanes."""
    for name, sketch in sketches(product(64, 96, 32)):
        assert kinds(sketch.program, name) == [
            "parallel", "parallel", "serial", "serial", "serial", "unrolled", "unrolled", "vectorized",
        ]  # fmt: skip
        stored = kinds(sketch.program, f"{name}_write")
        assert stored[:2] == ["parallel", "parallel"] and stored[-1] == "vectorized"


def test_the_sum_is_kept_in_a_local_buffer_and_begins_apart() -> None:
    for name, sketch in sketches(product(64, 96, 32)):
        named = {block.name: block for block in blocks(sketch.program)}
        assert named[name].init is None and named[f"{name}_init"].combine is None
        assert named[name].buffer != named[f"{name}_write"].buffer


def test_the_tile_never_needs_more_registers_than_there_are() -> None:
    for registers in (16, 32):
        target = replace(TARGET, vector_registers=registers)
        program = lowered(product(1021, 509, 127))
        for sketch in through(RULE, program, target):
            assert {c.name for c in sketch.constraints if isinstance(c, AtMost)} >= {"registers", "code"}
            space = ParameterSpace.of(sketch)
            rows = space.draw(500, np.random.default_rng(0))
            rank = {symbol: rows[:, i] for i, symbol in enumerate(space.columns)}
            inner = [symbol for symbol in space.columns if symbol.endswith("_2")]
            assert len(inner) == 2
            assert (rank[inner[0]] * rank[inner[1]]).max() <= registers * TARGET.lanes()


def test_a_wider_vector_makes_wider_tiles() -> None:
    for bits in (128, 256, 512):
        for sketch in through(RULE, lowered(product(64, 96, 32)), replace(TARGET, vector_bits=bits)):
            vector = next(step.loop for step in sketch.trace if isinstance(step, Vectorize))
            (tile,) = [v for v in sketch.variables if isinstance(v, Tile) and f"t_{vector}" in v.symbols]
            assert tile.multiple_of[-1] == bits // 32


def test_what_follows_element_by_element_is_computed_where_the_result_is_stored() -> None:
    program = lowered(product(9, 13, 5, bias=True))
    made = generate(program, [AutoInline(), RULE], TARGET)
    assert made
    for sketch in made:
        assert not any(block.name.startswith("add") for block in blocks(sketch.program))
        keeps(program, sketch)


@pytest.mark.parametrize(
    "graph", [elementwise(), softmax(), sum_over(1), sum_over(1, kind="max")], ids=["map", "softmax", "rows", "max"]
)
def test_what_is_no_product_is_left_to_other_rules(graph: Graph) -> None:
    assert says_nothing(RULE, lowered(graph))


def test_a_product_of_single_elements_is_left_alone() -> None:
    assert says_nothing(RULE, lowered(product(1, 1, 7)))


def test_a_running_sum_is_left_alone() -> None:
    g = GraphBuilder()
    scan = g.scan("sum", g.input("x", (4, 6), "float32"), 1)
    assert says_nothing(RULE, lowered(g.finish([("y", scan)])))


def test_a_block_that_has_its_schedule_is_left_alone() -> None:
    for name, sketch in sketches(product()):
        assert RULE.apply(sketch, name, TARGET) == []


def test_a_structure_that_begins_with_a_sum_is_refused() -> None:
    assert says_nothing(MultiLevelTiling("RSRS"), lowered(product()))


def test_a_second_structure_for_long_sums_stands_beside_the_first() -> None:
    long_ones = MultiLevelTiling("SSRSRS", least_sum=32, beside=True)
    assert says_nothing(long_ones, lowered(product(9, 13, 31)))
    program = lowered(product(9, 13, 32))
    alone = {to_text(sketch.program) for sketch in through(RULE, program)}
    both = generate(program, [long_ones, RULE], TARGET)
    assert alone < {to_text(sketch.program) for sketch in both}
    for sketch in both:
        keeps(program, sketch, samples=2)


def test_partial_sums_are_added_to_the_result() -> None:
    """SSRSRS: the outer part of the sum is around the register tile, which is cleared for each of its iterations."""
    for name, sketch in sketches(product(64, 96, 32), MultiLevelTiling("SSRSRS")):
        named = {block.name: block for block in blocks(sketch.program)}
        assert named[f"{name}_clear"].combine is None and named[f"{name}_write"].combine == "sum"
        around = loops(sketch.program, f"{name}_write")
        assert f"{name}_r0_0" in around and f"{name}_r0_1" not in around


def test_the_same_program_gives_the_same_sketches() -> None:
    texts = [[to_text(s.program) for _, s in sketches(product())] for _ in range(2)]
    assert texts[0] == texts[1]
    assert len(set(texts[0])) == len(texts[0])


@pytest.mark.parametrize(("size", "wanted"), [(4096, True), (64, False)])
def test_the_next_panel_of_a_large_packed_operand_is_asked_for(size: int, wanted: bool) -> None:
    """What stays in the cache of a core from one call to the next needs no hint."""
    (_, sketch), *_ = sketches(product(128, size, 512), MultiLevelTiling(), "b")
    hints = [step for step in sketch.trace if isinstance(step, Annotate)]
    assert [step.key for step in hints] == (["prefetch_next"] if wanted else [])


def test_with_sums_in_pieces_it_is_the_next_panel_of_the_piece() -> None:
    """The loops over a piece of the sum are the ones that read the panel."""
    (_, sketch), *_ = sketches(product(128, 2048, 4096), MultiLevelTiling("SSRSRS"), "b")
    (hint,) = [step for step in sketch.trace if isinstance(step, Annotate)]
    assert (hint.loop, hint.value) == (f"{hint.loop.rsplit('_', 1)[0]}_1", hint.value)
    assert str(hint.value).endswith("_2")


@pytest.mark.parametrize(("rows", "wanted"), [(8, True), (1024, False)])
def test_of_what_is_streamed_as_it_lies_the_next_rows_are_asked_for(rows: int, wanted: bool) -> None:
    """Where memory sets the pace: with more rows it is the arithmetic."""
    for _, sketch in sketches(product(rows, 96, 64), MultiLevelTiling("SSRSRS")):
        packed = any(isinstance(step, Pack) for step in sketch.trace)
        hints = [(step.key, str(step.value)[-4:]) for step in sketch.trace if isinstance(step, Annotate)]
        assert hints == ([("prefetch_next", "r0_0")] if wanted and not packed else [])
        keeps(lowered(product(rows, 96, 64)), sketch, samples=1)
