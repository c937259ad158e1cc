"""Partition: what is computed together, in which order, and that nothing is lost or stored twice."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import numpy as np
from hypothesis import HealthCheck, given, settings

from pipeline.ir.graph import Constant, Graph, Input, Reshape
from pipeline.ir.graph_builder import GraphBuilder
from pipeline.space.partition import Partition, partition
from tests.ir import random_graphs
from tests.space.partition_runs import assert_whole


def operations(parts: Partition) -> list[Counter[str]]:
    """What each task does, without its operands."""
    return [
        Counter(
            getattr(n.op, "fn", type(n.op).__name__) for n in task.graph.nodes if not isinstance(n.op, Input | Constant)
        )
        for task in parts.tasks
    ]


@settings(max_examples=120, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(random_graphs.graphs(steps=14))
def test_random_graphs_are_the_sum_of_their_parts(graph: Graph) -> None:
    assert_whole(graph, partition(graph))


def encoder() -> Graph:
    """One layer of a transformer with one head: two norms, attention, a feed-forward part, two residuals."""
    b = GraphBuilder()
    x = b.input("x", (8, 16), "float32")

    def weight(*shape: int, seed: int) -> int:
        return b.constant(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))

    def dense(value: int, n: int, seed: int) -> int:
        product = b.matmul(value, weight(b.shape(value)[1], n, seed=seed))
        return b.elementwise("add", product, weight(n, seed=seed + 50))

    def norm(value: int) -> int:
        return b.layer_norm(value, [1], weight(16, seed=90), weight(16, seed=91))

    q, k, v = (dense(x, 16, seed) for seed in (1, 2, 3))
    scores = b.elementwise("mul", b.einsum("ik,jk->ij", q, k), b.scalar(0.25, x))
    mixed = dense(b.matmul(b.softmax(scores, 1), v), 16, 4)
    x = norm(b.elementwise("add", x, mixed))
    hidden = b.gelu(dense(x, 32, 5))
    x = norm(b.elementwise("add", x, dense(hidden, 16, 6)))
    return b.finish([("y", x)])


def test_a_task_knows_which_of_its_inputs_come_from_the_caller() -> None:
    """Through reshapes too. What another task has made, what is known and what is small is no such input."""
    b = GraphBuilder()
    x, w = b.input("x", (512, 64), "float32"), b.constant(np.ones((64, 64), np.float32))
    first = b.matmul(b.reshape(x, (2, 256, 64)), w)
    second = b.einsum("bij,bkj->bik", first, b.reshape(x, (2, 256, 64)))
    third = b.einsum("bij,j->bi", second, b.input("small", (256,), "float32"))
    parts = partition(b.finish([("y", third)]))
    tasks = [parts.tasks[instance.task] for instance in parts.instances]
    names = [tuple(n.op.name for n in task.graph.nodes if isinstance(n.op, Input)) for task in tasks]
    assert names == [("x0", "w1"), ("x0", "x1"), ("x0", "x1")]
    assert [task.fed for task in tasks] == [("x0",), ("x1",), ()]


def test_where_buffers_are_all_our_own_one_kernel_does_for_an_input_and_for_what_a_kernel_made() -> None:
    b = GraphBuilder()
    x, w = b.input("x", (512, 64), "float32"), b.input("w", (64, 64), "float32")
    graph = b.finish([("y", b.matmul(b.matmul(x, w), w))])
    assert [task.fed for task in partition(graph).tasks] == [("x0",), ()]
    (task,) = partition(graph, by_feed=False).tasks
    assert task.fed == ()


def test_a_product_takes_its_bias_and_activation_along() -> None:
    b = GraphBuilder()
    x, w, bias = b.input("x", (8, 16), "float32"), b.input("w", (16, 32), "float32"), b.input("b", (32,), "float32")
    graph = b.finish([("y", b.gelu(b.elementwise("add", b.matmul(x, w), bias)))])
    parts = partition(graph)
    assert operations(parts) == [Counter(Contract=1, add=2, mul=3, erf=1)]
    assert_whole(graph, parts)


def test_softmax_is_one_task() -> None:
    b = GraphBuilder()
    graph = b.finish([("y", b.softmax(b.input("x", (8, 16), "float32"), 1))])
    parts = partition(graph)
    assert len(parts.tasks) == 1 and not parts.aliases
    assert_whole(graph, parts)


def test_layer_normalisation_is_one_task() -> None:
    b = GraphBuilder()
    x, scale = b.input("x", (8, 16), "float32"), b.input("g", (16,), "float32")
    graph = b.finish([("y", b.layer_norm(x, [1], scale, scale))])
    parts = partition(graph)
    assert len(parts.tasks) == 1
    assert_whole(graph, parts)


def test_a_residual_joins_the_product_before_it() -> None:
    b = GraphBuilder()
    x, w = b.input("x", (8, 8), "float32"), b.input("w", (8, 8), "float32")
    graph = b.finish([("y", b.elementwise("add", x, b.matmul(x, w)))])
    parts = partition(graph)
    assert operations(parts) == [Counter(Contract=1, add=1)]
    assert_whole(graph, parts)


def test_a_group_does_not_wait_for_itself_by_a_detour() -> None:
    """The sum needs both products, and one of them needs the other: the sum may join the later one only."""
    b = GraphBuilder()
    x, w = b.input("x", (8, 8), "float32"), b.input("w", (8, 8), "float32")
    first = b.matmul(x, w)
    graph = b.finish([("y", b.elementwise("add", first, b.matmul(first, w)))])
    parts = partition(graph)
    assert operations(parts) == [Counter(Contract=1), Counter(Contract=1, add=1)]
    assert_whole(graph, parts)


def test_a_value_that_two_groups_need_is_stored_once() -> None:
    b = GraphBuilder()
    x, w = b.input("x", (8, 8), "float32"), b.input("w", (8, 8), "float32")
    shared = b.elementwise("tanh", b.matmul(x, w))
    graph = b.finish([("y", b.matmul(shared, w)), ("z", b.reduce("sum", shared, [0]))])
    parts = partition(graph)
    assert sum(counter["tanh"] for counter in operations(parts)) == 1
    assert len(parts.instances) == 3
    assert_whole(graph, parts)


def test_a_value_that_is_an_output_and_is_used_is_stored_once() -> None:
    b = GraphBuilder()
    x = b.input("x", (8, 8), "float32")
    once = b.elementwise("exp", x)
    graph = b.finish([("y", once), ("z", b.elementwise("neg", once))])
    parts = partition(graph)
    assert sum(counter["exp"] for counter in operations(parts)) == 1
    assert_whole(graph, parts)


def test_reshapes_between_groups_are_the_same_bytes() -> None:
    b = GraphBuilder()
    x, w = b.input("x", (2, 4, 8), "float32"), b.input("w", (8, 8), "float32")
    flat = b.reshape(b.matmul(x, w), (8, 8))
    graph = b.finish([("y", b.matmul(flat, w))])
    parts = partition(graph)
    assert not any("Reshape" in counter for counter in operations(parts))
    assert len(parts.aliases) >= 1 and all(isinstance(graph.nodes[n].op, Reshape) for n in parts.aliases)
    assert_whole(graph, parts)


def test_layers_that_differ_in_their_weights_alone_are_one_task() -> None:
    graph = encoder()
    parts = partition(graph)
    dense = [i for i, task in enumerate(parts.tasks) if "contract_8x16x16_add" in task.name]
    assert dense and max(parts.weight(i) for i in dense) >= 3
    assert sum(parts.weight(i) for i in range(len(parts.tasks))) == len(parts.instances)
    assert_whole(graph, parts)


def test_tasks_that_differ_in_a_number_are_different_tasks() -> None:
    b = GraphBuilder()
    x = b.input("x", (3,), "float32")
    graph = b.finish([(f"y{c}", b.elementwise("mul", x, b.scalar(c, x))) for c in (2, 3)])
    parts = partition(graph)
    assert len({task.key for task in parts.tasks}) == 2
    assert_whole(graph, parts)


def test_an_output_that_is_an_input_or_a_constant_needs_no_task() -> None:
    b = GraphBuilder()
    x = b.input("x", (3,), "float32")
    graph = b.finish([("same", x), ("one", b.constant(np.ones(3, np.float32))), ("flat", b.reshape(x, (3, 1)))])
    parts = partition(graph)
    assert parts.tasks == () and parts.instances == ()
    assert_whole(graph, parts)


def test_constants_of_one_element_stay_in_the_task_and_larger_ones_are_operands() -> None:
    b = GraphBuilder()
    x = b.input("x", (3,), "float32")
    half = b.elementwise("mul", x, b.constant(np.full((1,), 0.5, np.float32)))
    graph = b.finish([("y", b.elementwise("add", half, b.constant(np.arange(3, dtype=np.float32))))])
    (task,) = partition(graph).tasks
    assert list(task.constants) == ["w1"] and len(task.graph.constants) == 1
    assert_whole(graph, partition(graph))


def test_keys_of_tasks_do_not_depend_on_the_hashes_of_strings() -> None:
    code = (
        "from tests.space.test_partition import encoder, partition; print([t.key for t in partition(encoder()).tasks])"
    )
    folder = random_graphs.__file__.rpartition("/tests/")[0]
    seen = {
        subprocess.run([sys.executable, "-c", code], env={"PYTHONHASHSEED": seed, "PATH": ""}, capture_output=True,
                       text=True, check=True, cwd=folder).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert seen == {f"{[task.key for task in partition(encoder()).tasks]}\n"}
