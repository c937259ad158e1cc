"""Tests of RandomComputeLocation: producers in the loops of their consumers, offered beside what was there before."""

from __future__ import annotations

import pytest

from pipeline.ir.graph import Graph
from pipeline.ir.graph_builder import GraphBuilder
from pipeline.ir.program import blocks
from pipeline.ir.program_text import to_text
from pipeline.schedule.nest import find_buffer
from pipeline.schedule.steps import ComputeAt
from pipeline.space.generate import generate
from rules.schedule.auto_inline import AutoInline
from rules.schedule.multi_level_tiling import MultiLevelTiling
from rules.schedule.parallel_vectorize import ParallelVectorize
from rules.schedule.random_compute_location import RandomComputeLocation
from rules.schedule.row_reduction import RowReduction
from tests.rules.schedule.sketches import (
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
)
from tests.search.spaces import TARGET, parts, sketches

RULE = RandomComputeLocation()
ALL = (AutoInline(), MultiLevelTiling(), RowReduction(), RULE, ParallelVectorize())


def used_twice(n: int = 6, m: int = 40) -> Graph:
    """A costly function of each element that is used twice: it is not inlined."""
    g = GraphBuilder()
    t = g.elementwise("tanh", g.input("x", (n, m), "float32"))
    return g.finish([("y", g.elementwise("mul", t, g.elementwise("add", t, g.input("z", (n, m), "float32"))))])


def before_a_product(n: int = 6, m: int = 13, k: int = 9) -> Graph:
    """A costly function of an operand of a product."""
    g = GraphBuilder()
    t = g.elementwise("tanh", g.input("x", (n, k), "float32"))
    return g.finish([("y", g.matmul(t, g.input("b", (k, m), "float32")))])


def product_of_product(n: int = 6, m: int = 13, k: int = 9) -> Graph:
    """Two products, one after the other."""
    g = GraphBuilder()
    t = g.matmul(g.input("x", (n, k), "float32"), g.input("w", (k, m), "float32"))
    return g.finish([("y", g.matmul(t, g.input("b", (m, k), "float32")))])


def summed_over_columns(n: int = 6, m: int = 24) -> Graph:
    """A sum of columns that a map of every row reads."""
    g = GraphBuilder()
    x = g.input("x", (n, m), "float32")
    return g.finish([("y", g.elementwise("mul", x, g.broadcast(g.reduce("sum", x, [0]), (n, m))))])


def chain(n: int = 6, m: int = 40) -> Graph:
    """Three costly functions, each used twice by the next."""
    g = GraphBuilder()
    x = g.input("x", (n, m), "float32")
    for _ in range(3):
        t = g.elementwise("tanh", x)
        x = g.elementwise("mul", t, g.elementwise("add", t, x))
    return g.finish([("y", x)])


def test_a_costly_map_is_computed_row_by_row_or_piece_by_piece_or_apart() -> None:
    program = lowered(used_twice())
    made = generate(program, [AutoInline(), RULE], TARGET)
    assert [sum(isinstance(step, ComputeAt) for step in sketch.trace) for sketch in made] == [0, 1, 1]
    golden(made[1].program, "random_compute_location/row")
    golden(made[2].program, "random_compute_location/piece")


def test_the_buffer_shrinks_to_what_one_iteration_reads() -> None:
    _, row, piece = generate(lowered(used_twice()), [AutoInline(), RULE], TARGET)
    for sketch, wanted in ((row, "40"), (piece, "t_mul4_s1_1")):
        (name,) = [block.buffer for block in blocks(sketch.program) if block.name.startswith("tanh")]
        buffer = find_buffer(sketch.program, name)
        assert buffer is not None and buffer.scope == "shared"
        assert [str(extent) for extent in buffer.shape] == ["1", wanted]


@pytest.mark.parametrize(
    "make", [used_twice, before_a_product, product_of_product, summed_over_columns, chain], ids=lambda f: f.__name__
)
@pytest.mark.parametrize("size", [(6, 40), (1, 17), (5, 3), (8, 16), (7, 1)], ids=str)
def test_every_place_keeps_the_meaning(make: object, size: tuple[int, int]) -> None:
    program = lowered(make(*size))  # type: ignore[operator]
    made = generate(program, ALL, TARGET)
    for sketch in made:
        assert all(block.init is None for block in blocks(sketch.program))
        keeps(program, sketch, samples=2)
    assert len({to_text(sketch.program) for sketch in made}) == len(made)


@pytest.mark.parametrize(
    "make", [used_twice, before_a_product, chain], ids=lambda f: f.__name__
)  # fmt: skip
def test_what_was_there_is_offered_too(make: object) -> None:
    program = lowered(make())  # type: ignore[operator]
    without = {to_text(s.program) for s in generate(program, [rule for rule in ALL if rule is not RULE], TARGET)}
    offered = {to_text(s.program) for s in generate(program, ALL, TARGET)}
    assert without < offered


def test_an_operand_is_computed_in_the_loops_of_its_product_or_of_its_copy() -> None:
    made = generate(lowered(before_a_product()), ALL, TARGET)
    for sketch in made:
        if any(isinstance(step, ComputeAt) for step in sketch.trace):
            around = kinds(sketch.program, "tanh1")
            assert around[0] == "parallel" and around[-1] == "vectorized"


def test_tasks_of_the_configuration_are_offered_places() -> None:
    (task,) = parts(used_twice()).tasks
    assert len(sketches(task)) == 3


@pytest.mark.parametrize(
    "graph", [elementwise(), product(), sum_over(1), sum_over(0)], ids=["map", "product", "rows", "columns"]
)
def test_what_nothing_reads_is_left_to_other_rules(graph: Graph) -> None:
    program = generate(lowered(graph), [AutoInline()], TARGET)[0].program
    assert says_nothing(RULE, program)


@pytest.mark.parametrize("graph", [softmax(), layer_norm()], ids=["softmax", "layer norm"])
def test_rows_that_are_scheduled_whole_are_left_alone(graph: Graph) -> None:
    (sketch,) = generate(lowered(graph), [AutoInline(), RowReduction()], TARGET)
    assert all(RULE.apply(sketch, block.name, TARGET) == [] for block in blocks(sketch.program))


def test_what_would_be_computed_for_every_row_again_is_not_moved() -> None:
    """A sum of columns at the loop over twenty rows would be summed twenty times."""
    for rows, moves in ((2, True), (20, False)):
        made = generate(lowered(summed_over_columns(rows, 24)), [AutoInline(), RULE], TARGET)
        assert any(isinstance(step, ComputeAt) for sketch in made for step in sketch.trace) == moves


def test_a_producer_with_consumers_in_two_nests_stays() -> None:
    g = GraphBuilder()
    t = g.elementwise("tanh", g.input("x", (4, 5), "float32"))
    outputs = [("y", g.elementwise("mul", t, t)), ("z", g.elementwise("add", t, t))]
    assert says_nothing(RULE, lowered(g.finish(outputs)))
