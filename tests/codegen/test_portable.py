"""Kernels for other CPUs than this one: what their assembly holds, and what they compute where they can run here."""

from __future__ import annotations

import re
from functools import cache

import numpy as np
import pytest

from pipeline.codegen.llvm.build import build_kernel, emit_kernel
from pipeline.codegen.llvm.compile import assembly
from pipeline.errors import CodegenError
from pipeline.ir.graph import Graph, Input
from pipeline.ir.graph_builder import GraphBuilder
from pipeline.ir.graph_types import numpy_dtype
from pipeline.ir.program import Program
from pipeline.ir.target import Target
from pipeline.schedule.space import ParameterSpace
from pipeline.space.generate import generate
from pipeline.space.lower import lower
from pipeline.space.partition import partition
from tests.codegen.kernel_runs import (
    argument_feeds,
    assert_right,
    avx512,
    cpu_rules,
    described,
    native,
    run_kernel,
    sse2,
)

X86 = native().triple.startswith(("x86_64", "amd64"))
TARGETS = {"avx2": lambda: described("avx2"), "sse2": sse2, "avx512": avx512, "arm": lambda: described("aarch64")}


def product(m: int = 48, k: int = 32, n: int = 128) -> Graph:
    b = GraphBuilder()
    x = b.input("x", (m, k), "float32")
    w = b.constant(np.linspace(-1, 1, k * n).astype(np.float32).reshape(k, n))
    return b.finish([("y", b.gelu(b.elementwise("add", b.matmul(x, w), b.input("bias", (n,), "float32"))))])


def rows(dtype: str = "float32") -> Graph:
    b = GraphBuilder()
    return b.finish([("y", b.softmax(b.input("x", (6, 77), dtype)))])  # type: ignore[arg-type]


def ragged() -> Graph:
    b = GraphBuilder()
    return b.finish([("y", b.matmul(b.input("x", (7, 13), "float32"), b.input("w", (13, 29), "float32")))])


def gathered() -> Graph:
    b = GraphBuilder()
    x, i = b.input("x", (9, 35), "float32"), b.input("i", (11,), "int64")
    return b.finish([("y", b.elementwise("floor", b.transpose(b.gather(x, i, 0), (1, 0))))])


def mixed() -> Graph:
    """Conversions between everything that memory holds."""
    b = GraphBuilder()
    x = b.input("x", (4, 21), "float64")
    half = b.cast(b.cast(b.cast(x, "float16"), "bfloat16"), "int8")
    return b.finish([("y", b.elementwise("mod", b.cast(half, "int64"), b.scalar(5, b.cast(half, "int64"))))])


GRAPHS = {"product": product, "rows": rows, "ragged": ragged, "gathered": gathered, "mixed": mixed,
          "half rows": lambda: rows("float16")}  # fmt: skip


@cache
def candidates(graph: str, target: str, count: int = 1) -> tuple[Program, ...]:
    """Random programs of the first task; the first one has the largest register tile of many."""
    task = partition(GRAPHS[graph]()).tasks[0]
    made = []
    for sketch in generate(lower(task.graph, task.name, task.constants), cpu_rules(), TARGETS[target]()):
        space = ParameterSpace.of(sketch)
        drawn = space.draw(200, np.random.default_rng(0))
        inner = [i for i, name in enumerate(space.columns) if re.search(r"s\d_2$", name)]
        drawn = drawn[np.argsort(-np.prod(drawn[:, inner], axis=1), kind="stable")]
        made.extend(sketch.candidate(space.values(row)) for row in drawn[:count])
    return tuple(made)


def text_of(program: Program, target: Target) -> str:
    return assembly(emit_kernel(program, target).text, target)


def inner_loop(text: str, instruction: str) -> list[str]:
    """The lines of the loop that holds most of the instructions of that name."""
    best: list[str] = []
    lines = text.splitlines()
    starts = {line.split(":")[0]: number for number, line in enumerate(lines) if re.match(r"\.LBB\w+:", line)}
    for number, line in enumerate(lines):
        jump = re.match(r"\s+(?:j\w+|b\.\w+|cbn?z\s+\w+,)\s+(\.LBB\w+)", line)
        if jump and starts.get(jump[1], number) < number:
            body = lines[starts[jump[1]] : number]
            nested = any(re.match(r"\.LBB\w+:", inner) for inner in body[1:])
            if not nested and sum(instruction in i for i in body) > sum(instruction in i for i in best):
                best = body
    return best


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("target", TARGETS)
def test_every_kernel_compiles_for_every_target(graph: str, target: str) -> None:
    for program in candidates(graph, target):
        assert build_kernel(program, TARGETS[target]()).object_code[:4] == b"\x7fELF"


