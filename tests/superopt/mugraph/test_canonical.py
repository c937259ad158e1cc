"""The canonical form: equal for µGraphs that differ in what does not count, different otherwise, of equal meaning."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.ir.algebra import FloatAlgebra
from pipeline.superopt.mugraph.builder import MuGraphBuilder
from pipeline.superopt.mugraph.canonical import COMMUTATIVE, canonical, canonicalized, key
from pipeline.superopt.mugraph.check import check
from pipeline.superopt.mugraph.graph import (
    Axis,
    BlockGraph,
    BlockInput,
    BlockNode,
    BlockOutput,
    Contract,
    KernelNode,
    Map,
    MuGraph,
)
from pipeline.superopt.mugraph.interpret import run_mugraph
from pipeline.superopt.mugraph.text import to_text
from tests.superopt.expert_mugraphs import EXPERT, rmsnorm_linear
from tests.superopt.random_mugraphs import RandomMuGraph, mugraphs

Reads = Callable[[int], Sequence[int]]


def _order(rng: random.Random, count: int, reads: Reads) -> list[int]:
    """Things in a random order in which each comes after those that it reads."""
    left, found = list(range(count)), list[int]()
    while left:
        found.append(rng.choice([i for i in left if not set(reads(i)) & set(left)]))
        left.remove(found[-1])
    return found


def _swapped(rng: random.Random, node: BlockNode) -> BlockNode:
    if isinstance(node.op, Map) and node.op.fn in COMMUTATIVE:
        return replace(node, inputs=tuple(rng.sample(node.inputs, 2)))
    if isinstance(node.op, Contract):
        operands, _, out = node.op.subscripts.partition("->")
        lhs, _, rhs = operands.partition(",")
        names = dict(zip(dict.fromkeys(lhs + rhs), rng.sample("abcdefghijklmnopqrstuvwxyz", 26), strict=False))
        (lhs, rhs, out) = ("".join(map(names.__getitem__, part)) for part in (lhs, rhs, out))
        swap = rng.random() < 0.5
        subscripts = f"{rhs},{lhs}->{out}" if swap else f"{lhs},{rhs}->{out}"
        return BlockNode(Contract(subscripts), node.inputs[::-1] if swap else node.inputs)
    return node


def _shuffled_block(
    rng: random.Random, block: BlockGraph, names: dict[str, str]
) -> tuple[BlockGraph, list[int], list[int]]:
    """The block with nothing changed that counts, and its inputs and outputs in their new order."""
    count, places = len(block.inputs), [*(t.imap for t in block.inputs), *(o.omap for o in block.outputs)]
    grid = _order(rng, len(block.grid), lambda i: [
        j for j in range(i) if any(p[i] == p[j] and p[i] not in (None, "sum", "max") for p in places)])  # fmt: skip
    loads, stores = (rng.sample(range(n), n) for n in (count, len(block.outputs)))
    nodes = _order(rng, len(block.nodes), lambda i: [v - count for v in block.nodes[i].inputs])
    number = {old: new for new, old in enumerate([*loads, *(count + i for i in nodes)])}
    moved = [
        _swapped(rng, BlockNode(block.nodes[i].op, tuple(number[v] for v in block.nodes[i].inputs))) for i in nodes
    ]
    made = BlockGraph(
        tuple(Axis(names[block.grid[a].name], block.grid[a].extent) for a in grid),
        tuple(Axis(names[axis.name], axis.extent) for axis in block.loops),
        tuple(BlockInput(tuple(block.inputs[i].imap[a] for a in grid), block.inputs[i].fmap) for i in loads),
        tuple(moved),
        tuple(
            BlockOutput(number[block.outputs[i].value], tuple(block.outputs[i].omap[a] for a in grid)) for i in stores
        ),
    )
    return made, loads, stores


def shuffled(graph: MuGraph, rng: random.Random) -> MuGraph:
    """The same µGraph with other names of axes and another order of whatever has no order."""
    old = [
        axis.name for node in graph.nodes if isinstance(node.op, BlockGraph) for axis in (*node.op.grid, *node.op.loops)
    ]
    names = dict(zip(dict.fromkeys(old), (f"z{i}" for i in rng.sample(range(99), 99)), strict=False))
    owner = [-1] * len(graph.inputs)
    for kernel, node in enumerate(graph.nodes):
        owner += [kernel] * node.results
    number = {i: i for i in range(len(graph.inputs))}
    nodes: list[KernelNode] = []
    known = len(graph.inputs)
    for kernel in _order(rng, len(graph.nodes), lambda i: [owner[v] for v in graph.nodes[i].inputs]):
        node = graph.nodes[kernel]
        first = owner.index(kernel)
        if isinstance(node.op, BlockGraph):
            block, loads, stores = _shuffled_block(rng, node.op, names)
            nodes.append(KernelNode(block, tuple(number[node.inputs[i]] for i in loads)))
            number |= {first + result: known + at for at, result in enumerate(stores)}
        else:
            plain = _swapped(rng, BlockNode(node.op, tuple(number[i] for i in node.inputs)))
            nodes.append(KernelNode(plain.op, plain.inputs))  # type: ignore[arg-type]
            number[first] = known
        known += node.results
    return MuGraph(graph.inputs, tuple(nodes), tuple(number[i] for i in graph.outputs))


@given(mugraphs(), st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_what_does_not_count_does_not_change_the_canonical_text(made: RandomMuGraph, seed: int) -> None:
    other = shuffled(made.graph, random.Random(seed))
    check(other)
    assert to_text(canonical(other)) == to_text(canonical(made.graph))
    assert key(other) == key(made.graph)


@given(mugraphs(), st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_the_canonical_form_is_valid_computes_the_same_and_is_its_own(made: RandomMuGraph, seed: int) -> None:
    found = canonicalized(made.graph)
    check(found.graph, {name: len(shape) for name, shape in made.inputs.items()})
    assert canonical(found.graph) == found.graph
    rng = np.random.default_rng(seed)
    feeds = {name: rng.normal(size=shape) for name, shape in made.inputs.items()}
    wanted = run_mugraph(made.graph, feeds, FloatAlgebra(), made.extents)
    got = run_mugraph(found.graph, feeds, FloatAlgebra(), {found.axes.get(n, n): e for n, e in made.extents.items()})
    for x, y in zip(wanted, got, strict=True):
        np.testing.assert_allclose(y, x, rtol=1e-9, atol=1e-9)


def test_what_experts_write_have_keys_of_their_own() -> None:
    assert len({key(graph) for graph in EXPERT.values()}) == len(EXPERT)


def test_what_is_computed_twice_is_computed_once() -> None:
    b = MuGraphBuilder()
    x = b.input("x", 1)
    with b.kernel({"g": None}, {"l": None}) as k:
        tiles = [k.load(x, {"g": 0}, {"l": 0}) for _ in range(2)]
        sums = [k.accumulate("sum", k.exp(tile * 2.0)) for tile in tiles]
        y = k.store(sums[0] * sums[1], {"g": 0})
    found = canonical(b.finish(y))
    assert [len(found.nodes[0].op.inputs), len(found.nodes[0].op.nodes)] == [1, 5]  # type: ignore[union-attr]


def test_two_axes_that_cannot_be_told_apart_stay_two() -> None:
    """The sum over all pairs of x_i * x_j is not the sum of x_i * x_i."""
    b = MuGraphBuilder()
    x = b.input("x", 1)
    with b.kernel({"g": None, "h": None}) as k:
        y = k.store(k.load(x, {"g": 0}) * k.load(x, {"h": 0}), {"g": "sum", "h": "sum"})
    found = canonicalized(b.finish(y))
    feeds, extents = {"x": np.array([1.0, 2.0])}, dict.fromkeys(found.axes.values(), 2)
    assert run_mugraph(found.graph, feeds, FloatAlgebra(), extents)[0] == [9.0]


def test_kernels_that_are_equal_but_for_a_parameter_stay_two() -> None:
    def graph(second: str) -> MuGraph:
        b = MuGraphBuilder()
        x = b.input("x", 1)
        parts = []
        for name in ("s", second):
            with b.kernel({name: None}) as k:
                parts.append(k.store(k.load(x, {name: 0}), {name: "stack"}))
        return b.finish(*(b.fold("sum", part, 0) for part in parts))

    assert [len(canonical(graph(second)).nodes) for second in ("s", "t")] == [2, 4]
    assert key(graph("s")) != key(graph("t"))


CHANGES: dict[str, Callable[[BlockGraph], BlockGraph]] = {
    "a fixed extent": lambda b: replace(b, loops=(Axis("k", 4),)),
    "another map": lambda b: replace(b, inputs=(replace(b.inputs[0], imap=(0,)), b.inputs[1])),
    "another function": lambda b: replace(b, nodes=(replace(b.nodes[0], op=Map("add")), *b.nodes[1:])),
    "the operands of a division": lambda b: replace(b, nodes=(*b.nodes[:-1], replace(b.nodes[-1], inputs=(9, 6)))),
    "another omap": lambda b: replace(b, outputs=(replace(b.outputs[0], omap=(0,)),)),
    "a transposed product": lambda b: replace(
        b, nodes=(*b.nodes[:3], replace(b.nodes[3], op=Contract("mk,kn->nm")), *b.nodes[4:])
    ),
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_counts_changes_the_key(what: str) -> None:
    graph = rmsnorm_linear()
    block = graph.nodes[0].op
    assert isinstance(block, BlockGraph)
    assert key(replace(graph, nodes=(replace(graph.nodes[0], op=CHANGES[what](block)),))) != key(graph)
    assert key(replace(graph, inputs=("w", "x"))) != key(graph)
