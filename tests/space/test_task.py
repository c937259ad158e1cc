"""A task's name, key, work and traffic."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.ir.graph import AffineDim, DType, Graph
from pipeline.ir.graph_builder import GraphBuilder
from pipeline.space.task import (
    arithmetic_seconds,
    flops,
    make_task,
    roofline_seconds,
    title,
    traffic,
    waits_for_weights,
)
from tests.codegen.kernel_runs import native
from tests.known_gpus import gpu
from tests.search.spaces import TARGET


def dense(m: int = 4, dtype: str = "float32") -> Graph:
    b = GraphBuilder()
    x, w = b.input("x", (m, 8), dtype), b.input("w", (8, 16), dtype)  # type: ignore[arg-type]
    return b.finish([("out", b.relu(b.matmul(x, w)))])


def test_a_multiply_add_counts_two_and_an_elementwise_operation_one() -> None:
    assert flops(dense()) == 2 * 4 * 8 * 16 + 4 * 16


def test_traffic_is_every_input_and_output_once() -> None:
    assert traffic(dense()) == 4 * (4 * 8 + 8 * 16 + 4 * 16)
    assert traffic(dense(dtype="float16")) == 2 * (4 * 8 + 8 * 16 + 4 * 16)


def test_constants_are_traffic_as_inputs_are() -> None:
    b = GraphBuilder()
    x, w = b.input("x", (4, 8), "float32"), b.constant(np.ones((8, 16), np.float32))
    assert traffic(b.finish([("out", b.relu(b.matmul(x, w)))])) == traffic(dense())
    b = GraphBuilder()
    table, ids = b.constant(np.ones((1000, 8), np.float32)), b.input("ids", (3,), "int64")
    assert traffic(b.finish([("out", b.gather(table, ids))])) == 3 * 8 + 2 * 3 * 8 * 4


def test_of_what_is_read_in_part_that_part_counts() -> None:
    b = GraphBuilder()
    x = b.input("x", (4, 24), "float32")
    parts = [b.slice(x, [0, start], [4, start + 8]) for start in (0, 16)]
    assert traffic(b.finish([("out", b.elementwise("add", *parts))])) == 4 * (2 * 4 * 8 + 4 * 8)
    b = GraphBuilder()
    x = b.input("x", (4, 24), "float32")
    every = [b.slice(x, [0, start], [4, start + 12]) for start in (0, 6, 12)]
    added = b.elementwise("add", b.elementwise("add", *every[:2]), every[2])
    assert traffic(b.finish([("out", added)])) == 4 * (4 * 24 + 4 * 12), "no more than there is"
    b = GraphBuilder()
    x, w = b.input("x", (4, 24), "float32"), b.input("w", (8, 16), "float32")
    rows, sums = AffineDim(((0, 1),)), AffineDim(((2, 1),), 16)
    product = b.contract(x, w, [4, 16], [8], (rows, sums), (AffineDim(((2, 1),)), AffineDim(((1, 1),))))
    assert traffic(b.finish([("out", product)])) == 4 * (4 * 8 + 8 * 16 + 4 * 16)


def test_moving_and_converting_is_no_work() -> None:
    b = GraphBuilder()
    graph = b.finish([("out", b.cast(b.transpose(b.input("x", (3, 5), "float32"), (1, 0)), "float64"))])
    assert flops(graph) == 0 and traffic(graph) == 15 * 4 + 15 * 8


def test_the_name_holds_the_operations_and_the_extents_of_the_first() -> None:
    assert title(dense()) == "contract_4x16x8_max"
    b = GraphBuilder()
    assert title(b.finish([("out", b.softmax(b.input("x", (3, 5), "float32"), 1))])).endswith("more")
    b = GraphBuilder()
    assert title(b.finish([("out", b.elementwise("exp", b.input("x", (), "float32")))])) == "exp_scalar"


def test_equal_tasks_have_equal_keys_and_others_do_not() -> None:
    key = make_task(dense(), ()).key
    assert key == make_task(dense(), ()).key
    others = [make_task(dense(), ("w",)), make_task(dense(5), ()), make_task(dense(dtype="float64"), ())]
    others.append(make_task(dense(), (), ("w",)))
    assert len({key, *(task.key for task in others)}) == 5


def test_a_gpu_multiplies_halves_at_the_rate_of_its_tensor_cores_and_a_cpu_as_it_does_floats() -> None:
    def product(dtype: DType) -> Graph:
        b = GraphBuilder()
        x, y = b.input("x", (512, 512), dtype), b.input("y", (512, 512), dtype)
        return b.finish([("z", b.matmul(x, y))])

    a100, cpu = gpu("a100"), native()
    assert a100.gpu is not None
    faster = a100.gpu.tensor_fma["float16"] / a100.gpu.fma["float32"]
    wide, half = (arithmetic_seconds(product(dtype), a100) for dtype in ("float32", "float16"))
    assert wide / half == pytest.approx(faster)
    assert wide == pytest.approx(2 * 512**3 / (a100.peak_gflops() * 1e9))
    assert arithmetic_seconds(product("float16"), cpu) == arithmetic_seconds(product("float32"), cpu)


def test_the_roofline_is_the_slower_of_work_and_bytes() -> None:
    b = GraphBuilder()
    copied = b.finish([("y", b.relu(b.input("x", (1 << 20,), "float32")))])
    target = gpu("a100")
    assert roofline_seconds(copied, target) == pytest.approx(8 * (1 << 20) / (target.bandwidth_gbs * 1e9))
    assert roofline_seconds(copied, target) > arithmetic_seconds(copied, target) > 0


@pytest.mark.parametrize(
    ("rows", "columns", "constants", "waits"),
    [(4, 256, ("w",), True), (4, 64, ("w",), False), (4, 256, (), False), (512, 256, ("w",), False)],
    ids=["few rows", "in the cache of a core", "not known", "many rows"],
)
def test_a_task_waits_for_weights_where_memory_sets_the_pace(
    rows: int, columns: int, constants: tuple[str, ...], waits: bool
) -> None:
    b = GraphBuilder()
    x, w = b.input("x", (rows, 512), "float32"), b.input("w", (512, columns), "float32")
    task = make_task(b.finish([("out", b.matmul(x, w))]), constants)
    assert waits_for_weights(task, TARGET) == waits
    assert not waits_for_weights(task, gpu("a100"))


@pytest.mark.parametrize(
    ("rows", "others", "waits"),
    [(128, 0, False), (128, 1 << 10, False), (128, 1 << 30, True), (100_000, 1 << 30, False)],
    ids=["alone", "all in the last cache", "in a large model", "arithmetic takes far longer"],
)
def test_weights_of_a_large_model_come_from_memory_for_many_rows_too(rows: int, others: int, waits: bool) -> None:
    b = GraphBuilder()
    x, w = b.input("x", (rows, 512), "float32"), b.input("w", (512, 256), "float32")
    task = make_task(b.finish([("out", b.matmul(x, w))]), ("w",))
    assert waits_for_weights(task, TARGET, others) == waits