@pytest.mark.skipif(not X86, reason="runs x86 code")
@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("target", ["avx2", "sse2", "avx512"])
def test_a_kernel_for_another_x86_computes_the_same_here(graph: str, target: str) -> None:
    if target == "sse2" and graph in ("mixed", "half rows"):
        pytest.skip("conversions of halves need F16C")
    task = partition(GRAPHS[graph]()).tasks[0]
    rng = np.random.default_rng(1)
    feeds = {}
    for node in task.graph.nodes:
        if isinstance(node.op, Input):
            drawn = rng.standard_normal(node.type.shape) * 3
            feeds[node.op.name] = np.asarray(drawn, numpy_dtype(node.type.dtype))
    for program in candidates(graph, target):
        kernel = build_kernel(program, TARGETS[target]())
        try:
            got = run_kernel(kernel, argument_feeds(feeds), TARGETS[target]())
        except CodegenError as error:
            if "this CPU cannot run" not in str(error):
                raise
            pytest.skip(str(error))
        assert_right(task.graph, feeds, got, f"{graph} for {target}")


@pytest.mark.parametrize(
    ("target", "fused", "register"),
    [("avx2", "vfmadd", "%ymm"), ("avx512", "vfmadd", "%zmm"), ("arm", "fmla", ".4s")],
)
def test_a_product_is_fused_multiply_adds_on_whole_vectors(target: str, fused: str, register: str) -> None:
    text = text_of(candidates("product", target)[0], TARGETS[target]())
    lines = [line for line in inner_loop(text, fused) if fused in line]
    assert len(lines) >= 8
    assert all(register in line for line in lines)


@pytest.mark.parametrize("target", ["avx2", "avx512", "arm"])
def test_no_target_that_fuses_calls_a_function_for_it(target: str) -> None:
    for graph in ("product", "rows", "ragged"):
        for program in candidates(graph, target):
            assert not re.search(r"\b(fmaf?|fmal?)\b(@PLT)?$", text_of(program, TARGETS[target]()), re.MULTILINE)


def test_a_target_without_fused_multiply_adds_multiplies_and_adds() -> None:
    text = text_of(candidates("product", "sse2")[0], sse2())
    assert "vfmadd" not in text and "ymm" not in text
    loop = inner_loop(text, "mulps")
    assert sum("mulps" in line for line in loop) >= 4 and not any("call" in line for line in loop)


@pytest.mark.parametrize("graph", GRAPHS)
def test_code_for_avx2_has_no_register_of_512_bits(graph: str) -> None:
    for program in candidates(graph, "avx2"):
        assert not re.search(r"%zmm|%k[0-7]\b|%[xy]mm(1[6-9]|2\d|3[01])", text_of(program, described("avx2")))


@pytest.mark.parametrize(
    ("target", "rows", "vectors"), [("avx2", 6, 2), ("avx512", 6, 4), ("avx512", 12, 2), ("arm", 6, 4)]
)
@pytest.mark.parametrize("step", [1, 4])
def test_the_register_tile_of_a_product_never_leaves_the_registers(
    target: str, rows: int, vectors: int, step: int
) -> None:
    machine = TARGETS[target]()
    task = partition(product()).tasks[0]
    sketch = generate(lower(task.graph, task.name, task.constants), cpu_rules(), machine)[0]
    space = ParameterSpace.of(sketch)
    wanted = {"s0_1": 2, "s0_2": rows, "s1_1": 2, "s1_2": vectors * machine.lanes(), "r0_1": step}
    row = np.array([[next(v for end, v in wanted.items() if name.endswith(end)) for name in space.columns]])
    assert space.valid(row).all()
    fused, stack = ("fmla", "sp") if target == "arm" else ("vfmadd", "%rsp")
    loop = inner_loop(text_of(sketch.candidate(space.values(row[0])), machine), fused)
    assert sum(fused in line for line in loop) == rows * vectors * step
    assert not [line for line in loop if re.search(rf"{stack}\b", line)]


def test_emission_is_the_same_for_every_process_and_differs_between_targets() -> None:
    program = candidates("ragged", "avx2")[0]
    assert emit_kernel(program, described("avx2")).text == emit_kernel(program, described("avx2")).text
    assert emit_kernel(program, described("avx2")).symbol != emit_kernel(program, sse2()).symbol
