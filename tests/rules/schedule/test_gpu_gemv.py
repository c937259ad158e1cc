"""Tests of products with a few rows on a GPU: the large operand read in vectors, sums shared by lanes or warps."""

from __future__ import annotations

import pytest

from pipeline.ir.graph import Graph
from pipeline.ir.graph_builder import GraphBuilder
from pipeline.ir.program import Loop, walk
from pipeline.space.generate import generate
from rules.schedule.auto_inline import AutoInline
from rules.schedule.gpu_auto_bind import GpuAutoBind
from rules.schedule.gpu_gemv import GpuGemv
from tests.rules.schedule import sketches as small
from tests.rules.schedule.gpu_cases import a100, demands, fits, right, rows
from tests.rules.schedule.sketches import lowered

RULES = (AutoInline(), GpuGemv(beside=False), GpuAutoBind())


def turned(rows: int, columns: int, terms: int, *, gelu: bool = False, dtype: str = "float32") -> Graph:
    """A product whose large operand lies along the sum."""
    g = GraphBuilder()
    weight = g.transpose(g.input("b", (columns, terms), dtype), [1, 0])  # type: ignore[arg-type]
    c = g.matmul(g.input("a", (rows, terms), dtype), weight)  # type: ignore[arg-type]
    return g.finish([("c", g.gelu(c) if gelu else c)])


def vector(columns: int, terms: int) -> Graph:
    """A product with a vector, which has no loop for rows."""
    g = GraphBuilder()
    return g.finish(
        [("c", g.einsum("k,kn->n", g.input("a", (terms,), "float32"), g.input("b", (terms, columns), "float32")))]
    )


PRODUCTS = {
    "a vector": vector(40, 64),
    "along columns": small.product(4, 64, 100),
    "one row": small.product(1, 40, 64),
    "followed": small.product(3, 64, 64, bias=True, gelu=True),
    "along the sum": turned(4, 64, 128),
    "odd": turned(1, 37, 70),
    "along the sum, followed": turned(5, 40, 64, gelu=True),
    "few columns": small.product(64, 2, 64),
    "halves": turned(2, 64, 64, dtype="float16"),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_with_few_rows_is_one_kernel(name: str) -> None:
    (sketch,) = right(lowered(PRODUCTS[name]), RULES, samples=2)
    assert len(sketch.program.body.body) == 1
    assert any(isinstance(stmt, Loop) and stmt.kind == "threadIdx.y" for stmt in walk(sketch.program.body))


@pytest.mark.parametrize("graph", [small.product(8, 4096, 4096), turned(16, 4096, 4096)])
def test_no_candidate_exceeds_a_limit(graph: Graph) -> None:
    (sketch,) = generate(lowered(graph), RULES, a100())
    for candidate in rows(sketch, 200):
        fits(candidate, a100())
        assert all(demand.threads % 32 == 0 for demand in demands(candidate))


def test_lanes_add_up_by_shuffles() -> None:
    (sketch,) = generate(lowered(turned(1, 64, 64)), RULES, a100())
    units = [stmt.annotation("tensorize") for stmt in walk(sketch.program.body) if isinstance(stmt, Loop)]
    assert "warp.sum_32" in units


def test_the_sketch_as_it_was_may_stay_beside() -> None:
    assert len(generate(lowered(turned(1, 64, 64)), (AutoInline(), GpuGemv(), GpuAutoBind()), a100())) == 2


@pytest.mark.parametrize("graph", [small.product(17, 64, 64), small.product(4, 20, 64), small.product(4, 64, 9),
                                   small.softmax(), small.convolution()])  # fmt: skip
def test_what_has_many_rows_or_is_short_is_left_alone(graph: Graph) -> None:
    assert small.says_nothing(GpuGemv(), lowered(graph), a100())


def test_a_cpu_is_no_business_of_the_rule() -> None:
    assert small.says_nothing(GpuGemv(), lowered(small.product(1, 64, 64)))
