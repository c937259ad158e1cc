"""Tests of witnesses: inputs on which floating point refutes a µGraph, and not where it has lost its digits."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.ir.graph import Graph, TensorType
from pipeline.ir.graph_builder import GraphBuilder
from pipeline.superopt.mugraph.graph import KernelNode, Map, MuGraph
from pipeline.superopt.proof.witness import WatchedFloats, clear_difference, find_witness

INPUTS = {"X": TensorType((4,), "float32")}


def elementwise(*fns: str) -> tuple[Graph, MuGraph]:
    b = GraphBuilder()
    value = b.input("X", (4,), "float32")
    for fn in fns:
        value = b.elementwise(fn, value)
    kernels = tuple(KernelNode(Map(fn), (number,)) for number, fn in enumerate(fns))
    return b.finish([("out", value)]), MuGraph(("X",), kernels, (len(fns),))


def test_a_witness_is_inputs_with_the_two_results() -> None:
    seen = find_witness(elementwise("tanh")[0], elementwise("sigmoid")[1], INPUTS, None, np.random.default_rng(0))
    assert seen is not None and seen.witness is not None
    x = seen.witness.feeds["X"][seen.index]
    assert seen.witness.expected == pytest.approx(np.tanh(x))
    assert seen.witness.found == pytest.approx(1 / (1 + np.exp(-x)))


def test_there_is_none_against_what_is_equal() -> None:
    spec, same = elementwise("neg", "exp")
    assert find_witness(spec, same, INPUTS, None, np.random.default_rng(0)) is None


def test_functions_that_need_positive_inputs_are_refuted_on_those() -> None:
    seen = find_witness(elementwise("log")[0], elementwise("sqrt")[1], INPUTS, None, np.random.default_rng(0))
    assert seen is not None


@pytest.mark.parametrize(("value", "fn"), [(-800.0, "exp"), (-680.0, "exp"), (800.0, "exp"), (1e-295, "neg")])
def test_a_value_that_leaves_the_range_of_floating_point_is_noticed(value: float, fn: str) -> None:
    algebra = WatchedFloats()
    algebra.elementwise(fn, np.array([1.0, value]))
    assert algebra.left == [fn]


def test_an_exact_zero_and_ordinary_values_are_in_the_range() -> None:
    algebra = WatchedFloats()
    algebra.elementwise("sub", np.ones(3), np.ones(3))
    algebra.contract("i,i->", np.full(3, 1e20), np.ones(3))
    algebra.fold("sum", np.zeros(3), [0])
    assert not algebra.left


def test_only_what_no_rounding_explains_is_clear_and_what_is_not_finite_does_not_count() -> None:
    want = np.array([1.0, 2.0, np.nan, np.inf])
    assert clear_difference(want, want * (1 + 1e-9)) is None
    assert clear_difference(want, np.array([1.0, 2.1, 5.0, 7.0])) == (1,)
    assert clear_difference(np.zeros(3), np.zeros(3)) is None
    assert clear_difference(np.zeros(0), np.zeros(0)) is None
