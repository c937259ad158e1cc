"""Tests of AutoInline: moves and cheap functions go where they are used, costly ones where that repeats nothing."""

from __future__ import annotations

import pytest

from pipeline.ir.graph import Graph
from pipeline.ir.graph_builder import GraphBuilder
from pipeline.ir.program import blocks
from rules.schedule.auto_inline import AutoInline
from tests.rules.schedule.sketches import (
    elementwise,
    golden,
    keeps,
    layer_norm,
    lowered,
    product,
    says_nothing,
    softmax,
    sum_over,
    through,
)

RULE = AutoInline()


def names(graph: Graph) -> list[str]:
    """The blocks that are left of a program."""
    (sketch,) = through(RULE, lowered(graph))
    return [block.name for block in blocks(sketch.program)]


def test_a_function_that_is_used_once_is_computed_where_it_is_used() -> None:
    program = lowered(elementwise(3, 4))
    (sketch,) = through(RULE, program)
    golden(sketch.program, "auto_inline/once")
    keeps(program, sketch)


@pytest.mark.parametrize(
    "graph", [softmax(3, 5), layer_norm(3, 5), product(3, 4, 5, bias=True, gelu=True)], ids=["softmax", "norm", "gelu"]
)
def test_the_meaning_is_kept(graph: Graph) -> None:
    program = lowered(graph)
    (sketch,) = through(RULE, program)
    assert len(blocks(sketch.program)) < len(blocks(program))
    keeps(program, sketch)


def test_a_costly_function_that_is_used_twice_is_computed_once() -> None:
    kept = names(softmax(3, 5))
    assert any(name.startswith("exp") for name in kept), "a sum and a division read it"
    assert not any(name.startswith(("sub", "reshape")) for name in kept)


def used_twice(fn: str) -> Graph:
    g = GraphBuilder()
    x = g.input("x", (4, 3), "float32")
    y = g.elementwise(fn, x)
    return g.finish([("z", g.elementwise("add", g.elementwise("mul", y, x), g.elementwise("neg", y)))])


def test_a_cheap_function_is_computed_again_for_each_user() -> None:
    assert len(names(used_twice("neg"))) == 1
    assert len(names(used_twice("exp"))) == 2


def test_a_product_takes_in_no_arithmetic_but_moves() -> None:
    """Each element of its operands is read for many results: what is computed there would be computed as often."""

    def with_operand(move: bool) -> Graph:
        g = GraphBuilder()
        a, b = g.input("a", (4, 5), "float32"), g.input("b", (5, 3), "float32")
        a = g.transpose(g.transpose(a, [1, 0]), [1, 0]) if move else g.elementwise("neg", a)
        return g.finish([("c", g.matmul(a, b))])

    assert len(names(with_operand(move=True))) == 1
    assert len(names(with_operand(move=False))) == 2


def test_a_sum_over_rows_takes_in_what_it_reads_once() -> None:
    g = GraphBuilder()
    x = g.elementwise("exp", g.input("x", (4, 5), "float32"))
    assert len(names(g.finish([("y", g.reduce("sum", x, [1]))]))) == 1


@pytest.mark.parametrize("graph", [product(3, 4, 5), sum_over(1)], ids=["product", "sum"])
def test_neither_a_reduction_nor_an_output_is_inlined(graph: Graph) -> None:
    assert says_nothing(RULE, lowered(graph))


def test_what_is_an_output_and_is_used_as_well_stays() -> None:
    g = GraphBuilder()
    y = g.elementwise("neg", g.input("x", (4,), "float32"))
    graph = g.finish([("y", y), ("z", g.elementwise("abs", y))])
    program = lowered(graph)
    for sketch in through(RULE, program):
        keeps(program, sketch)
