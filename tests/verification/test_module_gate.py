"""The gate of a module: right ones pass with their figures; wrong ones fail with a reason, if only on hostile feeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest

from pipeline.errors import UserError
from pipeline.frontend.workloads.bert import Bert
from pipeline.ir.evaluate import evaluate
from pipeline.ir.graph import Graph
from pipeline.ir.graph_builder import GraphBuilder
from pipeline.verification.hostile import hostile_feeds, index_limits, random_feeds
from pipeline.verification.module_gate import Run, verify_module


def softmax_graph() -> Graph:
    b = GraphBuilder()
    return b.finish([("y", b.softmax(b.input("x", (6, 40), "float32")))])


def embedding_graph() -> Graph:
    b = GraphBuilder()
    ids, mask = b.input("ids", (5,), "int64"), b.input("mask", (5,), "int32")
    rows = b.gather(
        b.constant(np.random.default_rng(0).standard_normal((11, 3)).astype(np.float32)), b.cast(ids, "int32")
    )
    kept = b.elementwise("mul", rows, b.reshape(b.cast(mask, "float32"), (5, 1)))
    return b.finish([("y", kept), ("ids_again", ids)])


def honest(graph: Graph) -> Run:
    def run(feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        with np.errstate(all="ignore"):
            return list(evaluate(graph, feeds, precision="native").values())

    return run


@pytest.mark.parametrize("make", [softmax_graph, embedding_graph])
def test_an_honest_module_is_verified_with_its_figures(make: Callable[[], Graph]) -> None:
    graph = make()
    report = verify_module(graph, honest(graph), seed=1)
    assert report.verified, [case.verdict.reason for case in report.failures]
    assert report.failures == ()
    assert report.max_error.absolute <= report.max_error.tolerance
    assert report.max_error.share <= 1
    assert len(report.cases) >= 2 * len(graph.outputs)


def test_a_module_that_is_wrong_only_on_hostile_feeds_is_refused() -> None:
    graph = softmax_graph()

    def careless(feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        with np.errstate(all="ignore"):
            power = np.exp(feeds["x"] + np.float32(20))
            return [power / power.sum(-1, keepdims=True)]

    report = verify_module(graph, careless)
    assert not report.verified
    assert {case.feeds.split()[0] for case in report.failures}.isdisjoint({"random"})
    assert verify_module(graph, careless, hostile=()).verified


def test_a_module_that_loses_a_nan_is_refused() -> None:
    graph = softmax_graph()
    report = verify_module(graph, lambda feeds: [np.nan_to_num(honest(graph)(feeds)[0])])
    assert "NaN" in {case.feeds for case in report.failures}


def test_one_wrong_element_of_one_output_is_named() -> None:
    graph = embedding_graph()

    def run(feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        y, ids = honest(graph)(feeds)
        ids = ids.copy()
        ids[3] += 1
        return [y, ids]

    report = verify_module(graph, run)
    assert not report.verified
    assert {case.output for case in report.failures} == {"ids_again"}
    assert "element [3]" in report.failures[0].verdict.reason


def test_a_module_with_a_missing_output_is_an_error() -> None:
    with pytest.raises(ValueError, match="1 outputs and the graph has 2"):
        verify_module(embedding_graph(), lambda feeds: [feeds["ids"]])


def test_the_same_seed_gives_the_same_feeds() -> None:
    graph = softmax_graph()
    for (name, one), (_, other) in zip(
        hostile_feeds(graph, np.random.default_rng(3)), hostile_feeds(graph, np.random.default_rng(3)), strict=True
    ):
        np.testing.assert_array_equal(one["x"], other["x"], err_msg=name)


def test_hostile_feeds_hold_what_their_names_say() -> None:
    feeds = {name: given["x"] for name, given in hostile_feeds(softmax_graph(), np.random.default_rng(0))}
    assert np.isnan(feeds["NaN"]).any()
    assert np.isinf(feeds["infinities"]).any()
    assert np.abs(feeds["large"]).max() > 78
    assert 0 < feeds["tiny variance"].std() < 1e-2
    assert np.signbit(feeds["signed zeros"]).any() and not feeds["signed zeros"].any()
    assert ((np.abs(feeds["subnormal"]) < 2.0**-126) & (feeds["subnormal"] != 0)).any()
    assert len(np.unique(feeds["ties"])) <= 5
    assert all(array.dtype == np.float32 for array in feeds.values())


def test_ids_are_drawn_from_the_table_that_they_index() -> None:
    graph = embedding_graph()
    assert index_limits(graph) == {"ids": 11}
    drawn = np.concatenate([random_feeds(graph, np.random.default_rng(i))["ids"] for i in range(50)])
    assert drawn.min() == 0
    assert drawn.max() == 10
    bert = Bert(layers=1, hidden=8, heads=2, intermediate=8, vocabulary=50, sequence=4).build(0)
    assert index_limits(bert) == {"input_ids": 50, "token_type_ids": 2}


def test_kinds_of_hostile_feeds_are_chosen_by_name() -> None:
    graph = softmax_graph()
    report = verify_module(graph, honest(graph), rounds=1, hostile=("NaN", "large"))
    assert [case.feeds for case in report.cases] == ["random 0", "NaN", "large"]
    with pytest.raises(UserError, match=r"no such kind.*NaN, infinities, large"):
        verify_module(graph, honest(graph), hostile=("nan",))


def test_a_graph_without_floating_inputs_has_no_hostile_feeds() -> None:
    assert list(hostile_feeds(embedding_graph(), np.random.default_rng(0))) == []


def rounded_with_a_silent_output() -> Graph:
    """exp in bfloat16, and a softmax of numbers so large that the analysis allows everything there."""
    b = GraphBuilder()
    x, y = b.input("x", (3, 5), "bfloat16"), b.input("y", (4, 9), "float32")
    steps = b.softmax(b.elementwise("mul", y, b.scalar(1e20, y)))
    return b.finish([("coarse", b.elementwise("exp", x)), ("steps", steps)])


def test_an_output_of_a_coarse_dtype_is_right_beside_one_of_which_the_analysis_can_say_nothing() -> None:
    graph = rounded_with_a_silent_output()
    report = verify_module(graph, honest(graph), seed=1)
    assert report.verified, [case.verdict.reason for case in report.failures]
    plain = {case.output for case in report.cases if case.feeds.endswith("plain")}
    assert plain == {"steps"}, "the other one is judged by the analysis alone"


def test_an_output_of_which_the_analysis_can_say_nothing_must_agree_plainly() -> None:
    graph = rounded_with_a_silent_output()

    def run(feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        coarse, steps = honest(graph)(feeds)
        return [coarse, steps * np.float32(0.99)]

    report = verify_module(graph, run, seed=1)
    assert not report.verified
    assert {case.output for case in report.failures} == {"steps"}


def test_it_is_told_which_feeds_come_next() -> None:
    graph = softmax_graph()
    told: list[tuple[int, int, str]] = []
    report = verify_module(graph, honest(graph), rounds=1, hostile=("NaN",), step=lambda *one: told.append(one))
    assert told == [(0, 2, "random 0"), (1, 2, report.cases[-1].feeds)]
