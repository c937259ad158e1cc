"""Tests of the tiles of ordinary units: right at any shape, within every limit that the constraints cover."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.ir.program import Alloc, Loop, instantiate, walk
from pipeline.schedule.space import ParameterSpace
from pipeline.space.generate import generate
from rules.schedule.gpu_fetch import GpuFetch
from rules.schedule.gpu_tiling import GpuTiling
from tests.known_gpus import gpu
from tests.rules.schedule import sketches as small
from tests.rules.schedule.gpu_cases import a100, demands, fits, gpu_rules, right, rows
from tests.rules.schedule.sketches import lowered

RULES = gpu_rules("GpuTensorTiling", "GpuGemv", "GpuSplitK")
PRODUCTS = {
    "square": lambda: small.product(8, 16, 8),
    "ragged": lambda: small.product(11, 19, 7),
    "one row": lambda: small.product(1, 20, 9),
    "one column": lambda: small.product(20, 1, 9),
    "one term": lambda: small.product(9, 13, 1),
    "epilogue": lambda: small.product(9, 17, 5, bias=True, gelu=True),
    "convolution": lambda: small.convolution(2, 3, 3),
    "strided": lambda: small.convolution(1, 2, 5, 3, 2),
    "grouped": lambda: small.convolution(2, 4, 3, 3, 1, 2),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_tiles_of_every_product_are_right(name: str) -> None:
    made = right(lowered(PRODUCTS[name]()), RULES, samples=2)
    assert any(
        stmt.buffer.scope == "shared"
        for sketch in made
        for stmt in walk(sketch.program.body)
        if isinstance(stmt, Alloc)
    )


def test_accumulators_are_registers_and_operands_are_shared() -> None:
    for sketch in generate(lowered(small.product(64, 64, 64)), RULES, a100()):
        found = {s.buffer.name: s.buffer.scope for s in walk(sketch.program.body) if isinstance(s, Alloc)}
        assert sorted(found.values()) == ["local", "shared", "shared"]


def test_what_follows_a_product_is_computed_where_it_is_stored() -> None:
    for sketch in generate(lowered(small.product(33, 40, 16, bias=True, gelu=True)), RULES, a100()):
        assert len(sketch.program.body.body) == 1


@pytest.mark.parametrize("name", ["square", "ragged", "convolution"])
def test_no_candidate_exceeds_a_limit(name: str) -> None:
    graph = {"square": small.product(4096, 4096, 4096), "ragged": small.product(1000, 777, 1031),
             "convolution": small.convolution(64, 128, 28)}[name]  # fmt: skip
    for sketch in generate(lowered(graph), RULES, a100()):
        space = ParameterSpace.of(sketch)
        found = space.draw(1000, np.random.default_rng(0))
        assert len(space.unique(found)) > 900
        for row in found[::10]:
            candidate = instantiate(sketch.program, space.values(row))
            fits(candidate, a100())
            (demand,) = [d for d in demands(candidate) if d.shared]
            assert demand.threads >= 32


def test_a_sketch_for_an_older_gpu_has_two_stages_at_most() -> None:
    for sketch in generate(lowered(small.product(64, 64, 64)), RULES, gpu("t4")):
        for candidate in rows(sketch, 50):
            stages = [s.annotation("software_pipeline") for s in walk(candidate.body) if isinstance(s, Loop)]
            assert max(int(n) for n in stages if n is not None) <= 2
            fits(candidate, gpu("t4"))


def test_what_is_no_product_is_left_alone() -> None:
    for graph in (small.softmax(), small.elementwise(), small.sum_over(1), small.transposed()):
        assert small.says_nothing(GpuTiling(), lowered(graph), a100())


def test_a_cpu_is_no_business_of_the_rule() -> None:
    assert small.says_nothing(GpuTiling(), lowered(small.product()))


def test_a_fetch_says_how_many_threads_make_it() -> None:
    assert {field for field in GpuFetch.__slots__} == {"sketch", "threads"}


@pytest.mark.parametrize("rows", [1, 2])
def test_what_follows_a_product_of_one_row_is_stored_once(rows: int) -> None:
    made = right(lowered(small.product(rows, 40, 24, bias=True, gelu=True)), RULES, samples=1)
    assert any(len(sketch.program.body.body) == 1 for sketch in made)
