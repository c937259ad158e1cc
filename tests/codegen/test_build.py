"""What a kernel says about itself: its arguments, its prologue, its scratch, and offsets beyond 32 bits."""

from __future__ import annotations

import re

import numpy as np
import pytest

from pipeline.codegen.llvm import emit
from pipeline.codegen.llvm.build import SCRATCH, build_kernel, emit_kernel
from pipeline.codegen.llvm.compile import assembly, optimised_ir
from pipeline.errors import CodegenError
from pipeline.ir.expr import Const, Load, Op, Size, Var, add, mul
from pipeline.ir.graph_builder import GraphBuilder
from pipeline.ir.poly import Poly
from pipeline.ir.program import Alloc, Axis, Block, Buffer, Iter, Loop, LoopKind, Program, Seq, Stmt
from pipeline.schedule.space import ParameterSpace
from pipeline.space.generate import generate
from pipeline.space.lower import lower
from pipeline.space.partition import partition
from tests.codegen.kernel_runs import avx512, cpu_rules, native, run_program

HUGE = (1 << 31) + 7  # elements


def copy(n: int, kind: LoopKind, dtype: str = "float32", offset: int = 0, stride: int = 1) -> Program:
    """y[i] = x[i * stride + offset]"""
    i = Iter("i", Poly.of(n), "spatial", Var("l"))
    where = add(mul(Var("i"), Const(stride)), Const(offset))
    block = Block("copy", (i,), "y", (Var("i"),), Load("x", (where,), dtype))  # type: ignore[arg-type]
    buffers = (
        Buffer("x", (Poly.of(n * stride + offset),), dtype, role="input"),  # type: ignore[arg-type]
        Buffer("y", (Poly.of(n),), dtype, role="output"),  # type: ignore[arg-type]
    )
    return Program("copy", buffers, Seq((Loop((Axis("l", Poly.of(n)),), block, kind),)))


def constant_product() -> Program:
    b = GraphBuilder()
    w = b.constant(np.ones((64, 96), np.float32))
    bias = b.constant(np.ones(96, np.float32))
    graph = b.finish([("y", b.elementwise("add", b.matmul(b.input("x", (32, 64), "float32"), w), bias))])
    (task,) = partition(graph).tasks
    sketch = generate(lower(task.graph, task.name, task.constants), cpu_rules(), native())[0]
    space = ParameterSpace.of(sketch)
    return sketch.candidate(space.values(space.draw(1, np.random.default_rng(0))[0]))


@pytest.mark.parametrize("kind", ["serial", "vectorized", "parallel"])
@pytest.mark.parametrize("stride", [1, 3])
def test_offsets_in_buffers_beyond_two_to_the_31_are_64_bits_wide(kind: LoopKind, stride: int) -> None:
    program = copy(HUGE, kind, stride=stride, offset=5)
    emitted = emit_kernel(program, native())
    assert not re.search(r"getelementptr[^\n]*\bi32\b", emitted.text)
    assert not re.search(r"(mul|add|phi|icmp)[^\n]* i32\b", emitted.text)
    assert str(HUGE) in emitted.text or kind == "vectorized"
    assert optimised_ir(emitted.text, native())
    assert emitted.arguments[0].shape == (HUGE * stride + 5,)


def test_a_constant_offset_beyond_two_to_the_31_bytes_is_kept() -> None:
    far = 3_000_000_000
    program = copy(4, "unrolled", offset=far)
    assert str(far * 4) in emit_kernel(program, native()).text


def test_arguments_stand_in_the_order_of_the_buffers_with_their_roles() -> None:
    kernel = build_kernel(constant_product(), native())
    roles = {argument.name: argument.role for argument in kernel.arguments}
    assert roles["x0"] == "input" and roles["w1"] == "constant" and roles["w2"] == "constant"
    assert roles["out0"] == "output" and "packed" in roles.values()
    assert kernel.parallel and kernel.threads == native().cores


