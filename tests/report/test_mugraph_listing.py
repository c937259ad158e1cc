"""The drawing of µGraphs for a terminal."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from pipeline.errors import CheckError
from pipeline.report.mugraph_listing import LONGEST_NAME, listing, number_text, shortened
from pipeline.superopt.mugraph.builder import MuGraphBuilder
from pipeline.superopt.mugraph.graph import BlockGraph, Scalar
from tests.superopt.expert_mugraphs import EXPERT, EXPERT_SHAPES, online_attention, rmsnorm_linear, two_loops
from tests.superopt.random_mugraphs import RandomMuGraph, mugraphs

ATTENTION = """\
q                                2×6×8
k                               2×10×8
v                               2×10×4
┌ kernel 0: grid h = 2, m = 3
│ v0 = q[h→0 m→1]                1×2×8
│ ┌ loop n = 5
│ │ v1 = k[h→0 n→1]              1×2×8
│ │ v2 = v[h→0 n→1]              1×2×4
│ │ v3 = hmd,hnd→hmn(v0, v1)     1×2×2
│ │ v4 = max[2] v3               1×2×1
│ │ v5 = running max v4          1×2×1
│ │ v6 = v3 − v5                 1×2×2
│ │ v7 = exp(v6)                 1×2×2
│ │ v8 = Σ[2] v7                 1×2×1
│ │ v10 = hmn,hnd→hmd(v7, v2)    1×2×4
│ ├ v9 = Σ v8 rescaled by v5     1×2×1
│ └ v11 = Σ v10 rescaled by v5   1×2×4
│ v12 = v11 / v9                 1×2×4
└ %3 = v12[h→0 m→1]              2×6×4
→ %3
"""

TWO_LOOPS = """\
x
w
┌ kernel 0: grid m
│ ┌ loop j
│ │ ┌ loop k
│ │ │ v0 = x[m→0 j→1 k→2]
│ │ │ v1 = w[k→0]
│ │ │ v2 = v0 · v1
│ │ │ v3 = max[2] v2
│ │ └ v4 = max v3
│ │ v5 = Σ[1] v4
│ └ v6 = Σ v5
│ v7 = squeeze[1, 2] v6
└ %2 = v7[m→0]
→ %2
"""


def test_online_attention_is_listed_with_its_tiles() -> None:
    assert listing(online_attention(), *EXPERT_SHAPES["online_attention"]) == ATTENTION


def test_without_shapes_the_structure_alone_is_listed() -> None:
    assert listing(two_loops()) == TWO_LOOPS


def test_numbers_stand_where_they_are_read() -> None:
    assert "│ v8 = v4 / 4096\n" in listing(rmsnorm_linear())
    assert [number_text(x) for x in (2.0, -0.5, 1e-5, 0.1, 1 / 3)] == ["2", "-0.5", "1e-05", "0.1", repr(1 / 3)]


def test_a_number_that_is_a_result_is_shown_as_what_it_is() -> None:
    b = MuGraphBuilder()
    x, two = b.input("x", 0), b.scalar(2.0)
    with b.kernel() as k:
        y = k.store(k.scalar(3.0))
    assert listing(b.finish(x + two, two, y)).splitlines()[1:] == [
        "┌ kernel 1: grid of one point",
        "└ %2 = 3",
        "%3 = x + 2",
        "→ %3, 2, %2",
    ]


def test_a_long_name_is_shortened_in_its_middle() -> None:
    assert shortened("x" * LONGEST_NAME) == "x" * LONGEST_NAME
    found = shortened("model.layers.12.self_attention.q_proj.weight")
    assert len(found) == LONGEST_NAME and found.startswith("model.layer") and found.endswith("proj.weight")


@given(mugraphs())
@settings(max_examples=40, deadline=None)
def test_every_value_and_every_result_has_a_line(made: RandomMuGraph) -> None:
    lines = [line.lstrip("│├└┌ ") for line in listing(made.graph, made.inputs, made.extents).splitlines()]
    wanted: list[str] = []
    tensor = len(made.graph.inputs)
    for node in made.graph.nodes:
        if isinstance(node.op, BlockGraph):
            wanted += [f"v{i}" for i in range(len(node.op.inputs))]
            wanted += [
                f"v{value}"
                for value, inner in enumerate(node.op.nodes, len(node.op.inputs))
                if not isinstance(inner.op, Scalar)
            ]
        wanted += [f"%{tensor + i}" for i in range(node.results) if not isinstance(node.op, Scalar)]
        tensor += node.results
    assert sorted(line.partition(" = ")[0] for line in lines if line[0] in "v%") == sorted(wanted)


@pytest.mark.parametrize("name", EXPERT)
def test_shapes_that_do_not_fit_are_refused(name: str) -> None:
    inputs, extents = EXPERT_SHAPES[name]
    with pytest.raises(CheckError):
        listing(EXPERT[name], inputs, {axis: 7 for axis in extents})
    with pytest.raises(CheckError, match="has no extent"):
        listing(EXPERT[name], inputs)
