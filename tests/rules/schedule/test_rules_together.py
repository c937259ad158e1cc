"""Tests of all rules of conf/rules/cpu.yaml together: whatever the task, its sketches are legal, complete and right."""

from __future__ import annotations

from dataclasses import replace

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from pipeline.codegen.llvm.build import emit_kernel
from pipeline.ir.graph import Graph
from pipeline.ir.graph_builder import GraphBuilder
from pipeline.ir.program import blocks
from pipeline.schedule.space import ParameterSpace
from pipeline.space.lower import lower
from tests.rules.schedule import sketches as small
from tests.search.spaces import TARGET, parts, sketches

SIZES = st.sampled_from([1, 2, 3, 5, 7, 8, 13, 16, 17, 31])


def chained(n: int, m: int, k: int) -> Graph:
    """A product, a bias, a function, a product again, and a normalisation of its rows."""
    g = GraphBuilder()
    a, b, c = g.input("a", (n, k), "float32"), g.input("b", (k, m), "float32"), g.input("c", (m, k), "float32")
    hidden = g.relu(g.elementwise("add", g.matmul(a, b), g.broadcast(g.input("bias", (m,), "float32"), (n, m))))
    return g.finish([("y", g.softmax(g.matmul(hidden, c), 1))])


GRAPHS = {
    "product": lambda n, m, k: small.product(n, m, k),
    "bias and gelu": lambda n, m, k: small.product(n, m, k, bias=True, gelu=True),
    "softmax": lambda n, m, k: small.softmax(n, m),
    "layer norm": lambda n, m, k: small.layer_norm(n, m),
    "sum of rows": lambda n, m, k: small.sum_over(1, n, m),
    "sum of columns": lambda n, m, k: small.sum_over(0, n, m),
    "elementwise": lambda n, m, k: small.elementwise(n, m),
    "copy": lambda n, m, k: small.transposed(n, m),
    "convolution": lambda n, m, k: small.convolution(min(n, 4), min(m, 5), min(k, 6), 3),
    "chained": chained,
}


def keeps_meaning(graph: Graph, cores: int = 4, vector_bits: int = 256) -> None:
    """Every sketch of every task, at random rows, with the whole program of the task as the reference."""
    target = replace(TARGET, cores=cores, vector_bits=vector_bits)
    for task in parts(graph).tasks:
        program = lower(task.graph, task.name, task.constants)
        made = sketches(task, target)
        assert made
        for sketch in made:
            assert all(block.init is None for block in blocks(sketch.program)), "no code is generated for this"
            small.keeps(program, sketch, samples=2)


@pytest.mark.parametrize("name", GRAPHS)
def test_sketches_keep_the_meaning_of_their_task(name: str) -> None:
    for size in ((1, 1, 1), (7, 17, 3), (1, 31, 5), (16, 8, 8)):
        keeps_meaning(GRAPHS[name](*size))


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(sorted(GRAPHS)), SIZES, SIZES, SIZES, st.sampled_from([1, 2, 8]), st.sampled_from([128, 512]))
def test_sketches_keep_the_meaning_whatever_the_size_and_the_machine(
    name: str, n: int, m: int, k: int, cores: int, vector_bits: int
) -> None:
    keeps_meaning(GRAPHS[name](n, m, k), cores, vector_bits)


@pytest.mark.parametrize("name", GRAPHS)
def test_code_can_be_generated_for_every_sketch(name: str) -> None:
    for task in parts(GRAPHS[name](9, 17, 5)).tasks:
        for sketch in sketches(task):
            space = ParameterSpace.of(sketch)
            (row,) = space.draw(1, np.random.default_rng(0))
            assert emit_kernel(sketch.candidate(space.values(row)), TARGET).text


@pytest.mark.parametrize("name", ["product", "bias and gelu", "convolution"])
def test_a_task_without_a_tuned_sketch_would_be_told(name: str) -> None:
    """A product always has parameters to tune, at sizes that are worth it."""
    (task, *_) = parts(GRAPHS[name](64, 64, 64)).tasks
    assert any(sketch.variables for sketch in sketches(task))
