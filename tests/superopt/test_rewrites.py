"""Tests of rewrites of whole graphs by the superoptimizer: what they make, and when they are used."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pipeline.ir.evaluate import evaluate
from pipeline.ir.graph import Elementwise, Graph
from pipeline.ir.graph_check import check
from pipeline.space.partition import partition
from pipeline.superopt.rewrites import Rewrite, at_the_roofline, rewritten_where_faster
from pipeline.superopt.subprograms import subprograms
from rules.graph.merge_products import MergeProducts
from tests.rules.graph.meaning import feeds_of, interface, operations
from tests.superopt.model_graphs import TARGET, bert, gpt2, ruled

MERGE = (("MergeProducts", MergeProducts().apply),)


def test_queries_keys_and_values_become_one_product_in_each_layer() -> None:
    before = bert()
    after, (rewrite,) = rewritten_where_faster(before, MERGE, ruled, TARGET)
    check(after)
    assert interface(after) == interface(before)
    assert (rewrite.name, rewrite.used) == ("MergeProducts", True)
    assert rewrite.kernels - rewrite.rewritten_kernels == 2 * 2  # two of three in each of two layers
    assert rewrite.rewritten_kernels == len(partition(after).instances)
    assert operations(after).count("Contract") == operations(before).count("Contract") - 4
    assert not {"Slice", "Transpose"} & set(operations(after)), "the parts are read in place"


def test_the_rewritten_graph_computes_the_same() -> None:
    before = bert()
    after, _ = rewritten_where_faster(before, MERGE, ruled, TARGET)
    feeds = feeds_of(before)
    expected, got = evaluate(before, feeds), evaluate(after, feeds)
    for name, value in expected.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-10, atol=1e-10)


def test_attention_is_one_subprogram_of_the_rewritten_graph_too() -> None:
    after, _ = rewritten_where_faster(bert(), MERGE, ruled, TARGET)
    found = subprograms(after, partition(after), TARGET)
    attention = [one for one in found if len(one.replaced[0]) == 3 and len(one.uses) == 2]
    assert any(operations(one.task.graph).count("Contract") == 2 and "exp" in operations(one.task.graph)
               for one in attention)  # fmt: skip


def test_what_the_roofline_finds_slower_is_told_and_not_used() -> None:
    def shown(graph: Graph) -> Graph:
        """Of each exponential too, which can then be no part of a larger kernel."""
        more = [(f"more{i}", i) for i, node in enumerate(graph.nodes) if node.op == Elementwise("exp")]
        return replace(graph, outputs=(*graph.outputs, *more))

    before = bert()
    after, (rewrite,) = rewritten_where_faster(before, (("Shown", shown),), ruled, TARGET)
    assert after is before
    assert not rewrite.used and rewrite.rewritten_seconds > rewrite.seconds
    assert rewrite.seconds == pytest.approx(at_the_roofline(before, partition(before), TARGET))


def test_a_rule_that_changes_nothing_is_not_told() -> None:
    graph = gpt2()
    assert rewritten_where_faster(graph, MERGE, ruled, TARGET) == (graph, ())


def test_a_rule_begins_with_what_the_one_before_it_made() -> None:
    seen: list[Graph] = []

    def watch(graph: Graph) -> Graph:
        seen.append(graph)
        return graph

    after, tried = rewritten_where_faster(bert(), (*MERGE, ("Watch", watch)), ruled, TARGET)
    assert seen == [after] and [one.name for one in tried] == ["MergeProducts"]


@pytest.mark.parametrize(("with_it", "used"), [(0.9, True), (1.0, False), (1.1, False)])
def test_a_rewrite_is_used_only_where_it_saves_time(with_it: float, used: bool) -> None:
    assert Rewrite("R", 3, 2, 1.0, with_it).used == used
