"""Every program of an assignment is a valid µGraph, is proven, and can be lowered: none is proposed in vain."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest

from pipeline.superopt.enumeration.enumerate import Limits
from pipeline.superopt.enumeration.explore import (
    Candidate,
    explore,
    frames,
    least_seconds,
    likely_seconds,
    nominal,
    ranked,
    shapes,
)
from pipeline.superopt.enumeration.roles import Roles, assignments
from pipeline.superopt.enumeration.statistics import Statistics
from pipeline.superopt.goal.goal import Goal
from pipeline.superopt.mugraph.check import check
from pipeline.superopt.mugraph.graph import Accumulate, BlockGraph, block_graphs
from pipeline.superopt.proof.prove import prove_spec
from pipeline.superopt.spec import Spec
from tests.superopt import specs
from tests.superopt.topologies import TWO_CORES


def explored(spec: Spec, roles: Roles, *, foreign: int = 1, most: int = 4) -> tuple[list[Candidate], Statistics]:
    statistics = Statistics()
    found, _ = explore(
        spec, roles, TWO_CORES, Goal.of, statistics, seed=1, most=most, deadline=math.inf,
        limits=Limits(foreign, 1000, 0),
    )  # fmt: skip
    return found, statistics


CASES = [
    ("rmsnorm_linear", Roles((0, 2), (1,))),
    ("rmsnorm_linear", Roles((0, 2), (2, 1))),
    ("gqa", Roles((0, 1, 4), (2, 3))),
    ("gqa", Roles((0, 1, 2), ())),
    ("gqa", Roles((0, 1, 2), (2,))),
    ("gqa", Roles((0, 1, 3), (2,))),
    ("gqa", Roles((0, 1, 4), (4, 3))),
    ("lora", Roles((0, 1, 2), (1, 3))),
    ("gated_mlp", Roles((0, 2), (0, 1))),
    ("full_mlp", Roles((0, 2, 3), (1,))),
    ("moe", Roles((0, 3, 4), (2,))),
    ("ntrans", Roles((0,), ())),
]


@pytest.mark.parametrize(("name", "roles"), CASES)
def test_every_program_is_a_valid_and_proven_one(name: str, roles: Roles) -> None:
    spec = specs.SUITE[name]()
    found, _ = explored(spec, roles)
    for one in found:
        check(one.graph, {tensor.name: len(tensor.labels) for tensor in spec.inputs})
        assert prove_spec(spec, one.graph, tests=1, rng=np.random.default_rng(0)).equal
    assert len({one.text for one in found}) == len(found)


def test_a_sum_that_is_split_leaves_the_grid_as_a_sum() -> None:
    found, _ = explored(specs.lora(), Roles((0, 1, 2), ()))
    assert any("sum" in out.omap for one in found for block in block_graphs(one.graph) for out in block.outputs)


def test_a_loop_over_an_axis_of_the_result_puts_tiles_side_by_side() -> None:
    found, _ = explored(specs.rmsnorm_linear(), Roles((0, 2), (2,)))
    assert found
    for one in found:
        (block,) = block_graphs(one.graph)
        assert isinstance(block, BlockGraph) and Accumulate("concat", 0, 1) in [node.op for node in block.nodes]


def test_a_norm_cannot_be_split_over_the_grid_in_one_kernel() -> None:
    """The sum of squares of a part is not that of the whole, so nothing is found and nothing wrong is proposed."""
    found, statistics = explored(specs.rmsnorm_linear(), Roles((0, 1, 2), (1,)), foreign=3)
    assert found == [] and statistics.topologies == 0


def test_a_deadline_that_is_over_leaves_nothing_and_says_so() -> None:
    over = time.monotonic() - 1
    found, exhausted = explore(
        specs.gqa(), Roles((0, 1, 4), (2,)), TWO_CORES, Goal.of, Statistics(), seed=0, most=4, deadline=over,
        limits=Limits(deadline=over),
    )  # fmt: skip
    assert found == [] and not exhausted


def test_no_assignment_is_bounded_by_more_than_what_it_may_take() -> None:
    for name in ("gqa", "rmsnorm_linear", "lora"):
        spec = specs.SUITE[name]()
        for roles in assignments(spec):
            least = least_seconds(spec, TWO_CORES, roles)
            assert least_seconds(spec, TWO_CORES) <= least <= likely_seconds(spec, TWO_CORES, roles)
        found, _ = explored(spec, next(iter(assignments(spec))))
        assert all(one.estimate.seconds >= least_seconds(spec, TWO_CORES) for one in found)


def test_the_split_of_a_sum_has_a_second_kernel_that_holds_it_in_a_tile() -> None:
    (first, second), split = frames(specs.gqa(), Roles((0, 1, 2), (2,)))
    assert split == (2, "g") and split in first.grid and split in second.tiles
    assert second.loops == () and split not in second.grid
    (alone,), none = frames(specs.gqa(), Roles((0, 1, 4), (2,)))
    assert none is None and alone.loops == ((2, "l"),)


def test_typical_pieces_multiply_to_the_axis() -> None:
    spec = specs.gqa()
    sizes = nominal(spec, Roles((0, 1, 2), (2,)), TWO_CORES)
    pieces = sizes.grid[(2, "g")] * sizes.loops[(2, "l")] * sizes.tiles[(2, "t")]
    assert pieces >= spec.extents[2]
    assert shapes(spec) == {"q": (2, 256, 64), "k": (2, 4096, 64), "v": (2, 4096, 64)}


def test_the_ranking_is_by_seconds_and_leaves_equal_ones_out() -> None:
    found, _ = explored(specs.gqa(), Roles((0, 1, 4), (2,)), most=6)
    order = ranked([*reversed(found), *found])
    assert len(order) == len(found) and {one.text for one in order} == {one.text for one in found}
    assert order[0].estimate.seconds <= 1.02 * min(one.estimate.seconds for one in found)
