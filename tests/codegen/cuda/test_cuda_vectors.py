"""Tests of vectorized loops: which accesses become vectors, and what happens at ragged ends."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.codegen.cuda.build import emit_kernel
from pipeline.codegen.cuda.execute_build import find_compiler
from pipeline.codegen.cuda.lanes import Lanes, multiple
from pipeline.ir.expr import Const, Expr, Op, Var, add, floordiv, mod, mul
from pipeline.ir.graph import DType
from pipeline.ir.interpret import interpret
from pipeline.ir.program import Program
from pipeline.ir.program_parse import from_text
from tests.codegen.cuda.gpu_runs import run_on_host
from tests.codegen.cuda.gpu_targets import gpu_target

COMPILER = pytest.mark.skipif(find_compiler() is None, reason="there is no C++ compiler")

LANES = Lanes("v", 4)
LANE, OUTER = Var("v"), Var("i")


def below(a: Expr, b: int) -> Expr:
    return Op("lt", (a, Const(b)), "bool")


@pytest.mark.parametrize(
    ("index", "change"),
    [
        (mul(OUTER, Const(3)), "uniform"),
        (add(mul(OUTER, Const(3)), LANE), "unit"),
        (mul(LANE, Const(2)), "other"),
        (mod(add(mul(OUTER, Const(4)), LANE), 8), "unit"),
        (floordiv(add(mul(OUTER, Const(4)), LANE), 8), "uniform"),
        (mod(add(mul(OUTER, Const(2)), LANE), 8), "other"),
        (mod(floordiv(add(mul(OUTER, Const(4)), LANE), 8), 3), "uniform"),
        (add(mod(add(mul(OUTER, Const(4)), LANE), 8), mod(add(mul(OUTER, Const(4)), LANE), 16)), "other"),
        (mod(add(mul(OUTER, Const(4)), LANE), 6), "other"),
        (Op("max", (LANE, OUTER)), "other"),
    ],
)
def test_lanes_tell_how_an_index_changes(index: Expr, change: str) -> None:
    assert LANES.change(index) == change


@pytest.mark.parametrize(
    ("condition", "alike"),
    [
        (below(add(mul(OUTER, Const(4)), LANE), 32), True),
        (below(add(mul(OUTER, Const(4)), LANE), 30), False),
        (below(add(mul(OUTER, Const(2)), LANE), 32), False),
        (Op("le", (add(mul(OUTER, Const(4)), LANE), Const(31)), "bool"), True),
        (Op("ge", (add(mul(OUTER, Const(4)), LANE), Const(8)), "bool"), True),
        (Op("gt", (add(mul(OUTER, Const(4)), LANE), Const(8)), "bool"), False),
        (Op("gt", (add(mul(OUTER, Const(4)), LANE), Const(7)), "bool"), True),
        (below(OUTER, 7), True),
        (Op("eq", (LANE, Const(0)), "bool"), False),
    ],
)
def test_conditions_are_alike_in_all_lanes_only_where_every_value_says_so(condition: Expr, alike: bool) -> None:
    def holds(i: int, v: int) -> bool:
        assert isinstance(condition, Op)
        a, b = (_number(arg, {"i": i, "v": v}) for arg in condition.args)
        return {"lt": a < b, "le": a <= b, "gt": a > b, "ge": a >= b, "eq": a == b}[condition.fn]

    assert LANES.alike(condition) == alike
    assert alike == all(len({holds(i, v) for v in range(4)}) == 1 for i in range(20))


def _number(expr: Expr, values: dict[str, int]) -> int:
    match expr:
        case Const(value, _):
            return int(value)
        case Var(name):
            return values[name]
        case Op(fn, (a, b), _):
            x, y = _number(a, values), _number(b, values)
            return {"add": x + y, "sub": x - y, "mul": x * y}[fn]
        case _:
            raise AssertionError(expr)


def test_multiples_are_seen_through_sums_and_remainders() -> None:
    assert multiple(add(mul(OUTER, Const(8)), Const(4)), 4) and not multiple(add(mul(OUTER, Const(8)), Const(2)), 4)
    assert multiple(mod(mul(OUTER, Const(4)), 16), 4) and not multiple(mod(mul(OUTER, Const(4)), 10), 4)


def copy(dtype: DType, rows: int, columns: int, vector: int, value: str = "x[r, c]") -> Program:
    blocks = -(-columns // (8 * vector))
    text = f"""
program copy():
    input x: {dtype}[{rows}, {columns}]
    output y: {dtype}[{rows}, {columns}]
    body:
        for row, b in blockIdx.x({rows}, {blocks}):
            for t in threadIdx.x(8):
                for v in vectorized({vector}):
                    block copy:
                        spatial r in range({rows}) = row
                        spatial c in range({columns}) = b*{8 * vector} + t*{vector} + v
                        y[r, c] = {value}
