"""Tests of sums in pieces: offered where a product has few tiles and a long sum, and right with all other rules."""

from __future__ import annotations

import pytest

from pipeline.ir.graph import Graph
from pipeline.space.generate import generate
from rules.schedule.auto_inline import AutoInline
from rules.schedule.gpu_auto_bind import GpuAutoBind
from rules.schedule.gpu_split_k import GpuSplitK
from rules.schedule.gpu_tiling import GpuTiling
from tests.rules.schedule import sketches as small
from tests.rules.schedule.gpu_cases import a100, right
from tests.rules.schedule.sketches import lowered

RULES = (AutoInline(), GpuSplitK(), GpuTiling(), GpuAutoBind(reductions=True), GpuAutoBind())


@pytest.mark.parametrize("graph", [small.product(4, 24, 512), small.product(5, 16, 384, bias=True, gelu=True)])
def test_a_second_kernel_adds_up_the_pieces(graph: Graph) -> None:
    made = right(lowered(graph), RULES, samples=1)
    assert sorted({len(sketch.program.body.body) for sketch in made}) == [1, 2]


def test_a_convolution_may_have_its_channels_in_pieces() -> None:
    made = right(lowered(small.convolution(64, 2, 3)), RULES, samples=1)
    assert len({len(sketch.program.body.body) for sketch in made}) == 2


def test_pieces_are_as_many_as_there_is_room_for() -> None:
    made = generate(lowered(small.product(64, 64, 8192)), RULES, a100())
    extents = {str(b.shape[0]) for s in made for b in s.program.buffers if b.name.endswith("_rf_tile")}
    assert not extents  # they are in registers
    assert {str(b.shape[0]) for s in made for b in s.program.buffers if b.name.endswith("_rf")} == {"64"}


@pytest.mark.parametrize(
    "graph",
    [small.product(4096, 4096, 64), small.product(64, 64, 131), small.product(64, 64, 128), small.softmax()],
    ids=["many tiles", "no divisor", "short", "no product"],
)
def test_other_products_are_left_alone(graph: Graph) -> None:
    assert small.says_nothing(GpuSplitK(), lowered(graph), a100())


def test_a_cpu_is_no_business_of_the_rule() -> None:
    assert small.says_nothing(GpuSplitK(), lowered(small.product(4, 24, 512)))
