"""Each check of a graph passes on random graphs and refuses a planted violation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from pipeline.errors import CheckError
from pipeline.ir import graph as g
from pipeline.ir.graph import AffineDim, Graph, Node, TensorType
from pipeline.ir.graph_check import CHECKS, check
from pipeline.ir.graph_constant import constant_key
from tests.ir.random_graphs import graphs

PAIR = TensorType((2,), "float32")
X = Node(g.Input("x"), (), PAIR)
ONES = np.ones(2, np.float32)
FAR = AffineDim(((0, 1), (1, 1)))

VIOLATIONS = {
    "operands come before their uses": Graph((X, Node(g.Elementwise("neg"), (1,), PAIR)), (("y", 1),)),
    "outputs exist": Graph((X,), (("y", 1),)),
    "names are unique": Graph((X, X), (("y", 0),)),
    "constants are present": Graph((Node(g.Constant("00"), (), PAIR),), (("y", 0),)),
    "constants are named by their content": Graph((Node(g.Constant("00"), (), PAIR),), (("y", 0),), {"00": ONES}),
    "types are as inferred": Graph((X, Node(g.Elementwise("exp"), (0,), TensorType((3,), "float32"))), (("y", 1),)),
    "indices are in bounds": Graph(
        (X, Node(g.ReduceWindow("max", (2,), (2,), (FAR,)), (0,), PAIR)), (("y", 1),)
    ),
}  # fmt: skip


@given(graphs())
def test_a_built_graph_is_legal(graph: Graph):
    check(graph)


def test_every_check_has_a_violation():
    assert set(VIOLATIONS) == {one.name for one in CHECKS}


@pytest.mark.parametrize("name", VIOLATIONS)
def test_the_check_refuses(name: str):
    with pytest.raises(CheckError, match=name):
        check(VIOLATIONS[name])


def test_two_outputs_of_one_name_are_refused():
    with pytest.raises(CheckError, match="2 outputs are called 'y'"):
        check(Graph((X,), (("y", 0), ("y", 0))))


def test_a_constant_of_another_type_is_refused():
    key = constant_key(ONES)
    with pytest.raises(CheckError, match=r"its data are TensorType\(shape=\(2,\)"):
        check(Graph((Node(g.Constant(key), (), TensorType((1,), "float32")),), (("y", 0),), {key: ONES}))


def test_an_operation_that_has_no_type_is_refused():
    with pytest.raises(CheckError, match="%1: Transpose: the operation has no type"):
        check(Graph((X, Node(g.Transpose((1, 0)), (0,), PAIR)), (("y", 1),)))


def test_the_key_of_a_constant_tells_dtype_and_shape_apart():
    zeros = [np.zeros(4, np.float32), np.zeros((2, 2), np.float32), np.zeros(4, np.int32), np.zeros(2, np.float64)]
    assert len({constant_key(array) for array in zeros}) == len(zeros)
    assert constant_key(np.arange(4).reshape(2, 2).T) == constant_key(np.array([[0, 2], [1, 3]]))
