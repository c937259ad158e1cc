"""Every scalar function on every dtype, and every primitive operation, from the emitted source on this host."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
import pytest

from pipeline.codegen.cuda.execute_build import find_compiler
from pipeline.ir.graph import BINARY, UNARY, DType, Graph, Input
from pipeline.ir.graph_builder import GraphBuilder
from pipeline.ir.graph_types import DTYPES
from pipeline.space.lower import lower
from pipeline.space.partition import partition
from tests.codegen.cuda.gpu_runs import Binding, bound, run_on_host
from tests.codegen.kernel_runs import argument_feeds, assert_right
from tests.codegen.test_emit_elementwise import extrema_and_signs, functions, in_rows, values
from tests.codegen.test_emit_operators import Make, data, indices, updates, x_of

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="there is no C++ compiler")


def assert_computed(graph: Graph, feeds: dict[str, np.ndarray], how: Binding, *, compiled: bool = False) -> None:
    program = bound(lower(graph, "functions"), how)
    assert_right(graph, feeds, run_on_host(program, argument_feeds(feeds), compiled=compiled), how)


@pytest.mark.parametrize("dtype", DTYPES)
def test_functions_of_one_operand_are_right_at_the_edges_of_their_dtype(dtype: DType) -> None:
    data = in_rows(values(dtype, np.random.default_rng(0)))
    assert_computed(*functions(UNARY - {"cast"}, dtype, [data]), "vectors", compiled=True)


@pytest.mark.parametrize("dtype", DTYPES)
def test_functions_of_two_operands_are_right_at_the_edges_of_their_dtype(dtype: DType) -> None:
    flat = values(dtype, np.random.default_rng(1), 4)
    left, right = (in_rows(side.reshape(-1)) for side in np.meshgrid(flat, flat))
    assert_computed(*functions(BINARY, dtype, [np.ascontiguousarray(left), np.ascontiguousarray(right)]), "vectors")


def test_extrema_with_numbers_that_are_known_and_the_sign_of_either_zero() -> None:
    assert_computed(*extrema_and_signs(), "vectors")


@pytest.mark.parametrize("dtype", DTYPES)
def test_casts_saturate_truncate_and_round(dtype: DType) -> None:
    data = in_rows(values(dtype, np.random.default_rng(2)))
    b = GraphBuilder()
    x = b.input("x", data.shape, dtype)
    assert_computed(b.finish([(to, b.cast(x, to)) for to in DTYPES if to != dtype]), {"x": data}, "threads")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8"])
def test_where_chooses_between_its_operands(dtype: DType) -> None:
    rng = np.random.default_rng(3)
    data = in_rows(values(dtype, rng))
    b = GraphBuilder()
    condition, x, y = b.input("c", data.shape, "bool"), b.input("x", data.shape, dtype), b.input("y", data.shape, dtype)
    feeds = {"c": rng.integers(0, 2, data.shape).astype(bool), "x": data, "y": data[:, ::-1].copy()}
    assert_computed(b.finish([("z", b.elementwise("where", condition, x, y))]), feeds, "vectors")


MAKES: dict[str, tuple[Make, int]] = {
    "gather": (lambda b: b.gather(x_of(b, 3, 4, 17), indices(b, 2, 5), 1), 4),
    "gather, 32 bits": (lambda b: b.gather(x_of(b, 3, 17), indices(b, 19, dtype="int32"), 0), 9),
    "gather elements": (lambda b: b.gather_elements(x_of(b, 5, 17), indices(b, 5, 17), 0), 5),
    "gather nd": (lambda b: b.gather_nd(x_of(b, 3, 4, 5, 6), indices(b, 3, 2, 2), 1), 3),
    "scatter elements": (
        lambda b: b.scatter_elements(x_of(b, 4, 18), indices(b, 4, 18), updates(b, 4, 18), 1, "add"), 4),
    "scatter nd": (lambda b: b.scatter_nd(x_of(b, 3, 4, 17), indices(b, 6, 2), updates(b, 6, 17), "max"), 3),
    "scan": (lambda b: b.scan("sum", x_of(b, 5, 18), 1, True, True), 3),
    "scan of halves": (lambda b: b.scan("sum", x_of(b, 5, 18, dtype="float16"), 0), 3),
    "topk": (lambda b: b.topk(x_of(b, 6, 17), 4, 1, True), 3),
    "topk of bytes": (lambda b: b.topk(x_of(b, 6, 17, dtype="uint8"), 4, 0, False), 3),
    "argmax": (lambda b: b.reduce("argmax", b.elementwise("round", x_of(b, 7, 19)), [1], False, True), 3),
    "reduce": (lambda b: b.reduce("prod", x_of(b, 3, 5, 17), (0, 2)), 3),
    "reduce all": (lambda b: b.reduce("max", x_of(b, 3, 5, 17, dtype="bfloat16"), (0, 1, 2)), 3),
    "pool": (lambda b: b.pool("average", x_of(b, 2, 3, 9, 11), [3, 3], [2, 2], [1, 1], [1, 1]), 3),
    "pad": (lambda b: b.pad(x_of(b, 5, 17), (-1, -2), (-1, 1), (0, 0), -1.5), 3),
    "pad inside": (lambda b: b.pad(x_of(b, 5, 17), (1, 0), (0, 2), (0, 3), 0.0), 3),
    "slice": (lambda b: b.slice(x_of(b, 7, 35), [-2, 1], [None, None], [-1, 2], [0, 1]), 3),
    "concat": (lambda b: b.concat([x_of(b, 3, n, name=f"x{n}") for n in (17, 1, 30)], 1), 3),
    "transpose": (lambda b: b.transpose(x_of(b, 3, 17, 5), (2, 1, 0)), 3),
    "product": (lambda b: b.matmul(x_of(b, 7, 33, dtype="float16"), x_of(b, 33, 9, dtype="float16", name="w")), 3),
    "softmax": (lambda b: _softmax(b, x_of(b, 5, 33)), 3),
}  # fmt: skip


def _softmax(b: GraphBuilder, x: int) -> int:
    shifted = b.elementwise("sub", x, b.reduce("max", x, [1], True))
    powers = b.elementwise("exp", shifted)
    return b.elementwise("div", powers, b.reduce("sum", powers, [1], True))


@pytest.mark.parametrize("name", MAKES)
def test_primitive_operations_compute_their_definition(name: str) -> None:
    make, extent = MAKES[name]
    b = GraphBuilder()
    made: int | Sequence[int] = make(b)
    graph = b.finish([(f"y{i}", value) for i, value in enumerate([made] if isinstance(made, int) else made)])
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    for number, task in enumerate(partition(graph).tasks):
        inputs = [(node.op.name, node.type) for node in task.graph.nodes if isinstance(node.op, Input)]
        feeds = {name: data(rng, type_.shape, type_.dtype, extent) for name, type_ in inputs}
        assert_computed(task.graph, feeds, ("vectors", "threads")[number % 2])
