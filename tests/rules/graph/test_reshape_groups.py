"""Tests of reshapes as groups of dimensions."""

from __future__ import annotations

import pytest

from pipeline.ir.graph import Shape
from rules.graph.reshape_groups import axes_before_reshape, before_reshape, moves_only_ones, reshape_groups


@pytest.mark.parametrize(
    ("source", "target", "groups"),
    [
        ((4, 6, 1), (2, 2, 6), [((0,), (0, 1)), ((1,), (2,)), ((2,), ())]),
        ((1, 5), (5, 1), [((0, 1), (0,)), ((), (1,))]),
        ((6, 4), (8, 3), [((0, 1), (0, 1))]),
        ((), (1, 1), [((), (0,)), ((), (1,))]),
    ],
)
def test_groups_are_the_smallest_runs_of_equal_size(source: Shape, target: Shape, groups: list[object]) -> None:
    found = reshape_groups(source, target)
    assert found is not None
    assert [(tuple(old), tuple(new)) for old, new in found] == groups


def test_tensors_without_elements_have_no_groups() -> None:
    assert reshape_groups((0, 3), (3, 0)) is None


@pytest.mark.parametrize(
    ("operand", "before"),
    [((768,), (1, 768)), ((128, 1), (128, 1)), ((1, 128, 768), (128, 768)), ((), (1, 1)), ((1, 1, 768), (1, 768))],
)
def test_an_operand_that_broadcasts_goes_before_the_reshape(operand: Shape, before: Shape) -> None:
    assert before_reshape((128, 768), (1, 128, 768), operand) == before


def test_an_operand_that_broadcasts_along_a_part_is_refused() -> None:
    assert before_reshape((256, 768), (2, 128, 768), (128, 768)) is None
    assert before_reshape((256, 768), (2, 128, 768), (1, 2, 128, 768)) is None


def test_axes_go_before_a_reshape_as_whole_groups() -> None:
    assert axes_before_reshape((24, 5), (4, 6, 5), (0, 1)) == (0,)
    assert axes_before_reshape((24, 5), (4, 6, 5), (2,)) == (1,)
    assert axes_before_reshape((24, 5), (4, 6, 5), (1,)) is None
    assert axes_before_reshape((5,), (1, 5), (0,)) == (), "an axis of one element is no axis"


def test_only_ones_that_move_make_a_transpose_a_reshape() -> None:
    assert moves_only_ones((0, 3, 1, 2), (2, 1, 1, 5))
    assert not moves_only_ones((0, 2, 1), (2, 3, 4))