@pytest.mark.parametrize(("rows", "columns"), [(1, 5), (7, 3), (64, 33)])
def test_the_iterations_of_a_shared_loop_are_each_done_once(
    rows: int, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    i, j = (Iter(name, Poly.of(n), "spatial", Var(f"l{name}")) for name, n in (("i", rows), ("j", columns)))
    at = (Var("i"), Var("j"))
    block = Block("square", (i, j), "y", at, mul(Load("x", at, "float32"), Load("x", at, "float32")))
    axes = (Axis("li", Poly.of(rows)), Axis("lj", Poly.of(columns)))
    shape = (Poly.of(rows), Poly.of(columns))
    buffers = (Buffer("x", shape, "float32", role="input"), Buffer("y", shape, "float32", role="output"))
    program = Program("squares", buffers, Seq((Loop(axes, block, "parallel"),)))
    assert "muschedule_take" not in emit_kernel(program, native()).text, "there is too little to do"
    monkeypatch.setattr(emit, "PIECES", 0)
    monkeypatch.setattr(emit, "SHARED_WORK", rows * columns)
    assert "muschedule_take" in emit_kernel(program, native()).text
    x = np.random.default_rng(0).normal(size=(rows, columns)).astype(np.float32)
    for _ in range(20):
        np.testing.assert_array_equal(run_program(program, {"x": x}, native())["y"], x * x)


def test_constants_that_only_the_prologue_reads_need_not_be_kept() -> None:
    kernel = build_kernel(constant_product(), native())
    assert kernel.prologue == f"{kernel.symbol}_prologue"
    assert kernel.prologue_only == ("w1",)


def test_the_level_of_the_code_generator_reaches_the_object_code() -> None:
    first, last = (build_kernel(constant_product(), native(), "kernel", level=level) for level in (0, 3))
    assert first.object_code != last.object_code
    assert build_kernel(constant_product(), native(), "kernel").object_code == last.object_code


def test_a_program_without_a_parallel_loop_is_run_by_one_thread() -> None:
    assert not build_kernel(copy(8, "serial"), native()).parallel


def test_a_large_tile_is_scratch_of_each_thread_and_a_small_one_is_not() -> None:
    for size, expected in ((64, False), (100_000, True)):
        tile = Buffer("t", (Poly.of(size),), "float32", "shared")
        double = Op("mul", (Load("x", (Var("i"),), "float32"), Const(2.0, "float32")), "float32")
        inner = (_nest("fill", size, tile.name, double), _nest("store", size, "y", Load("t", (Var("i"),), "float32")))
        body = Loop((Axis("once", Poly.of(2)),), Alloc(tile, Seq(inner)), "parallel")
        shape = (Poly.of(size),)
        buffers = (Buffer("x", shape, "float32", role="input"), Buffer("y", shape, "float32", role="output"))
        program = Program("tiles", buffers, Seq((body,)))
        kernel = build_kernel(program, native())
        scratch = [argument for argument in kernel.arguments if argument.name == SCRATCH]
        assert bool(scratch) == expected
        if scratch:
            assert scratch[0].shape == (native().cores * size * 4,) and scratch[0].role == "workspace"
        x = np.arange(size, dtype=np.float32)
        assert (run_program(program, {"x": x}, native())["y"] == 2 * x).all()


def _nest(name: str, size: int, target: str, value: Load | Op) -> Stmt:
    i = Iter("i", Poly.of(size), "spatial", Var(f"{name}_l"))
    return Loop((Axis(f"{name}_l", Poly.of(size)),), Block(name, (i,), target, (Var("i"),), value), "vectorized")


def test_a_whole_tile_is_stored_with_plain_vectors_and_the_ragged_end_with_a_mask() -> None:
    whole, ragged = (emit_kernel(copy(n, "vectorized"), avx512()).text for n in (64, 64 + 11))
    assert "masked" not in whole
    assert ragged.count("call <16 x float> @llvm.masked.load") == 1
    assert ragged.count("call void @llvm.masked.store") == 1
    assert ragged.count("load <16 x float>, ptr") == 4


def test_vectors_of_512_bits_are_used_where_the_target_has_them() -> None:
    loop = _nest("next", 1024, "y", Op("add", (Load("x", (Var("i"),), "float32"), Const(1.0, "float32")), "float32"))
    program = Program("next", copy(1024, "serial").buffers, Seq((loop,)))
    text = assembly(emit_kernel(program, avx512()).text, avx512())
    assert "%zmm" in text and "%ymm" not in text


def test_a_reduction_must_have_been_decomposed() -> None:
    r = Iter("r", Poly.of(4), "reduce", Var("l"))
    block = Block("total", (r,), "y", (), Load("x", (Var("r"),), "float32"), "sum", Const(0.0, "float32"))
    buffers = (Buffer("x", (Poly.of(4),), "float32", role="input"), Buffer("y", (), "float32", role="output"))
    program = Program("sum", buffers, Seq((Loop((Axis("l", Poly.of(4)),), block),)))
    with pytest.raises(CodegenError, match="initialisation was not split off"):
        build_kernel(program, native())


def test_a_size_that_is_no_number_is_refused() -> None:
    program = copy(8, "serial")
    loop = program.body.body[0]
    assert isinstance(loop, Loop) and isinstance(loop.body, Block)
    block = Block("copy", loop.body.iters, "y", (add(Var("i"), Size(Poly.symbol("n"))),), loop.body.value)
    with pytest.raises(CodegenError, match="the size n is not a number"):
        build_kernel(Program("p", program.buffers, Seq((Loop(loop.axes, block),))), native())


@pytest.mark.parametrize("extent", [0, 1, 2, 3, 15, 16, 17, 33, 300])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "float16", "bool"])
@pytest.mark.parametrize("stride", [1, 2])
def test_copies_of_every_size_write_what_they_should_and_nothing_else(extent: int, dtype: str, stride: int) -> None:
    program = copy(extent, "vectorized", dtype, offset=1, stride=stride)
    x = np.random.default_rng(0).integers(0, 2, extent * stride + 1).astype(dtype)
    assert (run_program(program, {"x": x}, native())["y"] == x[1::stride][:extent]).all()
