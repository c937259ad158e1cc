"""How tensors lie in memory, as the lowering sees it."""

from __future__ import annotations

import pytest

from pipeline.ir.graph import AffineDim, AffineMap
from pipeline.ir.poly import Poly
from pipeline.superopt.lowering.tile import Tensor, access, contiguous

HEADS_IN_A_ROW = (AffineDim(((0, 1),)), AffineDim(((1, 64), (2, 1)), 768))  # [token, 64 head + d + 768]
TURNED = (AffineDim(((2, 1),)), AffineDim(((1, 1),)), AffineDim(((0, 2),)))


@pytest.mark.parametrize(("how", "wanted"), [(HEADS_IN_A_ROW, [False, False, True]), (TURNED, [False, False, False])])
def test_neighbours_lie_side_by_side_where_the_last_index_steps_by_one(how: AffineMap, wanted: list[bool]) -> None:
    tensor = Tensor((Poly.of(128), Poly.of(12), Poly.of(64)), "x", access(how, (0, 1, 2)))
    assert [contiguous(tensor, dim) for dim in range(3)] == wanted
