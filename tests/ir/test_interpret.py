"""Tests of the interpreter: what programs compute, what it refuses, and that its fast mode agrees with its slow one."""

from __future__ import annotations

from typing import get_args

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.errors import CheckError
from pipeline.ir import interpret_lanes
from pipeline.ir.evaluate_scalar import apply_scalar
from pipeline.ir.graph import BINARY, UNARY
from pipeline.ir.graph_types import LOGIC, TO_BOOL
from pipeline.ir.interpret import Mode, interpret
from pipeline.ir.lockstep import lockstep_loops
from pipeline.ir.program import Loop, Program, instantiate, walk
from pipeline.ir.program_check import check
from pipeline.ir.program_parse import from_text
from tests.ir.random_programs import feeds, runnable_programs

MODES: tuple[Mode, ...] = get_args(Mode)

TILED = from_text("""
program matmul(t, u):
    derived n = ceildiv(13, t)
    derived m = ceildiv(7, u)
    input a: float32[13, 5]
    input b: float32[5, 7]
    output c: float32[13, 7]
    body:
        for i0 in parallel(n):
            for j0 in serial(m):
                alloc acc: float32[t, u] in local:
                    for i1, j1 in unrolled(t, u):
                        block zero:
                            spatial i in range(t) = i1
                            spatial j in range(u) = j1
                            acc[i, j] = 0.0:float32
                    for k in serial(5):
                        for i2 in unrolled(t):
                            for j2 in vectorized(u):
                                block multiply:
                                    spatial i in range(13) = i0*{t} + i2
                                    spatial j in range(7) = j0*{u} + j2
                                    spatial ii in range(t) = i2
                                    spatial jj in range(u) = j2
                                    reduce r in range(5) = k
                                    acc[ii, jj] += a[i, r] * b[r, j]
                    for i3 in serial(t):
                        for j3 in vectorized(u):
                            block copy:
                                spatial i in range(13) = i0*{t} + i3
                                spatial j in range(7) = j0*{u} + j3
                                spatial ii in range(t) = i3
                                spatial jj in range(u) = j3
                                c[i, j] = acc[ii, jj]
""")


def body(lines: str, *buffers: str) -> Program:
    """A program of one output y, the given inputs and this body."""
    declared = "".join(f"    {buffer}\n" for buffer in buffers or ("output y: float32[4]",))
    return from_text(f"program p():\n{declared}    body:\n" + lines)


def run(program: Program, mode: Mode = "lanes", **arrays: np.ndarray) -> np.ndarray:
    return interpret(program, arrays, mode=mode)["y"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("t", "u"), [(1, 1), (4, 4), (5, 3), (13, 7), (20, 8)])
def test_a_ragged_tiled_product_is_the_product(mode: Mode, t: int, u: int) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((13, 5)).astype(np.float32), rng.standard_normal((5, 7)).astype(np.float32)
    program = instantiate(TILED, {"t": t, "u": u})
    check(program)
    expected = np.zeros((13, 7), np.float32)
    for k in range(5):
        expected += a[:, k : k + 1] * b[k : k + 1]
    assert (interpret(program, {"a": a, "b": b}, mode=mode)["c"] == expected).all()


def test_double_precision_is_that_of_numpy() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((13, 5)), rng.standard_normal((5, 7))
    c = interpret(instantiate(TILED, {"t": 6, "u": 4}), {"a": a, "b": b}, precision="float64")["c"]
    assert c.dtype == np.float64
    np.testing.assert_allclose(c, a @ b, rtol=1e-14)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(runnable_programs(), st.sampled_from([interpret_lanes.LANES, 9]))
def test_the_fast_mode_agrees_with_the_slow_one_to_the_last_bit(program: Program, lanes: int) -> None:
    """Or both refuse the program; with few lanes the loops are cut into chunks."""
    results = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpret_lanes, "LANES", lanes)
        for mode in MODES:
            try:
                results.append(interpret(program, feeds(1), mode=mode))
            except CheckError:
                results.append(None)
    fast, slow = results
    assert (fast is None) == (slow is None)
    for name in fast or ():
        assert np.array_equal(fast[name], slow[name], equal_nan=True)


