"""Every scalar function on every dtype, compiled in vectors and one by one, gives what the graph defines."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from pipeline.errors import CheckError
from pipeline.ir.expr import Const, Op, Var
from pipeline.ir.graph import BINARY, UNARY, DType, Graph
from pipeline.ir.graph_builder import GraphBuilder
from pipeline.ir.graph_types import DTYPES, FLOATS, numpy_dtype
from pipeline.ir.poly import Poly
from pipeline.ir.program import Axis, Block, Buffer, Iter, Loop, Program, Seq, blocks
from pipeline.schedule.space import ParameterSpace
from pipeline.space.generate import generate
from pipeline.space.lower import lower
from tests.codegen.kernel_runs import argument_feeds, assert_right, cpu_rules, native, run_program

ROWS = 4  # so that threads share rows and lanes run along them
FLOAT_EDGES = (
    *(0, -0.0, 1, -1, 0.5, -0.5, 1.5, 2.5, -1.5, -2.5, np.inf, -np.inf, np.nan, 3.7, -3.7, 127.5, -128.7, 255.9, 256),
    *(-1e-3, 1e9, -1e10, 3e9, 1e19, -1e19, 2.0**63, -(2.0**63), 2.0**31, 300, 65535.5, -32769),
)


def values(dtype: DType, rng: np.random.Generator, count: int = 24) -> np.ndarray:
    """The edges of a dtype, and some of its everyday numbers."""
    kind = numpy_dtype(dtype)
    if dtype == "bool":
        return rng.integers(0, 2, count).astype(bool)
    if dtype in FLOATS:
        limits = ml_dtypes.finfo(kind)
        edges = [*FLOAT_EDGES, float(limits.max), -float(limits.max), float(limits.tiny)]
        with np.errstate(all="ignore"):
            return np.concatenate([np.array(edges).astype(kind), (rng.standard_normal(count) * 3).astype(kind)])
    least, most = np.iinfo(kind).min, np.iinfo(kind).max
    edges = [least, most, 0, 1, 2, 3, most - 1, least + 1, *([-1, -2, -3] if least < 0 else [])]
    return np.concatenate([np.array(edges, kind), rng.integers(max(least, -20), 20, count).astype(kind)])


def in_rows(flat: np.ndarray) -> np.ndarray:
    """The numbers in rows, repeated to fill the last one."""
    return np.resize(flat, (ROWS, -(-flat.size // ROWS)))


def assert_compiled(graph: Graph, feeds: dict[str, np.ndarray]) -> None:
    """Scalar by scalar, and as the rules vectorize it."""
    program = lower(graph, "functions")
    got = run_program(program, argument_feeds(feeds), native())
    assert_right(graph, feeds, got, "one by one")
    for sketch in generate(program, cpu_rules(), native()):
        space = ParameterSpace.of(sketch)
        row = space.draw(1, np.random.default_rng(0))[0]
        got = run_program(sketch.candidate(space.values(row)), argument_feeds(feeds), native())
        assert_right(graph, feeds, got, "in vectors")


def functions(names: frozenset[str], dtype: DType, operands: list[np.ndarray]) -> tuple[Graph, dict[str, np.ndarray]]:
    """A graph with one output for each function that the dtype has."""
    b = GraphBuilder()
    given = [b.input(f"x{i}", data.shape, dtype) for i, data in enumerate(operands)]
    outputs = []
    for name in sorted(names):
        try:
            outputs.append((name, b.elementwise(name, *given)))
        except CheckError:
            continue  # no such function on this dtype
    return b.finish(outputs), {f"x{i}": data for i, data in enumerate(operands)}


@pytest.mark.parametrize("dtype", DTYPES)
def test_functions_of_one_operand_are_right_at_the_edges_of_their_dtype(dtype: DType) -> None:
    data = in_rows(values(dtype, np.random.default_rng(0)))
    assert_compiled(*functions(UNARY - {"cast"}, dtype, [data]))


@pytest.mark.parametrize("dtype", DTYPES)
def test_functions_of_two_operands_are_right_at_the_edges_of_their_dtype(dtype: DType) -> None:
    flat = values(dtype, np.random.default_rng(1), 6)
    left, right = (in_rows(side.reshape(-1)) for side in np.meshgrid(flat, flat))
    assert_compiled(*functions(BINARY, dtype, [np.ascontiguousarray(left), np.ascontiguousarray(right)]))


@pytest.mark.parametrize("dtype", DTYPES)
def test_casts_saturate_truncate_and_round(dtype: DType) -> None:
    data = in_rows(values(dtype, np.random.default_rng(2)))
    b = GraphBuilder()
    x = b.input("x", data.shape, dtype)
    assert_compiled(b.finish([(to, b.cast(x, to)) for to in DTYPES if to != dtype]), {"x": data})


@pytest.mark.parametrize("dtype", DTYPES)
def test_where_chooses_between_its_operands(dtype: DType) -> None:
    rng = np.random.default_rng(3)
    data = in_rows(values(dtype, rng))
    b = GraphBuilder()
    condition, x, y = b.input("c", data.shape, "bool"), b.input("x", data.shape, dtype), b.input("y", data.shape, dtype)
    feeds = {"c": rng.integers(0, 2, data.shape).astype(bool), "x": data, "y": data[:, ::-1].copy()}
    assert_compiled(b.finish([("z", b.elementwise("where", condition, x, y))]), feeds)


@pytest.mark.parametrize("power", [0, 1, 2, 5, -1, -2])
def test_integers_to_a_known_power(power: int) -> None:
    data = in_rows(values("int32", np.random.default_rng(4)))
    b = GraphBuilder()
    x = b.input("x", data.shape, "int32")
    assert_compiled(b.finish([("y", b.elementwise("pow", x, b.scalar(power, x)))]), {"x": data})


@pytest.mark.parametrize("divisor", [1, 3, 16])
@pytest.mark.parametrize("offset", [0, -40])
def test_floored_division_of_indices_follows_the_sign_of_the_divisor(divisor: int, offset: int) -> None:
    n = 80
    index = Op("add", (Var("s"), Const(offset)))
    value = Op("add", (Op("mul", (Op("floordiv", (index, Const(divisor))), Const(1000))),
                       Op("mod", (index, Const(divisor)))))  # fmt: skip
    for kind in ("serial", "vectorized"):
        block = Block("b", (Iter("s", Poly.of(n), "spatial", Var("i")),), "y", (Var("s"),), value)
        body = Loop((Axis("i", Poly.of(n)),), block, kind)  # type: ignore[arg-type]
        program = Program("p", (Buffer("y", (Poly.of(n),), "int64", role="output"),), Seq((body,)))
        got = run_program(program, {}, native())["y"]
        i = np.arange(n) + offset
        assert (got == i // divisor * 1000 + i % divisor).all(), kind


@pytest.mark.parametrize("source", ["float32", "int32"])
@pytest.mark.parametrize("half", ["float16", "bfloat16"])
def test_a_cast_to_a_half_rounds_where_nothing_is_stored_too(source: DType, half: DType) -> None:
    """In between, that is: all of it is one block."""
    g = GraphBuilder()
    x = g.input("x", (ROWS, 40), source)
    graph = g.finish([("y", g.cast(g.cast(x, half), "float32"))])
    given = (np.random.default_rng(0).standard_normal((ROWS, 40)) * 9999).astype(numpy_dtype(source))
    want = given.astype(numpy_dtype(half)).astype(np.float32)
    assert (want != given).any()
    for sketch in generate(lower(graph, "casts"), cpu_rules(), native()):
        assert len(list(blocks(sketch.program))) == 1
        space = ParameterSpace.of(sketch)
        row = space.draw(1, np.random.default_rng(0))[0]
        (got,) = run_program(sketch.candidate(space.values(row)), argument_feeds({"x": given}), native()).values()
        np.testing.assert_array_equal(got, want)


def extrema_and_signs() -> tuple[Graph, dict[str, np.ndarray]]:
    """The extrema with numbers that are known, and the sign of a zero made visible, on the edges of float32."""
    b = GraphBuilder()
    feed = in_rows(values("float32", np.random.default_rng(0)))
    x = b.input("x", feed.shape, "float32")
    outputs = [("sign", b.elementwise("reciprocal", b.elementwise("sign", x)))]
    for number in (0.0, -0.0, 1.5, np.inf, -np.inf, np.nan):
        known = b.constant(np.float32(number))
        outputs += [(f"{fn}_{number}", b.elementwise(fn, x, known)) for fn in ("max", "min")]
        outputs += [(f"{fn}_of_{number}", b.elementwise(fn, known, x)) for fn in ("max", "min")]
    return b.finish(outputs), {"x": feed}


def test_extrema_with_numbers_that_are_known_and_the_sign_of_either_zero() -> None:
    assert_compiled(*extrema_and_signs())
