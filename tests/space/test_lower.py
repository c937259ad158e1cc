"""Lowering: the text of the programs of some operations, and that they mean what the graph means."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pipeline.errors import CodegenError
from pipeline.ir.graph import Graph
from pipeline.ir.graph_builder import GraphBuilder
from pipeline.ir.interpret import interpret
from pipeline.ir.program import Block, Program, blocks
from pipeline.ir.program_check import check
from pipeline.ir.program_text import to_text
from pipeline.space.lower import argument_name, lower
from pipeline.verification.hostile import random_feeds
from tests.codegen.kernel_runs import argument_feeds, assert_right

GOLDEN = Path(__file__).parent / "golden"
F = "float32"
CASES: dict[str, Callable[[GraphBuilder], int]] = {
    "product": lambda b: b.matmul(b.input("x", (2, 3), F), b.input("w", (3, 4), F)),
    "half_product": lambda b: b.matmul(b.input("x", (2, 3), "float16"), b.input("w", (3, 4), "float16")),
    "pad": lambda b: b.pad(b.input("x", (3,), F), (1,), (2,), (1,), 0.5),
    "concat": lambda b: b.concat([b.input("x", (2,), F), b.input("w", (3,), F)], 0),
    "sum_of_nothing": lambda b: b.reduce("sum", b.input("x", (2, 0), F), [1]),
    "empty": lambda b: b.elementwise("exp", b.input("x", (0,), F)),
    "gather": lambda b: b.gather(b.input("x", (5, 2), F), b.input("i", (3,), "int32"), 0),
    "reshape": lambda b: b.reshape(b.transpose(b.input("x", (2, 6), F), (1, 0)), (3, 4)),
    "scan": lambda b: b.scan("sum", b.input("x", (4,), F), 0, True, True),
    "argmax": lambda b: b.reduce("argmax", b.input("x", (4,), F), [0]),
}


def graph_of(case: str) -> Graph:
    b = GraphBuilder()
    return b.finish([("y", CASES[case](b))])


def program_of(case: str) -> Program:
    return lower(graph_of(case), case, ("w",))


@pytest.mark.parametrize("case", CASES)
def test_a_program_reads_as_it_should(case: str) -> None:
    assert to_text(program_of(case)) == (GOLDEN / f"{case}.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("case", CASES)
def test_a_program_means_what_its_graph_means(case: str) -> None:
    program, graph = program_of(case), graph_of(case)
    check(program)
    feeds = random_feeds(graph, np.random.default_rng(0))
    assert_right(graph, feeds, interpret(program, argument_feeds(feeds)), case)


def test_inputs_that_are_known_are_constants_and_the_others_inputs() -> None:
    roles = {buffer.name: buffer.role for buffer in program_of("product").buffers}
    assert roles == {"x": "input", "w": "constant", "out0": "output"}


def test_scalars_are_written_into_the_program_and_larger_constants_are_refused() -> None:
    b = GraphBuilder()
    x = b.input("x", (3,), F)
    graph = b.finish([("y", b.elementwise("mul", x, b.constant(np.full((1,), 0.5, np.float32))))])
    assert "0.5:float32" in to_text(lower(graph, "scaled"))
    b = GraphBuilder()
    graph = b.finish([("y", b.elementwise("mul", b.input("x", (3,), F), b.constant(np.arange(3, dtype=np.float32))))])
    with pytest.raises(CodegenError, match="a constant that is no scalar"):
        lower(graph, "scaled")


def test_every_operation_is_one_block_with_loops_of_its_own() -> None:
    b = GraphBuilder()
    graph = b.finish([("y", b.softmax(b.input("x", (3, 5), F), 1))])
    program = lower(graph, "softmax")
    names = [block.name for block in blocks(program)]
    assert [name.rstrip("0123456789") for name in names] == [
        "reduce",
        "reshape",
        "sub",
        "exp",
        "reduce",
        "reshape",
        "div",
    ]
    assert len(set(names)) == len(names) == len(program.body.body)


def test_updates_of_a_scatter_come_in_order() -> None:
    b = GraphBuilder()
    x, i, u = b.input("x", (4,), F), b.input("i", (3,), "int64"), b.input("u", (3,), F)
    program = lower(b.finish([("y", b.scatter_elements(x, i, u, 0))]), "scatter")
    copy, update = blocks(program)
    assert isinstance(copy, Block) and [it.kind for it in copy.iters] == ["spatial"]
    assert [it.kind for it in update.iters] == ["scan"]


@pytest.mark.parametrize(("given", "made"), [("x", "x"), ("a/b.c", "a_b_c"), ("0", "x_0"), ("", "x_")])
def test_names_of_arguments_can_be_written(given: str, made: str) -> None:
    assert argument_name(given) == made


def test_two_outputs_of_one_value_are_both_written() -> None:
    b = GraphBuilder()
    y = b.elementwise("exp", b.input("x", (3,), F))
    graph = b.finish([("one", y), ("two", y)])
    program = lower(graph, "twice")
    feeds = random_feeds(graph, np.random.default_rng(0))
    check(program)
    assert_right(graph, feeds, interpret(program, argument_feeds(feeds)), "twice")


@pytest.mark.parametrize("spec", ["ij,ij->ij", "i,j->ij"])
def test_a_product_that_sums_over_nothing_is_elementwise_work(spec: str) -> None:
    b = GraphBuilder()
    sizes = {"i": 3, "j": 4}
    operands = [b.input(f"x{n}", tuple(sizes[c] for c in term), "float32")
                for n, term in enumerate(spec.partition("->")[0].split(","))]  # fmt: skip
    program = lower(b.finish([("y", b.einsum(spec, *operands))]), "product")
    (block,) = blocks(program)
    assert block.combine is None and block.init is None