def test_all_loops_of_a_tiled_product_run_in_lockstep() -> None:
    program = instantiate(TILED, {"t": 6, "u": 4})
    assert lockstep_loops(program) == {id(stmt) for stmt in walk(program.body) if isinstance(stmt, Loop)}


def test_a_scan_keeps_its_order() -> None:
    program = body(
        """
        for i in serial(4):
            block scan:
                scan v in range(4) = i
                y[v] = guard(v > 0, y[v - 1], 0.0:float32) + x[v]
        """,
        "input x: float32[4]", "output y: float32[4]",
    )  # fmt: skip
    assert lockstep_loops(program) == frozenset()
    for mode in MODES:
        assert run(program, mode, x=np.arange(1, 5, dtype=np.float32)).tolist() == [1, 3, 6, 10]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("sign", "expected"), [("+=", 11), ("*=", 48), ("max=", 4), ("min=", 2)])
def test_a_reduction_starts_from_its_init(mode: Mode, sign: str, expected: float) -> None:
    init = {"+=": 2, "*=": 2, "max=": -9, "min=": 9}[sign]
    program = body(
        f"""
        for r in serial(3):
            block reduce:
                reduce k in range(3) = r
                init {init}:float32
                y[] {sign} x[k]
        """,
        "input x: float32[3]", "output y: float32[]",
    )  # fmt: skip
    assert run(program, mode, x=np.array([2, 3, 4], np.float32)) == expected


@pytest.mark.parametrize("mode", MODES)
def test_init_is_set_where_the_reduced_iterations_are_zero_in_the_order_of_the_loops(mode: Mode) -> None:
    program = body(
        """
        block before:
            y[] = 100.0:float32
        for r in serial(4):
            block reduce:
                reduce k in range(4) = 3 - r
                init 0.0:float32
                y[] += x[k]
        """,
        "input x: float32[4]", "output y: float32[]",
    )  # fmt: skip
    assert run(program, mode, x=np.array([1, 20, 300, 4000], np.float32)) == 1


@pytest.mark.parametrize("mode", MODES)
def test_a_block_does_nothing_outside_its_iteration_domain_and_conditions(mode: Mode) -> None:
    program = body(
        """
        for i, j in serial(4, 1):
            block fill:
                spatial v in range(4) = i
                y[v] = 0.0:float32
        for i2 in serial(9):
            block some:
                spatial v in range(4) = i2 - 2
                where i2 != 3
                y[v] = 1.0:float32
        """
    )
    assert run(program, mode).tolist() == [1, 0, 1, 1]


@pytest.mark.parametrize("mode", MODES)
def test_a_guard_evaluates_one_side_only(mode: Mode) -> None:
    program = body(
        """
        for i in vectorized(4):
            block pad:
                spatial v in range(4) = i
                y[v] = guard(v >= 1 and v < 3, x[v - 1], guard(v < 1, -1.0:float32, x[v - 3] * 10.0:float32))
        """,
        "input x: float32[2]", "output y: float32[4]",
    )  # fmt: skip
    assert run(program, mode, x=np.array([5, 6], np.float32)).tolist() == [-1, 5, 6, 50]


@pytest.mark.parametrize("mode", MODES)
def test_the_prologue_packs_before_the_body_runs(mode: Mode) -> None:
    program = from_text("""
program p():
    constant w: float32[2, 3]
    packed wt: float32[3, 2]
    output y: float32[3, 2]
    prologue:
        for i, j in serial(3, 2):
            block pack:
                spatial a in range(3) = i
                spatial b in range(2) = j
                wt[a, b] = w[b, a]
    body:
        for f in parallel(6):
            block copy:
                spatial a in range(3) = f // 2
                spatial b in range(2) = f % 2
                y[a, b] = wt[a, b]
""")
    check(program)
    w = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert (run(program, mode, w=w) == w.T).all()


