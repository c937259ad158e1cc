"""Tests of `MergeVariables`: which variables become one, and what keeps them apart."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from pipeline.ir import graph as g
from pipeline.ir.graph import AffineDim, Graph
from pipeline.ir.graph_builder import GraphBuilder
from pipeline.ir.graph_primitives import axis_map
from rules.graph.merge_variables import MergeVariables
from tests.ir.random_graphs import graphs
from tests.rules.graph.attention_blocks import bert_block, weights
from tests.rules.graph.meaning import applied, line

RULE = MergeVariables()


@settings(max_examples=40, deadline=None)
@given(graphs())
def test_any_graph_keeps_its_meaning(graph: Graph) -> None:
    applied(RULE, graph)


def product(after: Graph, which: int = 0) -> g.Contract:
    return [node.op for node in after.nodes if isinstance(node.op, g.Contract)][which]


def test_a_batch_of_one_is_dropped_and_the_rows_are_those_of_a_matrix() -> None:
    b = GraphBuilder()
    y = b.matmul(b.input("x", (1, 5, 4), "float32"), weights(b, "w", 4, 3))
    y = b.elementwise("add", y, weights(b, "c", 3))
    after = applied(RULE, b.finish([("y", y)]))
    assert line(after, "contract").startswith("contract<spatial=[5, 3], reduced=[4], lhs=[d0, d2], rhs=[d2, d1]>")
    assert line(after, "add").endswith("float32[5, 3]"), "the sum is done before the reshape"


def test_a_batch_and_its_rows_are_merged() -> None:
    b = GraphBuilder()
    y = b.matmul(b.input("x", (2, 5, 4), "float32"), weights(b, "w", 4, 3))
    assert product(applied(RULE, b.finish([("y", y)]))).spatial == (10, 3)


def test_a_window_of_one_by_one_merges_the_places_of_the_image() -> None:
    b = GraphBuilder()
    x = b.input("x", (2, 5, 7, 4), "float32")
    y = b.contract(x, weights(b, "w", 3, 4), [2, 5, 7, 3], [4], axis_map(0, 1, 2, 4), axis_map(3, 4))
    assert product(applied(RULE, b.finish([("y", y)]))) == g.Contract((70, 3), (4,), axis_map(0, 2), axis_map(1, 2))


def test_reduced_variables_merge_where_the_constant_can_be_laid_out_anew() -> None:
    b = GraphBuilder()
    x = b.input("x", (2, 3, 5, 4), "float32")
    w = weights(b, "w", 4, 3, 5, 6)
    y = b.contract(x, w, [2, 6], [3, 5, 4], axis_map(0, 2, 3, 4), axis_map(4, 2, 3, 1))
    after = applied(RULE, b.finish([("y", y)]))
    assert product(after) == g.Contract((2, 6), (60,), axis_map(0, 2), axis_map(2, 1))
    (data,) = after.constants.values()
    np.testing.assert_array_equal(data, b.value_of(w).transpose(1, 2, 0, 3).reshape(60, 6))


def test_an_index_of_two_terms_merges_where_it_counts_through() -> None:
    b = GraphBuilder()
    x, w = b.input("x", (5, 24), "float32"), b.input("w", (24,), "float32")
    joint = AffineDim(((1, 6), (2, 1)))
    y = b.contract(x, w, [5], [4, 6], (AffineDim(((0, 1),)), joint), (joint,))
    assert product(applied(RULE, b.finish([("y", y)]))) == g.Contract((5,), (24,), axis_map(0, 1), axis_map(1))


@pytest.mark.parametrize(
    ("spatial", "reduced", "lhs", "rhs", "shapes"),
    [
        # a stride: the rows of the image are not one after another
        ((3, 7, 2), (4,), (AffineDim(((0, 2),)), AffineDim(((1, 1),)), AffineDim(((3, 1),))), axis_map(2, 3),
         ((5, 7, 4), (2, 4))),
        # only a part of each row is read
        ((3, 6, 2), (4,), axis_map(0, 1, 3), axis_map(2, 3), ((3, 7, 4), (2, 4))),
        # one operand has both, the other one of them
        ((3, 7, 2), (4,), axis_map(0, 1, 3), axis_map(1, 2, 3), ((3, 7, 4), (7, 2, 4))),
        # they lie the other way round
        ((3, 7, 2), (4,), axis_map(1, 0, 3), axis_map(2, 3), ((7, 3, 4), (2, 4))),
        # a window
        ((3, 5, 2), (4,), (AffineDim(((0, 1), (3, 1))), AffineDim(((1, 1),))), axis_map(2, 3), ((6, 5), (2, 4))),
    ],
)  # fmt: skip
def test_variables_stay_apart_where_no_single_step_covers_both(spatial, reduced, lhs, rhs, shapes) -> None:
    b = GraphBuilder()
    x, w = b.input("x", shapes[0], "float32"), b.input("w", shapes[1], "float32")
    op = product(applied(RULE, b.finish([("y", b.contract(x, w, spatial, reduced, lhs, rhs))])))
    assert (op.spatial, op.reduced) == (spatial, reduced)


def test_a_product_of_single_elements_keeps_a_variable_of_either_kind() -> None:
    b = GraphBuilder()
    y = b.matmul(b.input("x", (1, 1), "float32"), b.input("w", (1, 1), "float32"))
    assert product(applied(RULE, b.finish([("y", y)]))) == g.Contract((1,), (1,), (), ())


def test_a_product_without_elements_is_left() -> None:
    b = GraphBuilder()
    y = b.matmul(b.input("x", (1, 0, 4), "float32"), b.input("w", (4, 3), "float32"))
    assert product(applied(RULE, b.finish([("y", y)]))).spatial == (1, 0, 3)


def test_attention_of_one_sequence_runs_without_its_batch() -> None:
    after = applied(RULE, bert_block())
    assert all(node.type.shape[:1] != (1,) for node in after.nodes if isinstance(node.op, g.Contract))
    assert line(after, "exp").endswith("float32[4, 6, 6]")


def test_a_mask_that_varies_along_a_part_of_merged_rows_keeps_the_reshape_before_it() -> None:
    b = GraphBuilder()
    y = b.matmul(b.input("x", (2, 5, 4), "float32"), weights(b, "w", 4, 3))
    y = b.elementwise("add", y, b.input("places", (5, 3), "float32"))
    after = applied(RULE, b.finish([("y", y)]))
    assert line(after, "add").endswith("float32[2, 5, 3]")
