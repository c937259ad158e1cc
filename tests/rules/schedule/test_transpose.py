"""Tests of Transpose: tiles with the loop of rows right around the lanes, wherever memory asks for it."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.codegen.llvm.build import emit_kernel
from pipeline.ir.graph import DType, Graph
from pipeline.ir.graph_builder import GraphBuilder
from pipeline.ir.program import Loop, Program, walk
from pipeline.ir.program_parse import from_text
from pipeline.schedule.space import ParameterSpace
from pipeline.space.generate import generate
from rules.schedule.transpose import LEAST, Transpose
from tests.codegen.kernel_runs import avx512, cpu_rules
from tests.rules.schedule.sketches import (
    elementwise,
    golden,
    keeps,
    kinds,
    loops,
    lowered,
    product,
    says_nothing,
    softmax,
    through,
    transposed,
)
from tests.search.spaces import TARGET

RULE = Transpose()


def permuted(shape: tuple[int, ...], order: tuple[int, ...], dtype: DType = "float32") -> Graph:
    b = GraphBuilder()
    return b.finish([("y", b.transpose(b.input("x", shape, dtype), order))])


def chain(program: Program) -> list[tuple[str, str]]:
    """The loops of its only nest, with their kinds."""
    return [("+".join(a.var for a in s.axes), s.kind) for s in walk(program.body) if isinstance(s, Loop)]


def test_both_sides_are_tiled_and_the_row_loop_is_right_around_the_lanes() -> None:
    program = lowered(transposed(50, 23))
    (sketch,) = through(RULE, program)
    golden(sketch.program, "transpose/copy")
    keeps(program, sketch)


@pytest.mark.parametrize("rows", [LEAST, 7, 8, 17, 40])
@pytest.mark.parametrize("columns", [5, 8, 31, 64])
def test_transposed_matrices_keep_their_meaning(rows: int, columns: int) -> None:
    program = lowered(transposed(rows, columns))
    (sketch,) = through(RULE, program)
    assert sketch.program != program
    keeps(program, sketch)


@pytest.mark.parametrize(
    ("shape", "order"),
    [((2, 9, 6, 5), (0, 2, 3, 1)), ((2, 6, 5, 9), (0, 3, 1, 2)), ((3, 7, 20), (0, 2, 1)), ((6, 5, 9), (2, 1, 0))],
)  # fmt: skip
def test_layouts_of_images_keep_their_meaning(shape: tuple[int, ...], order: tuple[int, ...]) -> None:
    program = lowered(permuted(shape, order))
    (sketch,) = through(RULE, program)
    assert chain(sketch.program)[-1][1] == "vectorized" and chain(sketch.program)[-2][1] == "serial"
    keeps(program, sketch)


def test_the_last_axes_are_those_that_are_read_and_stored_in_a_row() -> None:
    """From channels in planes to channels side by side: lanes along channels, rows along the width."""
    (sketch,) = through(RULE, lowered(permuted((2, 9, 6, 5), (0, 2, 3, 1))))
    vars_ = [name for name, _ in chain(sketch.program)]
    assert vars_[-2].split("_s")[1][0] == "2" and vars_[-1].split("_s")[1][0] == "3"


def test_what_is_computed_on_the_way_is_tiled_too() -> None:
    b = GraphBuilder()
    x = b.transpose(b.input("x", (12, 20), "float32"), (1, 0))
    program = lowered(b.finish([("y", b.elementwise("exp", x))]))
    for sketch in generate(program, cpu_rules(), TARGET):
        keeps(program, sketch)


@pytest.mark.parametrize("graph", [transposed(64, 64), permuted((2, 32, 14, 14), (0, 2, 3, 1), "float16")])
def test_what_the_rules_make_is_turned_in_registers(graph: Graph) -> None:
    for sketch in generate(lowered(graph), cpu_rules(), avx512()):
        space = ParameterSpace.of(sketch)
        for row in space.draw(4, np.random.default_rng(0)):
            text = emit_kernel(sketch.candidate(space.values(row)), avx512()).text
            assert "shufflevector <" in text


@pytest.mark.parametrize(
    "graph",
    [elementwise(20, 30), product(), softmax(), transposed(3, 40), transposed(40, 3), permuted((4, 9, 8), (1, 0, 2))],
    ids=["same order", "product", "softmax", "few rows", "few columns", "rows stay rows"],
)  # fmt: skip
def test_what_is_no_transposition_is_left_alone(graph: Graph) -> None:
    assert says_nothing(RULE, lowered(graph))


def test_a_nest_with_a_schedule_is_left_alone() -> None:
    (sketch,) = through(RULE, lowered(transposed(20, 20)))
    assert says_nothing(RULE, sketch.program)


SHARED = """program shared():
    input x: float32[4, {n}, 24]
    output y: float32[4, 24]
    body:
        for b in parallel(4):
            alloc t: float32[24, {n}] in shared:
                for i in serial({n}):
                    for j in serial(24):
                        block turn:
                            spatial vb in range(4) = b
                            spatial vi in range({n}) = i
                            spatial vj in range(24) = j
                            t[vj, vi] = x[vb, vi, vj]
                for k in serial(24):
                    for r in serial({n}):
                        block top:
                            spatial vc in range(4) = b
                            spatial vk in range(24) = k
                            reduce vr in range({n}) = r
                            init 0.0:float32
                            y[vc, vk] += t[vk, vr]
"""


def test_a_copy_that_shares_its_nest_gets_its_order_and_its_lanes() -> None:
    program = from_text(SHARED.format(n=17))
    (sketch,) = through(RULE, program)
    assert loops(sketch.program, "turn") == ["b", "j", "i"]
    assert kinds(sketch.program, "turn") == ["parallel", "serial", "vectorized"]
    keeps(program, sketch)


def test_a_few_rows_that_share_a_nest_are_left_alone() -> None:
    assert says_nothing(RULE, from_text(SHARED.format(n=3)))