@pytest.mark.parametrize("mode", MODES)
def test_threads_share_shared_memory_and_have_their_own_registers(mode: Mode) -> None:
    program = from_text("""
program p():
    input x: float32[8]
    output y: float32[8]
    body:
        for g in blockIdx.x(2):
            alloc s: float32[4] in shared:
                alloc mine: float32[1] in local:
                    for t in threadIdx.x(4):
                        block fetch:
                            spatial v in range(8) = g*4 + t
                            spatial l in range(4) = t
                            s[l] = x[v]
                        block own:
                            spatial v in range(8) = g*4 + t
                            mine[0] = x[v]
                    for u in threadIdx.x(4):
                        block reverse:
                            spatial v in range(8) = g*4 + u
                            spatial l in range(4) = u
                            y[v] = s[3 - l] * 100.0:float32 + mine[0]
""")
    x = np.arange(8, dtype=np.float32)
    assert run(program, mode, x=x).tolist() == [300, 201, 102, 3, 704, 605, 506, 407]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("size", [0, 1, 3])
def test_sizes_of_zero_and_one_are_sizes(mode: Mode, size: int) -> None:
    program = body(
        f"""
        for i in parallel({size}):
            block double:
                spatial v in range({size}) = i
                y[v] = x[v] + x[v]
        """,
        f"input x: float32[{size}]", f"output y: float32[{size}]",
    )  # fmt: skip
    x = np.arange(size, dtype=np.float32)
    assert (run(program, mode, x=x) == 2 * x).all()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8", "uint64"])
def test_every_operation_rounds_to_its_dtype(mode: Mode, dtype: str) -> None:
    program = body(
        f"""
        for i in serial(300):
            block count:
                reduce v in range(300) = i
                init 0:{dtype}
                y[] += 1:{dtype}
        """,
        f"output y: {dtype}[]",
    )
    # bfloat16 has 8 bits of precision: 256 + 1 is 256. int8 wraps.
    assert int(run(program, mode)) == {"float16": 300, "bfloat16": 256, "int8": 44, "uint64": 300}[dtype]


@pytest.mark.parametrize("fn", sorted(UNARY | BINARY))
def test_every_scalar_function_is_that_of_the_graph(fn: str) -> None:
    dtype = "bool" if fn in LOGIC else "float32"
    out = "bool" if fn in TO_BOOL else "int32" if fn == "cast" else dtype
    second = "" if fn in UNARY else ", z[v]"
    program = body(
        f"""
        for i in serial(6):
            block map:
                spatial v in range(6) = i
                y[v] = "{fn}"(x[v]{second}):{out}
        """,
        f"input x: {dtype}[6]", f"input z: {dtype}[6]", f"output y: {out}[6]",
    )  # fmt: skip
    x = np.array([0.5, 1.5, -2.5, 0.0, np.inf, np.nan]).astype(dtype)
    z = np.array([1, 3, 2.5, -0.5, 0.25, 1]).astype(dtype)
    expected = apply_scalar(fn, [x] if fn in UNARY else [x, z], out)
    for mode in MODES:
        assert np.array_equal(run(program, mode, x=x, z=z), expected, equal_nan=out == "float32")


