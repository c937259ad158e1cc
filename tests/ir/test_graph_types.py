"""Type inference: what operations give, and what they refuse."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from pipeline.errors import CheckError
from pipeline.ir import graph as g
from pipeline.ir.graph import AffineDim, TensorType
from pipeline.ir.graph_primitives import axis_map
from pipeline.ir.graph_types import DTYPES, dtype_name, infer, numpy_dtype, out_of_bounds, promote


def f32(*shape: int) -> TensorType:
    return TensorType(shape, "float32")


def i64(*shape: int) -> TensorType:
    return TensorType(shape, "int64")


def boolean(*shape: int) -> TensorType:
    return TensorType(shape, "bool")


MATMUL = g.Contract((2, 3), (4,), axis_map(0, 2), axis_map(2, 1))


@pytest.mark.parametrize(
    ("op", "operands", "expected"),
    [
        (g.Elementwise("add"), (f32(2, 1), f32(3)), f32(2, 3)),
        (g.Elementwise("lt"), (i64(2), i64()), boolean(2)),
        (g.Elementwise("isnan"), (f32(2),), boolean(2)),
        (g.Elementwise("where"), (boolean(2, 1), f32(1, 3), f32()), f32(2, 3)),
        (MATMUL, (f32(2, 4), f32(4, 3)), f32(2, 3)),
        (MATMUL, (TensorType((2, 4), "int8"), TensorType((4, 3), "uint8")), TensorType((2, 3), "int32")),
        (MATMUL, (TensorType((2, 4), "float16"), TensorType((4, 3), "float16")), TensorType((2, 3), "float16")),
        (g.Reduce("sum", (0, 2)), (f32(2, 3, 4),), f32(3)),
        (g.Reduce("argmin", (1,), True), (f32(2, 3),), i64(2)),
        (g.Pad((1, -1), (0, 2), (0, 1), 0.0), (f32(2, 3),), f32(3, 6)),
        (g.Concat(1), (f32(2, 3), f32(2, 0), f32(2, 1)), f32(2, 4)),
        (g.Gather(1), (f32(2, 3, 4), i64(5, 6)), f32(2, 5, 6, 4)),
        (g.GatherElements(1), (f32(2, 3), i64(1, 7)), f32(1, 7)),
        (g.GatherND(1), (f32(2, 3, 4), i64(2, 5, 1)), f32(2, 5, 4)),
        (g.ScatterND("add"), (f32(3, 4), i64(5, 1), f32(5, 4)), f32(3, 4)),
        (g.TopK(0, 2, True, "indices"), (f32(3, 4),), i64(2, 4)),
        (g.Scan("sum", 1), (f32(3, 4),), f32(3, 4)),
    ],
)
def test_the_type_of_an_operation(op: g.Op, operands: tuple[TensorType, ...], expected: TensorType):
    assert infer(op, operands) == expected


def test_a_contract_can_widen_its_result():
    half = TensorType((2, 4), "float16"), TensorType((4, 3), "float16")
    assert infer(MATMUL, half, dtype="float32") == f32(2, 3)


@pytest.mark.parametrize(
    ("op", "operands", "why"),
    [
        (g.Elementwise("add"), (f32(2), f32(3)), "do not broadcast"),
        (g.Elementwise("add"), (f32(2), i64(2)), "different dtypes"),
        (g.Elementwise("add"), (f32(2),), "1 operands given, 2 expected"),
        (g.Elementwise("add"), (boolean(2), boolean(2)), "add of bool"),
        (g.Elementwise("exp"), (i64(2),), "not a floating type"),
        (g.Elementwise("and"), (i64(2), i64(2)), "not bool"),
        (g.Elementwise("where"), (f32(2), f32(2), f32(2)), "not bool"),
        (g.Elementwise("gamma"), (f32(2),), "no such scalar function"),
        (g.Elementwise("cast"), (f32(2),), "its dtype must be given"),
        (MATMUL, (f32(2, 4), i64(4, 3)), "a product of float32 and int64"),
        (MATMUL, (f32(2, 4, 1), f32(4, 3)), "2 indices for a tensor of rank 3"),
        (g.Contract((2,), (), axis_map(1), axis_map(0)), (f32(2), f32(2)), "names iteration variables"),
        (g.Reduce("median", (0,)), (f32(2),), "median"),
        (g.Reduce("sum", (1, 0)), (f32(2, 2),), "not in order"),
        (g.Reduce("sum", (2,)), (f32(2, 2),), "axis 2"),
        (g.Reduce("sum", (0,)), (boolean(2),), "sum of bool"),
        (g.Reduce("argmax", (0, 1)), (f32(2, 2),), "one axis"),
        (g.Reduce("argmax", (0,)), (f32(0, 2),), "at least one element"),
        (g.Transpose((0, 0)), (f32(2, 2),), "no permutation"),
        (g.Pad((-3,), (0,), (0,), 0.0), (f32(2),), "cropping"),
        (g.Pad((0,), (0,), (-1,), 0.0), (f32(2),), "interior"),
        (g.Concat(0), (), "nothing"),
        (g.Concat(0), (f32(2, 3), f32(2, 4)), "along axis 0"),
        (g.Gather(0), (f32(2), f32(2)), "not int64 or int32"),
        (g.Gather(1), (f32(2), i64(2)), "axis 1"),
        (g.GatherElements(0), (f32(2, 2), i64(2, 3)), "along axis 0"),
        (g.GatherND(0), (f32(2), i64(2, 2)), "indices (2, 2)"),
        (g.GatherND(1), (f32(2, 3), i64(3, 1, 1)), "batch dimensions"),
        (g.ScatterElements(0), (f32(2), i64(2), f32(3)), "updates (3,)"),
        (g.ScatterElements(0, "xor"), (f32(2), i64(2), f32(2)), "xor"),
        (g.ScatterND(), (f32(2, 3), i64(1, 1), f32(3)), "updates (3,)"),
        (g.ScatterND(), (f32(2, 3), i64(1, 1), i64(1, 3)), "updates are int64"),
        (g.Scan("mean", 0), (f32(2),), "mean"),
        (g.TopK(0, 3, True, "values"), (f32(2),), "k 3 of 2"),
        (g.ReduceWindow("prod", (2,), (1,), axis_map(0)), (f32(2),), "prod"),
    ],
)
def test_an_operation_without_a_type_is_refused(op: g.Op, operands: tuple[TensorType, ...], why: str):
    with pytest.raises(CheckError) as caught:
        infer(op, operands)
    assert why in str(caught.value)


@pytest.mark.parametrize(
    ("op", "shape", "why"),
    [
        (g.Reshape(), (5,), "does not have the elements"),
        (g.Broadcast(), (3, 2), "do not broadcast"),
        (g.Broadcast(), (3,), "does not broadcast to"),
        (g.Slice((0, 0), (1, 1)), (2, 4), "4 elements from 0 by 1 of 3"),
        (g.Slice((0, 2), (1, -2)), (2, 3), "3 elements from 2 by -2 of 3"),
        (g.Slice((0, 0), (1, 0)), (2, 1), "by 0"),
        (g.Iota(0), (2, 3), "1 operands given, 0 expected"),
    ],
)
def test_a_size_that_does_not_fit_is_refused(op: g.Op, shape: tuple[int, ...], why: str):
    with pytest.raises(CheckError) as caught:
        infer(op, (f32(2, 3),), shape=shape, dtype="float32")
    assert why in str(caught.value)


def test_an_index_beyond_its_operand_is_found_at_both_ends():
    ahead = g.ReduceWindow("max", (4,), (3,), (AffineDim(((0, 2), (1, 1))),))
    assert out_of_bounds(ahead, (f32(9),)) == ""
    assert "indexed 0 to 8, its size is 8" in out_of_bounds(ahead, (f32(8),))
    behind = g.Contract((4,), (2,), (AffineDim(((0, 1), (1, -1))),), axis_map(1))
    assert "indexed -1 to 3" in out_of_bounds(behind, (f32(4), f32(2)))


def test_a_product_without_elements_has_no_index_out_of_bounds():
    assert out_of_bounds(g.Contract((2,), (0,), axis_map(1), axis_map(1)), (f32(0), f32(0))) == ""


def test_dtypes_have_one_name():
    assert all(dtype_name(numpy_dtype(name)) == name for name in DTYPES)
    assert numpy_dtype("bfloat16") == ml_dtypes.bfloat16
    with pytest.raises(CheckError, match="complex64"):
        dtype_name(np.dtype(np.complex64))


def test_promotion_is_that_of_numpy():
    assert promote(["int64", "float32"]) == "float64"
    assert promote(["float16", "float32"]) == "float32"
    assert promote(["bfloat16", "bfloat16"]) == "bfloat16"
