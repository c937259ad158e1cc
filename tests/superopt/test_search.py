"""The superoptimizer finds what an expert would write, proves it, and always ends."""

from __future__ import annotations

from pipeline.ir.target import Cache, Target
from pipeline.superopt.mugraph import Accumulate, BlockGraph, Contract, Map
from pipeline.superopt.search import superoptimize
from tests.superopt.specs import rmsnorm_linear

TARGET = Target(
    "cpu", "any", "x86_64-unknown-linux-gnu", "any", (), 2, 256, 16, 2.0, 4, 3.0, 40.0,
    (Cache(1, 32 << 10), Cache(2, 1 << 20), Cache(3, 32 << 20, 16, 2)),
)  # fmt: skip


def test_the_division_of_a_normalisation_goes_past_the_product_in_one_kernel() -> None:
    found = superoptimize(rmsnorm_linear(), TARGET, seconds=20, patience=12)
    assert found.graphs and all(one.proof.equal for one in found.graphs)
    best = found.graphs[0].graph
    assert len(best.nodes) == 1
    block = best.nodes[0].op
    assert isinstance(block, BlockGraph) and len(block.loops) == 1
    values = (*block.inputs, *block.nodes)
    last = block.nodes[-1]
    summed = [values[i] for i in last.inputs]
    made = [values[node.inputs[0]] for node in summed if node in block.nodes and node.op == Accumulate("sum")]
    assert last.op in (Map("mul"), Map("div"))
    assert any(isinstance(node.op, Contract) and node.inputs == (0, 1) for node in made)