REFUSED = {
    "a_read_out_of_bounds": ("""
        for i in serial(4):
            block late:
                spatial v in range(4) = i
                y[v] = x[v + 1]
        """, "block late at v=3: reads x[4] out of bounds. The shape of x is (4,)."),
    "a_write_out_of_bounds": ("""
        for i in serial(5):
            block far:
                spatial v in range(5) = i
                y[v] = 1.0:float32
        """, "block far at v=4: writes y[4] out of bounds. The shape of y is (4,)."),
    "a_negative_index": ("""
        for i in serial(4):
            block early:
                spatial v in range(4) = i
                y[v] = x[v - 1]
        """, "block early at v=0: reads x[-1] out of bounds. The shape of x is (4,)."),
    "an_output_that_is_not_all_written": ("""
        for i in serial(3):
            block short:
                spatial v in range(4) = i
                y[v] = 1.0:float32
        """, "p: output y has an element that was never written. The element is y[3]."),
    "a_read_of_memory_never_written": ("""
        for i in serial(4):
            alloc t: float32[2, 2] in local:
                block stale:
                    spatial v in range(4) = i
                    y[v] = t[v // 2, 1]
        """, "block stale at v=0: reads an element of t that was never written. The element is t[0, 1]."),
    "a_tile_that_outlives_its_iteration": ("""
        for i in serial(4):
            alloc t: float32[1] in local:
                block first:
                    spatial v in range(1) = i
                    t[v] = 1.0:float32
                block all:
                    spatial v in range(4) = i
                    y[v] = t[0]
        """, "block all at v=1: reads an element of t that was never written. The element is t[0]."),
    "a_combination_without_a_first_value": ("""
        for i in serial(4):
            block add:
                spatial v in range(4) = i
                y[v] += 1.0:float32
        """, "block add at v=0: combines into an element of y that was never written. The element is y[0]."),
    "two_parallel_iterations_that_write_one_element": ("""
        for i in parallel(8):
            block half:
                spatial v in range(4) = i // 2
                y[v] = 1.0:float32
        """, "two parallel iterations touch one element of y. The element is y[0]."),
    "a_parallel_reduction": ("""
        for i in serial(4):
            block zero:
                spatial v in range(4) = i
                y[v] = 0.0:float32
        for k in parallel(3):
            block sum:
                reduce r in range(3) = k
                y[1] += x[r]
        """, "two parallel iterations touch one element of y. The element is y[1]."),
    "a_parallel_read_of_what_another_iteration_wrote": ("""
        for i in parallel(4):
            block chain:
                scan v in range(4) = i
                y[v] = guard(v > 0, y[v - 1], 0.0:float32)
        """, "parallel iteration"),
    "a_parallel_write_of_what_another_iteration_read": ("""
        for i in serial(4):
            block zero:
                spatial v in range(4) = i
                y[v] = 0.0:float32
        for j in parallel(4):
            block chain:
                scan v in range(4) = j
                y[v] = guard(v < 3, y[v + 1], 0.0:float32)
        """, "parallel iteration"),
    "threads_that_write_one_element": ("""
        for i in threadIdx.x(8):
            block half:
                spatial v in range(4) = i // 2
                y[v] = 1.0:float32
        """, "two parallel iterations touch one element of y. The element is y[0]."),
}  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", sorted(REFUSED))
def test_the_interpreter_refuses(mode: Mode, name: str) -> None:
    lines, message = REFUSED[name]
    program = body(lines, "input x: float32[4]", "output y: float32[4]")
    with pytest.raises(CheckError) as caught:
        run(program, mode, x=np.ones(4, np.float32))
    assert message in str(caught.value)


def test_what_is_fed_must_fit() -> None:
    program = instantiate(TILED, {"t": 4, "u": 4})
    a, b = np.ones((13, 5), np.float32), np.ones((5, 7), np.float32)
    with pytest.raises(CheckError, match=r"Given a, c; wanted a, b"):
        interpret(program, {"a": a, "c": b})
    with pytest.raises(CheckError, match=r"Given float32\[5, 13\]; declared float32\[13, 5\]"):
        interpret(program, {"a": a.T, "b": b})
    with pytest.raises(CheckError, match=r"Given bfloat16"):
        interpret(program, {"a": a.astype(ml_dtypes.bfloat16), "b": b})
    with pytest.raises(CheckError, match="has parameters"):
        interpret(TILED, {"a": a, "b": b})


def test_the_feeds_are_not_changed() -> None:
    program = body(
        """
        block set:
            x[] = 2.0:float32
        block copy:
            y[] = x[]
        """,
        "input x: float32[]", "output y: float32[]",
    )  # fmt: skip
    x = np.ones((), np.float32)
    assert run(program, x=x) == 2
    assert x == 1
