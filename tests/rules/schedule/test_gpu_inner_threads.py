"""Tests of the rule for kernels that several blocks are in: threads share what is each block's own."""

from __future__ import annotations

import pytest

from pipeline.ir.program import Loop, Program, walk
from rules.schedule.gpu_inner_threads import GpuInnerThreads
from tests.rules.schedule import nests
from tests.rules.schedule import sketches as small
from tests.rules.schedule.gpu_cases import a100, demands, right
from tests.rules.schedule.sketches import lowered
from tests.rules.schedule.test_gpu_auto_bind import shared_nest

RULE = (GpuInnerThreads(),)
NESTS: dict[str, Program] = {
    "gated product": nests.gated_product(),
    "streamed product": nests.streamed_product(),
    "streamed, beside another block": nests.streamed_product(beside=True),
    "dot products": nests.dot_products(),
    "row sums": nests.row_sums(),
    "columns first": nests.columns_first(),
    "shared nest": shared_nest(),
}


@pytest.mark.parametrize("name", NESTS)
def test_threads_share_the_loops_of_each_block(name: str) -> None:
    (sketch,) = right(NESTS[name], RULE)
    grid = [loop.kind for loop in walk(sketch.program.body) if isinstance(loop, Loop) and "Idx" in loop.kind]
    assert grid[0] == "blockIdx.x" and "threadIdx.x" in grid
    assert all(demand.threads <= 1024 for demand in demands(sketch.candidate(dict.fromkeys(sketch.program.params, 1))))


def test_a_long_loop_is_shared_out_by_a_parameter() -> None:
    (sketch,) = right(nests.gated_product(rows=70, depth=3, columns=40), RULE, samples=2)
    assert sketch.variables


def test_a_block_alone_in_its_nest_is_left_to_other_rules() -> None:
    assert small.says_nothing(GpuInnerThreads(), lowered(small.product()), a100())
    assert small.says_nothing(GpuInnerThreads(), nests.gated_product())
