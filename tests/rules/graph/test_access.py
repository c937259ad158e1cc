"""Tests of `Access`: views composed with affine maps, and variables split where a reshape needs it."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pipeline.ir import graph as g
from pipeline.ir.evaluate_product import window
from pipeline.ir.graph import AffineDim, Shape
from pipeline.ir.graph_primitives import axis_map
from rules.graph.access import Access


def identity(shape: Shape) -> Access:
    """A product that reads its first operand as it is."""
    return Access.of(g.Contract(shape, (1,), axis_map(*range(len(shape))), ()))


def test_a_transpose_permutes_the_indices() -> None:
    access = identity((2, 3, 4)).through(0, g.Transpose((2, 0, 1)), (3, 4, 2), (2, 3, 4))
    assert access is not None
    assert access.maps[0] == axis_map(1, 2, 0)


def test_a_slice_adds_its_start_and_multiplies_its_stride() -> None:
    access = identity((3,)).through(0, g.Slice((5,), (-2,)), (9,), (3,))
    assert access is not None
    assert access.maps[0] == (AffineDim(((0, -2),), 5),)


def test_a_broadcast_reads_one_place() -> None:
    access = identity((2, 3, 4)).through(0, g.Broadcast(), (3, 1), (2, 3, 4))
    assert access is not None
    assert access.maps[0] == axis_map(1, None)


def test_a_reshape_that_splits_reads_an_affine_place() -> None:
    access = identity((5, 12, 64)).through(0, g.Reshape(), (5, 768), (5, 12, 64))
    assert access is not None
    assert access.maps[0] == (AffineDim(((0, 1),)), AffineDim(((1, 64), (2, 1))))


def test_a_reshape_that_merges_splits_a_variable() -> None:
    access = identity((5, 768)).through(0, g.Reshape(), (5, 12, 64), (5, 768))
    assert access is not None
    op = access.operation(g.Contract((5, 768), (1,), (), ()))
    assert isinstance(op, g.Contract)
    assert (op.spatial, op.lhs) == ((5, 12, 64), axis_map(0, 1, 2))


def test_terms_that_separate_need_no_split() -> None:
    joint = Access.of(g.Contract((12, 64), (1,), (AffineDim(((0, 64), (1, 1))),), ()))
    access = joint.through(0, g.Reshape(), (12, 64), (768,))
    assert access is not None
    assert access.maps[0] == axis_map(0, 1)


def test_what_no_split_makes_affine_is_refused() -> None:
    sliding = Access.of(g.Contract((4,), (3,), (AffineDim(((0, 1), (1, 1))),), ()))
    assert sliding.through(0, g.Reshape(), (2, 3), (6,)) is None, "a window runs over the border"
    assert identity((6,)).through(0, g.Reshape(), (0, 5), (0,)) is None, "there are no elements"
    assert identity((3,)).through(0, g.Concat(0), (3,), (3,)) is None, "that is no view"


def test_too_many_variables_are_refused() -> None:
    assert identity((2,) * 7).through(0, g.Reshape(), (2,) * 7, (2,) * 7) is not None
    assert identity((512,)).through(0, g.Reshape(), (2,) * 9, (512,)) is None


@given(st.data())
def test_reading_through_a_reshape_reads_the_same_elements(data: st.DataObject) -> None:
    factors = data.draw(st.lists(st.sampled_from((1, 2, 3, 4)), min_size=1, max_size=4))

    def grouped() -> Shape:
        cuts = data.draw(st.lists(st.integers(0, len(factors)), max_size=2).map(sorted))
        ends = [0, *cuts, len(factors)]
        return tuple(math.prod(factors[a:b]) for a, b in pairwise(ends))

    source, shape = grouped(), grouped()
    x = np.arange(math.prod(factors)).reshape(source)
    access = identity(shape).through(0, g.Reshape(), source, shape)
    if access is None:
        return
    op = access.operation(g.Contract(shape, (1,), (), ()))
    assert isinstance(op, g.Contract)
    np.testing.assert_array_equal(window(x, op.lhs, (*op.spatial, *op.reduced)).reshape(shape), x.reshape(shape))
