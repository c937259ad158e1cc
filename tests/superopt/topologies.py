"""The topologies that an expert would write for the µGraph suite, and a command that prints how each is found.

python -m tests.superopt.topologies [--seconds 10] [--workers 2] [name …]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from pipeline.ir.target import Cache, Target
from pipeline.superopt.enumeration.search import Found, Proven, superoptimize
from pipeline.superopt.mugraph.graph import (
    Accumulate,
    BlockGraph,
    BlockNode,
    Contract,
    Map,
    MuGraph,
    Op,
    RescaledSum,
    Running,
    block_graphs,
)
from pipeline.superopt.spec import Spec
from tests.superopt import specs

TWO_CORES = Target(
    "cpu", "any", "x86_64-unknown-linux-gnu", "any", (), 2, 512, 32, 2.0, 4, 3.0, 40.0,
    (Cache(1, 32 << 10), Cache(2, 1 << 20), Cache(3, 32 << 20, 16, 2)),
)  # fmt: skip
EIGHT_CORES = replace(TWO_CORES, cores=8)  # the two heads of the decoding case do not keep them busy
PRUNED = ("pruned_dependence", "pruned_expression", "pruned_equal", "pruned_dead", "pruned_roofline", "pruned_memory",
          "not_provable")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Expert:
    """A program of the suite, and how to know what an expert would write for it."""

    name: str
    spec: Callable[[], Spec]
    what: str
    is_it: Callable[[MuGraph], bool]
    target: Target = TWO_CORES


def value(block: BlockGraph, number: int) -> BlockNode | None:
    """The node that a value of a block is; None for an input."""
    return block.nodes[number - len(block.inputs)] if number >= len(block.inputs) else None


def has(block: BlockGraph, *kinds: type[Op]) -> bool:
    return all(any(isinstance(node.op, kind) for node in block.nodes) for kind in kinds)


def products(block: BlockGraph) -> Iterator[BlockNode]:
    yield from (node for node in block.nodes if isinstance(node.op, Contract))


def summed_product(block: BlockGraph, number: int) -> BlockNode | None:
    """The product that a value is, or is the sum of over the loops."""
    node = value(block, number)
    if node is not None and node.op == Accumulate("sum"):
        node = value(block, node.inputs[0])
    return node if node is not None and isinstance(node.op, Contract) else None


def reads_once(graph: MuGraph) -> bool:
    """Whether no input is cut in two ways, or read by two kernels."""
    read = [i for node in graph.nodes for i in node.inputs]
    return len(set(read)) == len(read)


def divides_after_the_product(graph: MuGraph) -> bool:
    (block,) = block_graphs(graph)
    last = block.nodes[-1]
    made = [summed_product(block, i) for i in last.inputs]
    return last.op in (Map("mul"), Map("div")) and any(one is not None and one.inputs == (0, 1) for one in made)


def shares_a_tile(block: BlockGraph) -> bool:
    """Whether two products of inputs have one operand in common."""
    pairs = [{*node.inputs} for node in products(block) if max(node.inputs) < len(block.inputs)]
    return any(len(a & b) == 1 for i, a in enumerate(pairs) for b in pairs[:i])


def is_online(graph: MuGraph) -> bool:
    (block,) = block_graphs(graph)
    return has(block, Running) and sum(isinstance(node.op, RescaledSum) for node in block.nodes) == 2


def is_split(graph: MuGraph) -> bool:
    """Partial maxima, sums and products side by side, and a kernel that combines them."""
    first, second = block_graphs(graph)
    stacked = [out for out in first.outputs if "stack" in out.omap]
    return len(stacked) == 3 and len(second.inputs) == 3 and Map("exp") in [node.op for node in second.nodes]


def is_whole_mlp(graph: MuGraph) -> bool:
    """Both products share a tile; the third is in the same kernel (its sum split over the grid) or in the next."""
    blocks = list(block_graphs(graph))
    return shares_a_tile(blocks[0]) and len(list(products(blocks[-1]))) in (1, 3)


def in_one_kernel(then: Callable[[MuGraph], bool]) -> Callable[[MuGraph], bool]:
    return lambda graph: len(graph.nodes) == 1 and reads_once(graph) and then(graph)


def in_two_kernels(then: Callable[[MuGraph], bool]) -> Callable[[MuGraph], bool]:
    return lambda graph: len(graph.nodes) == 2 and reads_once(graph) and then(graph)


def one_head_decode() -> Spec:
    return specs.gqa(1, 8)


ONLINE = "one kernel, rescaled online"
SPLIT = "keys split over the grid, then combined"
EXPERTS = (
    Expert("gqa", specs.gqa, ONLINE, in_one_kernel(is_online)),
    Expert("mha", specs.mha, ONLINE, in_one_kernel(is_online)),
    Expert("mqa", specs.mqa, ONLINE, in_one_kernel(is_online)),
    Expert("gqa_decode", specs.gqa_decode, SPLIT, in_two_kernels(is_split), EIGHT_CORES),
    Expert("mqa_decode", one_head_decode, SPLIT, in_two_kernels(is_split)),
    Expert("qknorm", specs.qknorm, ONLINE, in_one_kernel(is_online)),
    Expert("rmsnorm_linear", specs.rmsnorm_linear, "one kernel, divided after the product",
           in_one_kernel(divides_after_the_product)),
    Expert("lora", specs.lora, "one kernel", in_one_kernel(lambda graph: True)),
    Expert("gated_mlp", specs.gated_mlp, "one kernel, both products share the tile of X",
           in_one_kernel(lambda graph: shares_a_tile(next(block_graphs(graph))))),
    Expert("ntrans", specs.ntrans, "one kernel, every input read once", in_one_kernel(lambda graph: True)),
    Expert("moe", specs.moe, "one or two kernels", lambda graph: len(graph.nodes) <= 2),
    Expert("full_mlp", specs.full_mlp,
           "both products share the tile of X, the third is in the same kernel or the next", is_whole_mlp),
)  # fmt: skip


def place(expert: Expert, found: Found) -> tuple[int, Proven] | None:
    """The first of the proven programs that is the expert's, and its place in the ranking."""
    for number, one in enumerate(found.graphs, 1):
        if expert.is_it(one.graph):
            return number, one
    return None


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.superopt.topologies", description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    columns = ["program", "place", "topologies", *PRUNED, "proven", "refused", "seconds", "exhausted"]
    print("\t".join(columns), flush=True)
    for expert in EXPERTS:
        if given.names and expert.name not in given.names:
            continue
        found = superoptimize(expert.spec(), expert.target, seconds=given.seconds, workers=given.workers)
        where = place(expert, found)
        counts = found.statistics.row()
        row = [expert.name, str(where[0]) if where else "NOT FOUND", str(counts["topologies"])]
        row += [f"{counts[name]:.3g}" if counts[name] > 10**6 else str(counts[name]) for name in PRUNED]
        row += [str(counts["proven"]), str(counts["refused"]), f"{found.seconds:.1f}", str(found.exhausted)]
        print("\t".join(row), flush=True)


if __name__ == "__main__":
    main()
