"""Reductions along lanes of every length, combination and dtype give what NumPy gives."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.codegen.llvm.build import build_kernel
from pipeline.ir.expr import Const, Load, Op, Var
from pipeline.ir.graph import DType
from pipeline.ir.graph_types import DTYPES, FLOATS, numpy_dtype
from pipeline.ir.poly import Poly
from pipeline.ir.program import Axis, Block, Buffer, Combine, Iter, Loop, LoopKind, Program, Seq, Stmt
from pipeline.ir.target import Target
from tests.codegen.kernel_runs import described, native, run_kernel, run_program, sse2

ROWS = 2
LONGEST = 70
EVERY = tuple(range(1, LONGEST + 1))
SOME = (1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 70)
START: dict[Combine, int] = {"sum": 3, "prod": 1, "max": 2, "min": 2}
NUMPY = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}


def reduction(extents: tuple[int, ...], combine: Combine, dtype: DType, product: bool = False) -> Program:
    """out[n, s] = START combined with x[s, :extents[n]], or with its square, in lanes; one nest for each extent."""
    regions: list[Stmt] = []
    for number, extent in enumerate(extents):
        s, r = Var("s"), Var("r")
        where = (Const(number), s)
        rows = Iter("s", Poly.of(ROWS), "spatial", Var(f"i{number}"))
        cells = Iter("r", Poly.of(extent), "reduce", Var(f"k{number}"))
        x = Load("x", (s, r), dtype)
        value = Op("mul", (x, x), dtype) if product else x
        start = Block(f"start{number}", (rows,), "out", where, Const(START[combine], dtype))
        update = Block(f"update{number}", (rows, cells), "out", where, value, combine)
        lanes = Loop((Axis(f"k{number}", Poly.of(extent)),), update, "vectorized")
        regions.append(Loop((Axis(f"i{number}", Poly.of(ROWS)),), Seq((start, lanes))))
    kinds = (
        Buffer("x", (Poly.of(ROWS), Poly.of(LONGEST)), dtype, role="input"),
        Buffer("out", (Poly.of(len(extents)), Poly.of(ROWS)), dtype, role="output"),
    )
    return Program("reductions", kinds, Seq(tuple(regions)))


def data(dtype: DType) -> np.ndarray:
    rng = np.random.default_rng(7)
    if dtype in FLOATS:  # products of seventy stay in range
        return (rng.uniform(0.7, 1.4, (ROWS, LONGEST)) * rng.choice([-1, 1], (ROWS, LONGEST))).astype(
            numpy_dtype(dtype)
        )
    limits = np.iinfo(numpy_dtype(dtype))
    return rng.integers(limits.min, limits.max, (ROWS, LONGEST), numpy_dtype(dtype), endpoint=True)


def assert_reduces(
    extents: tuple[int, ...], combine: Combine, dtype: DType, target: Target, product: bool = False
) -> None:
    x = data(dtype)
    got = run_program(reduction(extents, combine, dtype, product), {"x": x}, target)["out"]
    wide = x.astype(np.float64) if dtype in FLOATS else x
    with np.errstate(all="ignore"):
        cells = wide * wide if product else wide
        want = np.stack([NUMPY[combine].reduce(cells[:, :n], axis=1, dtype=cells.dtype) for n in extents])
        want = NUMPY[combine](want, np.array(START[combine], want.dtype))
    if dtype not in FLOATS or combine in ("max", "min"):
        assert (got == want.astype(got.dtype)).all()
    else:
        unit = {"float64": 1e-14, "float32": 1e-5}[dtype]
        np.testing.assert_allclose(got, want, rtol=unit, atol=LONGEST * unit)


@pytest.mark.parametrize("combine", ["sum", "prod", "max", "min"])
def test_float32_rows_of_every_length(combine: Combine) -> None:
    assert_reduces(EVERY, combine, "float32", native())


def test_sums_of_products_of_every_length_are_fused() -> None:
    assert_reduces(EVERY, "sum", "float32", native(), product=True)


@pytest.mark.parametrize("target", [sse2(), described("avx2")], ids=["sse2", "avx2"])
@pytest.mark.parametrize("combine", ["sum", "max"])
@pytest.mark.skipif(not native().triple.startswith("x86_64"), reason="runs x86 code")
def test_narrower_vectors_reduce_as_well(combine: Combine, target: Target) -> None:
    assert_reduces(SOME, combine, "float32", target)


@pytest.mark.parametrize("combine", ["sum", "prod", "max", "min"])
@pytest.mark.parametrize("dtype", [d for d in DTYPES if d not in ("float16", "bfloat16", "bool", "float32")])
def test_other_dtypes_wrap_or_round_as_their_own(dtype: DType, combine: Combine) -> None:
    assert_reduces(SOME, combine, dtype, native())


@pytest.mark.parametrize("combine", ["max", "min"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_extrema_of_halves_are_exact(dtype: DType, combine: Combine) -> None:
    assert_reduces(SOME, combine, dtype, native())


@pytest.mark.parametrize("combine", ["max", "min"])
def test_an_extremum_hands_nan_on_wherever_it_stands(combine: Combine) -> None:
    x = data("float32")
    kernel = build_kernel(reduction(SOME, combine, "float32"), native())
    for place in range(0, LONGEST, 3):
        poisoned = x.copy()
        poisoned[1, place] = np.nan
        got = run_kernel(kernel, {"x": poisoned}, native())["out"]
        assert not np.isnan(got[:, 0]).any()
        assert (np.isnan(got[:, 1]) == (np.array(SOME) > place)).all()


@pytest.mark.parametrize("kind", ["serial", "unrolled"])
def test_an_element_that_is_combined_outside_of_lanes_keeps_its_start(kind: LoopKind) -> None:
    x = data("int32")
    program = reduction((5,), "sum", "int32")
    (nest,) = program.body.body
    assert isinstance(nest, Loop) and isinstance(nest.body, Seq)
    start, lanes = nest.body.body
    assert isinstance(lanes, Loop)
    body = Loop(nest.axes, Seq((start, Loop(lanes.axes, lanes.body, kind))))
    got = run_program(Program("scalar", program.buffers, Seq((body,))), {"x": x}, native())["out"]
    with np.errstate(all="ignore"):
        assert (got[0] == x[:, :5].sum(axis=1, dtype=np.int32) + np.int32(START["sum"])).all()
