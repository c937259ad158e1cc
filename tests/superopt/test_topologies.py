"""What an expert would write for each program of the µGraph suite is found, proven, and among the first."""

from __future__ import annotations

import pytest

from pipeline.superopt.enumeration.search import superoptimize
from tests.superopt.topologies import EXPERTS, ONLINE, Expert, in_one_kernel, in_two_kernels, is_online, is_split, place

QUICK = ("gqa", "mqa_decode", "qknorm", "rmsnorm_linear", "lora", "gated_mlp", "ntrans", "full_mlp")
PATIENCE = 12


@pytest.mark.parametrize("expert", [one for one in EXPERTS if one.name in QUICK], ids=lambda one: one.name)
def test_the_topology_of_an_expert_is_found(expert: Expert) -> None:
    """The budget is a bound for a slow machine: two seconds would do on an idle one."""
    found = superoptimize(expert.spec(), expert.target, seconds=20, most=3, patience=PATIENCE)
    where = place(expert, found)
    assert where is not None and where[1].proof.equal
    assert where[0] <= 3


def test_what_is_no_online_softmax_is_not_taken_for_one() -> None:
    """The experts' descriptions can fail: that of attention does on a split one, and the other way round."""
    by_name = {one.name: one for one in EXPERTS}
    split = superoptimize(
        by_name["mqa_decode"].spec(), by_name["mqa_decode"].target, seconds=20, most=1, patience=PATIENCE
    )
    whole = superoptimize(by_name["gqa"].spec(), by_name["gqa"].target, seconds=20, most=1, patience=PATIENCE)
    assert by_name["gqa"].what == ONLINE
    assert not in_one_kernel(is_online)(split.graphs[0].graph)
    assert not in_two_kernels(is_split)(whole.graphs[0].graph)
