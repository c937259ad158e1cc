"""Tests of MatrixVector: products of a few rows, the matrix read in the order in which it lies."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pipeline.ir.graph import Graph, Input
from pipeline.ir.graph_builder import GraphBuilder
from pipeline.ir.program import blocks
from pipeline.ir.program_text import to_text
from pipeline.schedule.space import ParameterSpace
from pipeline.schedule.steps import Pack, Rfactor
from pipeline.space.generate import generate
from rules.graph.absorb_views import AbsorbViews
from rules.schedule.auto_inline import AutoInline
from rules.schedule.matrix_vector import MatrixVector
from rules.schedule.parallel_vectorize import ParallelVectorize
from tests.codegen.kernel_runs import argument_feeds, assert_right, native, run_program
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
)
from tests.search.spaces import TARGET

RULE = MatrixVector()
SIZES = [(1, 20, 37), (1, 40, 64), (3, 7, 16), (4, 24, 33), (16, 17, 40), (2, 1, 64), (5, 33, 128)]


def transposed_weights(n: int = 4, m: int = 24, k: int = 32, *, bias: bool = False) -> Graph:
    """x (n, k) times w (m, k) transposed: the matrix lies along the sum."""
    g = GraphBuilder()
    c = g.matmul(g.input("x", (n, k), "float32"), g.transpose(g.input("w", (m, k), "float32"), [1, 0]))
    if bias:
        c = g.relu(g.elementwise("add", c, g.broadcast(g.input("bias", (m,), "float32"), (n, m))))
    return AbsorbViews().apply(g.finish([("c", c)]))


def batched(heads: int = 3, m: int = 12, k: int = 32) -> Graph:
    """One row for each of several matrices."""
    g = GraphBuilder()
    x = g.input("x", (heads, 1, k), "float32")
    w = g.transpose(g.input("w", (heads, m, k), "float32"), [0, 2, 1])
    return AbsorbViews().apply(g.finish([("c", g.matmul(x, w))]))


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("make", [transposed_weights, product], ids=["along the sum", "along the columns"])
def test_every_sketch_keeps_its_meaning(make: object, size: tuple[int, int, int]) -> None:
    program = lowered(make(*size))  # type: ignore[operator]
    for sketch in through(RULE, program):
        keeps(program, sketch)


@pytest.mark.parametrize("bits", [128, 512])
def test_every_sketch_keeps_its_meaning_at_other_vectors(bits: int) -> None:
    for graph in (transposed_weights(3, 9, 70), batched(), product(2, 50, 66)):
        program = lowered(graph)
        for sketch in through(RULE, program, replace(TARGET, vector_bits=bits, vector_registers=32)):
            keeps(program, sketch)


def test_lanes_run_along_the_sum_where_the_matrix_does() -> None:
    program = lowered(transposed_weights())
    before, along = through(RULE, program)
    assert to_text(before.program) == to_text(program), "what other rules make of it is offered, too"
    golden(along.program, "matrix_vector/along_sum")
    assert not any(isinstance(step, Pack) for step in along.trace)


def test_partial_sums_stay_in_registers() -> None:
    for registers in (16, 32):
        _, along = through(RULE, lowered(transposed_weights(16, 64, 64)), replace(TARGET, vector_registers=registers))
        space = ParameterSpace.of(along)
        rows = space.draw(300, np.random.default_rng(0))
        assert (rows.prod(axis=1) + rows.min(axis=1)).max() <= registers


def test_what_follows_is_computed_where_the_result_is_stored() -> None:
    program = lowered(transposed_weights(bias=True))
    made = generate(program, [AutoInline(), RULE, ParallelVectorize()], TARGET)
    assert len(made) == 2
    for sketch in made:
        keeps(program, sketch)
    assert len(made[1].program.body.body) == 1


def test_a_sum_over_few_columns_is_cut_into_a_piece_for_each_thread() -> None:
    program = lowered(product(2, 16, 256))
    pieces = [s for s in through(RULE, program) if any(isinstance(step, Rfactor) for step in s.trace)]
    assert len(pieces) == 1
    golden(pieces[0].program, "matrix_vector/pieces")
    assert kinds(pieces[0].program, "contract2_rf")[-1] == "vectorized"
    wide = through(RULE, lowered(product(2, 4096, 256)))
    assert not any(isinstance(step, Rfactor) for sketch in wide for step in sketch.trace)
    alone = through(RULE, program, replace(TARGET, cores=1))
    assert not any(isinstance(step, Rfactor) for sketch in alone for step in sketch.trace)


def test_nothing_is_packed_at_run_time() -> None:
    for graph in (product(4, 40, 32), transposed_weights()):
        for sketch in through(RULE, lowered(graph)):
            assert not any(isinstance(step, Pack) for step in sketch.trace)


@pytest.mark.parametrize(
    "graph", [transposed_weights(3, 21, 75, bias=True), product(2, 16, 131), batched(4, 13, 64)],
    ids=["along the sum", "along the columns", "batched"],
)  # fmt: skip
def test_kernels_compute_the_product(graph: Graph) -> None:
    rules = [AutoInline(), RULE, ParallelVectorize()]
    given = {
        node.op.name: np.random.default_rng(1).standard_normal(node.type.shape).astype(np.float32)
        for node in graph.nodes
        if isinstance(node.op, Input)
    }
    for number, sketch in enumerate(generate(lowered(graph), rules, native())):
        assert all(block.init is None for block in blocks(sketch.program))
        space = ParameterSpace.of(sketch)
        for row in space.draw(2, np.random.default_rng(0)):
            got = run_program(sketch.candidate(space.values(row)), argument_feeds(given), native())
            assert_right(graph, given, got, f"sketch {number} at {row}")


def test_weights_known_ahead_of_time_are_left_to_be_packed() -> None:
    assert says_nothing(RULE, lowered(transposed_weights(), "w"))


@pytest.mark.parametrize(
    "graph",
    [product(17, 24, 32), product(1, 1, 7), sum_over(1), sum_over(0), softmax(), layer_norm(), elementwise(),
     transposed_weights(17, 40, 32), transposed_weights(4, 24, 8)],
    ids=["many rows", "one element", "rows", "columns", "softmax", "layer norm", "map", "many rows along the sum",
         "short sum"],
)  # fmt: skip
def test_what_is_no_product_of_few_rows_is_left_to_other_rules(graph: Graph) -> None:
    assert says_nothing(RULE, lowered(graph))


def test_a_convolution_keeps_its_meaning() -> None:
    program = lowered(convolution(2, 3, 4, 1))
    for sketch in through(RULE, program):
        keeps(program, sketch)


def test_a_block_that_has_its_schedule_is_left_alone() -> None:
    for sketch in through(RULE, lowered(transposed_weights()))[1:]:
        for block in blocks(sketch.program):
            assert RULE.apply(sketch, block.name, TARGET) == []
