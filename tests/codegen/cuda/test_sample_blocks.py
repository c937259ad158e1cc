"""Samples of the blocks of a grid: every corner and tail, and a few inside."""

import math

import pytest

from pipeline.codegen.cuda.kernel import Launch
from pipeline.codegen.cuda.sample_blocks import grid_axes, sample_blocks
from pipeline.ir.program_parse import from_text


def launch(*grid: int) -> Launch:
    x, y, z = grid
    return Launch("kernel", (x, y, z), 128, 0, ())


def test_a_small_grid_is_not_sampled() -> None:
    assert sample_blocks(launch(3, 4, 1)) is None


@pytest.mark.parametrize("grid", [(100, 1, 1), (7, 9, 1), (5, 6, 7), (2, 2, 50), (1, 1000, 1000)])
def test_a_sample_holds_every_corner_and_blocks_inside(grid: tuple[int, int, int]) -> None:
    found = sample_blocks(launch(*grid))
    assert found is not None
    corners = {(x, y, z) for x in {0, grid[0] - 1} for y in {0, grid[1] - 1} for z in {0, grid[2] - 1}}
    assert corners < set(found)
    assert len(set(found)) == len(found) <= 12
    assert all(0 <= place < extent for block in found for place, extent in zip(block, grid, strict=True))
    assert found == sample_blocks(launch(*grid))


def test_axes_that_are_fused_have_their_tails_in_the_sample() -> None:
    axes = ((3, 5, 7), (1,), (4,))
    found = sample_blocks(launch(105, 1, 4), axes)
    assert found is not None and len(found) <= 12
    split = [(x // 35, x // 7 % 5, x % 7, z) for x, _, z in found]
    for axis, extent in enumerate((3, 5, 7, 4)):
        assert {0, extent - 1} <= {point[axis] for point in split}


def test_a_corner_without_work_gives_its_place_to_the_last_block_before_it_that_has_some() -> None:
    """Eleven rows of blocks in groups of four: the last group has three."""
    axes = ((3, 8, 4), (1,), (1,))

    def row(block: tuple[int, int, int]) -> int:
        return block[0] // 32 * 4 + block[0] % 4

    found = sample_blocks(launch(96, 1, 1), axes, idle=lambda block: row(block) >= 11)
    assert found is not None and len(found) <= 12
    assert {0, 10} <= {row(block) for block in found}
    ends = {(row(block), block[0] // 4 % 8) for block in found}
    assert {(0, 0), (0, 7), (10, 0), (10, 7)} <= ends
    assert 10 not in {row(block) for block in sample_blocks(launch(96, 1, 1), axes) or ()}


def test_a_grid_without_any_work_is_sampled_all_the_same() -> None:
    assert sample_blocks(launch(100, 1, 1), idle=lambda block: True) == sample_blocks(launch(100, 1, 1))


def test_many_fused_axes_keep_to_the_limit() -> None:
    axes = ((2, 3, 2), (3, 2), (2, 2))
    found = sample_blocks(launch(12, 6, 4), axes, limit=12)
    assert found is not None and (0, 0, 0) in found and (11, 5, 3) in found and len(found) <= 12


def test_the_axes_of_a_grid_come_from_the_region() -> None:
    program = from_text(TEXT)
    (axes,) = grid_axes(program, (launch(6, 4, 1),))
    assert axes == ((2, 3), (4,), (1,)) and math.prod(axes[0]) == 6
    assert grid_axes(program, (launch(7, 4, 1),)) == (None,)
    assert grid_axes(program, (launch(6, 4, 1), launch(1, 1, 1))) == (None, None)


TEXT = """program copy():
    input A: float32[24]
    output B: float32[24]
    body:
        for i in blockIdx.y(4):
            for j, k in blockIdx.x(2, 3):
                block b:
                    spatial v in range(24) = i*6 + j*3 + k
                    B[v] = A[v]
"""