"""
    return from_text(text)


def source(program: Program) -> str:
    return emit_kernel(program, gpu_target()).source


@pytest.mark.parametrize(
    ("dtype", "vector", "width"),
    [("float32", 4, 4), ("float16", 8, 8), ("float16", 2, 2), ("int8", 16, 16), ("float64", 2, 2), ("float32", 8, 4)],
)
def test_a_copy_moves_as_many_bytes_as_are_asked_for_up_to_sixteen(dtype: DType, vector: int, width: int) -> None:
    text = source(copy(dtype, 3, 256, vector))
    assert f"ms::store<{width}>(y" in text and f"ms::load<{width}>(x" in text


def test_rows_of_an_odd_length_are_not_aligned() -> None:
    assert "ms::load" not in source(copy("float32", 3, 255, 4))
    assert "ms::load<2>" in source(copy("float32", 3, 254, 4))


def test_what_is_read_backwards_is_read_one_by_one() -> None:
    text = source(copy("float32", 3, 256, 4, "x[r, 255 - c]"))
    assert "ms::load" not in text and "ms::store<4>(y" in text


def test_a_guard_that_all_lanes_share_guards_the_vector() -> None:
    text = source(copy("float32", 3, 256, 4, "guard(c < 128, x[r, c] * 2.0:float32, 0.0:float32)"))
    assert "= {};" in text and "ms::load<4>(x" in text
    text = source(copy("float32", 3, 256, 4, "guard(c < 127, x[r, c] * 2.0:float32, 0.0:float32)"))
    assert "ms::load" not in text


@COMPILER
@pytest.mark.parametrize("columns", [256, 254, 250, 36, 33, 4, 2, 1])
@pytest.mark.parametrize("value", ["x[r, c] + 1.0:float32", "guard(c < 30, x[r, c], 0.0:float32)", "x[r, c]"])
def test_ragged_rows_are_copied_to_their_end_and_no_further(columns: int, value: str) -> None:
    x = np.random.default_rng(0).standard_normal((3, columns)).astype(np.float32)
    got = run_on_host(copy("float32", 3, columns, 4, value), {"x": x})["y"]
    want = x + 1 if "+" in value else np.where(np.arange(columns) < 30, x, 0) if "guard" in value else x
    np.testing.assert_array_equal(got, want)


@COMPILER
@pytest.mark.parametrize(("place", "width"), [("padded(4)", 4), ("padded(2)", 2), ("swizzled", 4), ("padded(1)", 0)])
def test_shared_rows_may_be_padded_and_swizzled(place: str, width: int) -> None:
    program = from_text(f"""
program turn():
    input x: float32[32, 32]
    output y: float32[32, 32]
    body:
        alloc s: float32[32, 32] in shared {place}:
            seq:
                for r0, c0 in threadIdx.x(32, 8):
                    for v0 in vectorized(4):
                        block fill:
                            spatial r in range(32) = r0
                            spatial c in range(32) = c0*4 + v0
                            s[r, c] = x[r, c]
                for r1, c1 in threadIdx.x(8, 32):
                    for q in serial(4):
                        block turn:
                            spatial r in range(32) = r1*4 + q
                            spatial c in range(32) = c1
                            y[r, c] = s[c, r]
""")
    assert (f"ms::store<{width}>(s" in source(program)) == (width > 0)
    assert ("ms::swizzled<32, 4>" in source(program)) == (place == "swizzled")
    x = np.random.default_rng(0).standard_normal((32, 32)).astype(np.float32)
    np.testing.assert_array_equal(run_on_host(program, {"x": x}, compiled=True)["y"], x.T)


@COMPILER
def test_every_piece_of_a_row_is_swizzled_on_its_own() -> None:
    program = from_text("""
program widen():
    input x: float16[16, 64]
    output y: float16[16, 64]
    body:
        alloc s: float32[16, 64] in shared swizzled:
            seq:
                for r0, c0 in threadIdx.x(16, 8):
                    for v0 in vectorized(8):
                        block fill:
                            spatial r in range(16) = r0
                            spatial c in range(64) = c0*8 + v0
                            s[r, c] = cast(x[r, c]):float32
                for c1, r1 in threadIdx.x(8, 16):
                    for v1 in vectorized(8):
                        block drain:
                            spatial r in range(16) = r1
                            spatial c in range(64) = c1*8 + v1
                            y[r, c] = cast(s[r, c] * 0.5:float32):float16
""")
    text = source(program)
    assert text.count("ms::store<4>(s, ms::swizzled<64, 4>(") == 2
    assert text.count("ms::load<4>(s, ms::swizzled<64, 4>(") == 2
    x = np.random.default_rng(0).standard_normal((16, 64)).astype(np.float16)
    got = run_on_host(program, {"x": x}, compiled=True)["y"]
    np.testing.assert_array_equal(got, interpret(program, {"x": x})["y"])


@COMPILER
def test_only_conditions_that_others_imply_are_left_out() -> None:
    program = from_text("""
program tails():
    input x: float32[10, 7]
    output y: float32[10, 7]
    body:
        for b in blockIdx.x(2):
            for i, j in threadIdx.x(8, 8):
                block copy:
                    spatial r in range(10) = b*8 + i
                    spatial c in range(7) = j
                    spatial d in range(9) = j
                    y[r, c] = x[r, c]
""")
    text = source(program)
    assert "r < 10 && j < 7" in text and "< 9" not in text
    x = np.random.default_rng(0).standard_normal((10, 7)).astype(np.float32)
    np.testing.assert_array_equal(run_on_host(program, {"x": x})["y"], x)
