"""Every primitive operation through partition, lowering, rules and the compiler gives what its definition says."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from pipeline.ir.graph import Input
from pipeline.ir.graph_builder import GraphBuilder
from pipeline.ir.graph_types import DTYPES, FLOATS, numpy_dtype
from pipeline.schedule.space import ParameterSpace
from pipeline.space.generate import generate
from pipeline.space.lower import lower
from pipeline.space.partition import partition
from tests.codegen.kernel_runs import argument_feeds, assert_right, cpu_rules, native, run_program

Make = Callable[[GraphBuilder], int | Sequence[int]]


def data(rng: np.random.Generator, shape: tuple[int, ...], dtype: str, extent: int) -> np.ndarray:
    """Normal numbers; integers around zero, or such that index an axis of `extent` from both ends, some beyond them."""
    kind = numpy_dtype(dtype)  # type: ignore[arg-type]
    if dtype in FLOATS:
        return rng.standard_normal(shape).astype(kind)
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    low = 0 if dtype.startswith("uint") else -extent
    return rng.integers(low, extent, shape).astype(kind)


def assert_compiled(make: Make, extent: int = 3, rows: int = 2) -> None:
    """The graph as a whole, unscheduled; and each of its tasks at random rows of each of its sketches."""
    b = GraphBuilder()
    made = make(b)
    graph = b.finish([(f"y{i}", value) for i, value in enumerate([made] if isinstance(made, int) else made)])
    rng = np.random.default_rng(zlib.crc32(repr(graph.nodes).encode()))
    for task in partition(graph).tasks:
        feeds = {
            node.op.name: data(rng, node.type.shape, node.type.dtype, extent)
            for node in task.graph.nodes
            if isinstance(node.op, Input)
        }
        program = lower(task.graph, task.name, task.constants)
        for number, sketch in enumerate(generate(program, cpu_rules(), native())):
            space = ParameterSpace.of(sketch)
            for row in np.unique(space.draw(rows, rng), axis=0):
                got = run_program(sketch.candidate(space.values(row)), argument_feeds(feeds), native())
                assert_right(task.graph, feeds, got, f"{task.name}, sketch {number}, {space.values(row)}")


def x_of(b: GraphBuilder, *shape: int, dtype: str = "float32", name: str = "x") -> int:
    return b.input(name, shape, dtype)  # type: ignore[arg-type]


def indices(b: GraphBuilder, *shape: int, dtype: str = "int64") -> int:
    return x_of(b, *shape, dtype=dtype, name="i")


def updates(b: GraphBuilder, *shape: int) -> int:
    return x_of(b, *shape, name="u")


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("dtype", ["int64", "int32"])
def test_gather_takes_indices_from_both_ends_along_every_axis(axis: int, dtype: str) -> None:
    shape = (3, 4, 17)
    assert_compiled(lambda b: b.gather(x_of(b, *shape), indices(b, 2, 5, dtype=dtype), axis), shape[axis])


def test_gather_of_a_scalar_index_drops_the_axis() -> None:
    assert_compiled(lambda b: b.gather(x_of(b, 5, 33), indices(b), 0), 5)


def test_gather_keeps_indices_beyond_the_ends_in_bounds() -> None:
    assert_compiled(lambda b: b.gather(x_of(b, 3, 4), indices(b, 19), 0), 9)


@pytest.mark.parametrize("axis", [0, 1])
def test_gather_elements_takes_one_index_for_each_element(axis: int) -> None:
    assert_compiled(lambda b: b.gather_elements(x_of(b, 5, 17), indices(b, 5, 17), axis), 5)


@pytest.mark.parametrize("batch", [0, 1])
def test_gather_nd_takes_tuples_of_indices(batch: int) -> None:
    assert_compiled(lambda b: b.gather_nd(x_of(b, 3, 4, 5, 6), indices(b, 3, 2, 2), batch), 3)


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
@pytest.mark.parametrize("axis", [0, 1])
def test_scatter_elements_writes_its_updates_in_order(axis: int, reduction: str) -> None:
    assert_compiled(
        lambda b: b.scatter_elements(x_of(b, 4, 18), indices(b, 4, 18), updates(b, 4, 18), axis, reduction), 4
    )


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
def test_scatter_nd_writes_its_updates_in_order(reduction: str) -> None:
    assert_compiled(lambda b: b.scatter_nd(x_of(b, 3, 4, 17), indices(b, 6, 2), updates(b, 6, 17), reduction), 3)


@pytest.mark.parametrize("kind", ["sum", "prod", "max", "min"])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
def test_scan_runs_along_either_axis_both_ways(kind: str, axis: int, exclusive: bool, reverse: bool) -> None:
    assert_compiled(lambda b: b.scan(kind, x_of(b, 5, 18), axis, exclusive, reverse))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8", "bool"])
def test_scans_of_narrow_dtypes_keep_what_they_need(dtype: str) -> None:
    kinds = ("max", "min") if dtype == "bool" else ("sum", "max")
    assert_compiled(lambda b: [b.scan(kind, x_of(b, 5, 18, dtype=dtype, name=kind), 1) for kind in kinds])


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "uint8"])
@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("axis", [0, 1])
def test_topk_selects_in_stable_order(dtype: str, largest: bool, axis: int) -> None:
    assert_compiled(lambda b: b.topk(x_of(b, 6, 17, dtype=dtype), 4, axis, largest))


def test_topk_counts_nan_as_the_largest() -> None:
    def make(b: GraphBuilder) -> Sequence[int]:
        x = x_of(b, 4, 9)
        return b.topk(b.elementwise("div", b.elementwise("round", x), b.elementwise("round", x)), 9, 1)

    assert_compiled(make)


@pytest.mark.parametrize("kind", ["argmax", "argmin"])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("axis", [0, 1])
def test_argmax_names_the_first_or_the_last_of_equals(kind: str, last: bool, axis: int) -> None:
    assert_compiled(lambda b: b.reduce(kind, b.elementwise("round", x_of(b, 7, 19)), [axis], False, last))


@pytest.mark.parametrize("dtype", ["int32", "float16", "bool"])
def test_argmax_of_other_dtypes(dtype: str) -> None:
    assert_compiled(lambda b: b.reduce("argmax", x_of(b, 5, 33, dtype=dtype), [1]))


@pytest.mark.parametrize("kind", ["sum", "max", "min", "prod"])
@pytest.mark.parametrize("axes", [(0,), (1,), (2,), (0, 2), (0, 1, 2)])
def test_reduce_takes_any_axes(kind: str, axes: tuple[int, ...]) -> None:
    assert_compiled(lambda b: b.reduce(kind, x_of(b, 3, 5, 17), axes))


@pytest.mark.parametrize("dtype", DTYPES)
def test_reduce_takes_every_dtype(dtype: str) -> None:
    def make(b: GraphBuilder) -> Sequence[int]:
        x = x_of(b, 5, 35, dtype=dtype)
        return [b.reduce(kind, x, [1]) for kind in (("max", "min") if dtype == "bool" else ("sum", "max", "min"))]

    assert_compiled(make)


@pytest.mark.parametrize("kind", ["max", "average"])
@pytest.mark.parametrize("stride", [1, 2])
def test_windows_slide_over_padded_images(kind: str, stride: int) -> None:
    assert_compiled(lambda b: b.pool(kind, x_of(b, 2, 3, 9, 11), [3, 3], [stride, stride], [1, 1], [1, 1]))


@pytest.mark.parametrize(
    ("low", "high", "interior"),
    [
        ((1, 2), (3, 0), (0, 0)),
        ((0, 0), (0, 0), (2, 1)),
        ((1, 0), (0, 2), (0, 3)),
        ((-1, -2), (-1, 1), (0, 0)),
        ((2, -3), (-2, 1), (1, 2)),
    ],
)
@pytest.mark.parametrize("value", [0.0, -1.5])
def test_pad_grows_spreads_and_crops(
    low: tuple[int, ...], high: tuple[int, ...], interior: tuple[int, ...], value: float
) -> None:
    assert_compiled(lambda b: b.pad(x_of(b, 5, 17), low, high, interior, value))


@pytest.mark.parametrize("strides", [(1, 2), (-1, 1), (1, -1), (2, -3), (-2, 5)])
def test_slice_steps_forwards_and_backwards(strides: tuple[int, int]) -> None:
    starts = [1 if step > 0 else -2 for step in strides]
    assert_compiled(lambda b: b.slice(x_of(b, 7, 35), starts, [None, None], strides, [0, 1]))


@pytest.mark.parametrize("axis", [0, 1])
def test_concat_joins_parts_of_different_sizes(axis: int) -> None:
    shapes = [(3, 17), (3, 17), (1, 17)] if axis == 0 else [(3, 17), (3, 1), (3, 30)]
    assert_compiled(lambda b: b.concat([x_of(b, *shape, name=f"x{i}") for i, shape in enumerate(shapes)], axis))


@pytest.mark.parametrize("perm", [(0, 2, 1), (1, 0, 2), (2, 1, 0), (1, 2, 0)])
def test_transpose_takes_any_permutation(perm: tuple[int, ...]) -> None:
    assert_compiled(lambda b: b.transpose(x_of(b, 3, 17, 5), perm))


@pytest.mark.parametrize(("before", "after"), [((6, 10), (4, 15)), ((2, 3, 8), (48,)), ((30,), (5, 1, 6))])
def test_reshape_in_the_middle_of_a_chain(before: tuple[int, ...], after: tuple[int, ...]) -> None:
    def make(b: GraphBuilder) -> int:
        return b.elementwise("neg", b.reshape(b.elementwise("abs", x_of(b, *before)), after))

    assert_compiled(make)


def test_broadcast_and_iota_need_no_memory_of_their_own() -> None:
    def make(b: GraphBuilder) -> int:
        row = b.broadcast(x_of(b, 1, 19), (4, 19))
        return b.elementwise("mul", row, b.iota((4, 19), 0, "float32"))

    assert_compiled(make)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int32", "int8"])
@pytest.mark.parametrize(("m", "k", "n"), [(5, 7, 17), (1, 33, 40), (16, 3, 1), (3, 1, 16)])
def test_products_take_every_shape_and_dtype(dtype: str, m: int, k: int, n: int) -> None:
    assert_compiled(lambda b: b.matmul(x_of(b, m, k, dtype=dtype), x_of(b, k, n, dtype=dtype, name="w")))


@pytest.mark.parametrize("spec", ["bij,bjk->bik", "ij,kj->ik", "ji,jk->ik", "ij,j->i", "bhid,bhjd->bhij", "ij,ij->"])
def test_products_take_transposed_and_batched_operands(spec: str) -> None:
    letters = {"b": 2, "h": 3, "i": 5, "j": 18, "k": 17, "d": 4}
    left, right = spec.partition("->")[0].split(",")
    shapes = [tuple(letters[c] for c in part) for part in (left, right)]
    assert_compiled(lambda b: b.einsum(spec, x_of(b, *shapes[0]), x_of(b, *shapes[1], name="w")))


@pytest.mark.parametrize(("groups", "stride", "dilation"), [(1, 1, 1), (1, 2, 1), (2, 1, 2), (4, 2, 1)])
def test_convolutions_stride_dilate_and_group(groups: int, stride: int, dilation: int) -> None:
    def make(b: GraphBuilder) -> int:
        w = b.constant(np.linspace(-1, 1, 4 * (4 // groups) * 9).astype(np.float32).reshape(4, 4 // groups, 3, 3))
        return b.conv(x_of(b, 1, 4, 9, 10), w, strides=[stride, stride], pads_low=[1, 1], pads_high=[1, 2],
                      dilations=[dilation, dilation], groups=groups)  # fmt: skip

    assert_compiled(make)


EDGE: dict[str, Make] = {
    "elementwise": lambda b: b.elementwise("exp", x_of(b, 0, 3)),
    "contract of nothing": lambda b: b.matmul(x_of(b, 3, 0), x_of(b, 0, 4, name="w")),
    "empty contract": lambda b: b.matmul(x_of(b, 0, 3), x_of(b, 3, 4, name="w")),
    "sum of nothing": lambda b: b.reduce("sum", x_of(b, 4, 0), [1]),
    "max of nothing": lambda b: b.reduce("max", x_of(b, 4, 0), [1]),
    "prod of nothing": lambda b: b.reduce("prod", x_of(b, 0, 4), [0]),
    "softmax of nothing": lambda b: b.softmax(x_of(b, 3, 0), 1),
    "mean of nothing": lambda b: b.reduce("mean", x_of(b, 3, 0), [1], True),
    "concat with nothing": lambda b: b.concat([x_of(b, 3, 0), x_of(b, 3, 4, name="w")], 1),
    "pad of nothing": lambda b: b.pad(x_of(b, 0, 3), (2, 0), (1, 0), value=1.5),
    "scatter of nothing": lambda b: b.scatter_nd(x_of(b, 3, 4), indices(b, 0, 1), updates(b, 0, 4)),
    "gather of no index": lambda b: b.gather(x_of(b, 3, 4), indices(b, 0), 1),
    "topk of none": lambda b: b.topk(x_of(b, 3, 4), 0, 1),
    "scan of nothing": lambda b: b.scan("sum", x_of(b, 3, 0), 1),
    "one element": lambda b: b.softmax(x_of(b, 1, 1), 1),
    "a scalar": lambda b: b.elementwise("tanh", x_of(b)),
    "product of ones": lambda b: b.matmul(x_of(b, 1, 1), x_of(b, 1, 1, name="w")),
    "reduce of a scalar axis": lambda b: b.reduce("sum", x_of(b, 1), [0]),
    "topk of one": lambda b: b.topk(x_of(b, 1), 1, 0),
    "argmax of one": lambda b: b.reduce("argmax", x_of(b, 1, 1), [1]),
    "scan of one": lambda b: b.scan("prod", x_of(b, 1), 0),
    "window of one": lambda b: b.pool("max", x_of(b, 1, 1, 1), [1], [1], [0], [0]),
    "pad of a scalar axis": lambda b: b.pad(x_of(b, 1), (0,), (16,)),
}


@pytest.mark.parametrize("case", EDGE)
def test_sizes_of_nothing_and_of_one_are_sizes(case: str) -> None:
    assert_compiled(EDGE[case])


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
@pytest.mark.parametrize("shape", [(1, 5), (3, 17), (2, 3, 64), (4, 33)])
def test_composites_of_rows_are_right(shape: tuple[int, ...], dtype: str) -> None:
    def make(b: GraphBuilder) -> Sequence[int]:
        x = x_of(b, *shape, dtype=dtype)
        last = len(shape) - 1
        return [b.softmax(x, last), b.layer_norm(x, [last]), b.log_softmax(x, last)]

    assert_compiled(make)
