"""Tests of what chosen blocks have to write: all of it together is the output, and a forgotten element is seen."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pipeline.codegen.cuda.build import emit_kernel
from pipeline.codegen.cuda.execute_machine import whole_grid
from pipeline.codegen.cuda.expected_writes import expected_writes, forgotten
from pipeline.ir.program import Program
from pipeline.ir.program_parse import from_text
from tests.codegen.cuda.gpu_targets import gpu_target

FOLDER = Path(__file__).parent
RAGGED = """program ragged():
    input x: float32[50, 7]
    output y: float32[50, 7]
    body:
        for a, b in blockIdx.x(4, 2):
            for t in threadIdx.x(16):
                for v in vectorized(4):
                    block copy:
                        spatial i in range(50) = a * 16 + t
                        spatial j in range(7) = b * 4 + v
                        y[i, j] = x[i, j]
"""


def program(text: str) -> Program:
    return from_text(text)


def test_all_blocks_together_write_the_whole_output() -> None:
    made = program(RAGGED)
    (launch,) = emit_kernel(made, gpu_target()).launches
    masks = expected_writes(made, 0, whole_grid(launch))
    assert masks is not None and masks["y"].all()


def test_a_block_writes_its_own_tile_and_a_tail_no_more_than_there_is() -> None:
    masks = expected_writes(program(RAGGED), 0, np.array([(7, 0, 0)]))
    assert masks is not None
    assert np.argwhere(masks["y"]).tolist() == [[48, 4], [48, 5], [48, 6], [49, 4], [49, 5], [49, 6]]


def test_what_a_guard_chooses_is_where_an_element_is_stored() -> None:
    turned = RAGGED.replace("y[i, j] =", "y[guard(i < 25, 24 - i, i), j] =")
    masks = expected_writes(program(turned), 0, np.array([(2, 0, 0)]))  # rows 16 to 31
    assert masks is not None
    assert np.flatnonzero(masks["y"][:, 0]).tolist() == [*range(9), *range(25, 32)]


@pytest.mark.parametrize("name", ["simt_gemm.txt", "tensor_gemm.txt"])
def test_tiles_of_products_are_those_of_their_blocks(name: str) -> None:
    made = program((FOLDER / name).read_text(encoding="utf-8"))
    (launch,) = emit_kernel(made, gpu_target()).launches
    blocks = whole_grid(launch)
    (whole,) = expected_writes(made, 0, blocks).values()  # type: ignore[union-attr]
    assert whole.all()
    counts = [int(next(iter(expected_writes(made, 0, blocks[i : i + 1]).values())).sum()) for i in range(len(blocks))]  # type: ignore[union-attr]
    assert sum(counts) == whole.size


def test_what_was_forgotten_is_named() -> None:
    masks = expected_writes(program(RAGGED), 0, np.array([(0, 0, 0)]))
    assert masks is not None
    written = {"y": np.ones((50, 7), np.bool_)}
    assert forgotten(masks, written) is None
    written["y"][3, 2] = False
    assert forgotten(masks, written) == "output y: 1 elements that the blocks have to write were not, such as [3, 2]"
    written["y"][:] = True
    written["y"][20, 2] = False
    assert forgotten(masks, written) is None, "it belongs to another block"


def test_where_an_index_hangs_on_data_nothing_is_said() -> None:
    text = RAGGED.replace("input x: float32[50, 7]", "input x: float32[50, 7]\n    input p: int64[50]").replace(
        "y[i, j] = x", "y[p[i], j] = x"
    )
    assert expected_writes(program(text), 0, np.array([(0, 0, 0)])) is None
