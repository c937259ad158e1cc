"""Scratch: a plan holds in a run of all loops, its order has the least peak, and its size is near that."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings

from pipeline.errors import CheckError
from pipeline.superopt.mugraph.builder import MuGraphBuilder
from pipeline.superopt.mugraph.check import check, seen_through
from pipeline.superopt.mugraph.graph import (
    Accumulate,
    BlockGraph,
    Map,
    RescaledSum,
    Running,
    Scalar,
    Squeeze,
    Unsqueeze,
    depths,
)
from pipeline.superopt.mugraph.scratch import ScratchPlan, check_scratch, live_bytes, plan_scratch
from pipeline.superopt.mugraph.shapes import shapes
from pipeline.superopt.proof.mirage_json import import_mirage, input_shapes, read_mirage
from tests.superopt.expert_mugraphs import EXPERT, EXPERT_SHAPES, online_attention
from tests.superopt.random_mugraphs import RandomMuGraph, mugraphs

SAVED = sorted((Path(__file__).parents[1] / "data").glob("*.json"))


class Run:
    """A block run on a plan: each byte holds whose tile it is of, and which version; loops make two iterations."""

    def __init__(self, block: BlockGraph, sizes: Sequence[int], plan: ScratchPlan, inlined: frozenset[int]) -> None:
        self.block, self.sizes, self.plan, self.inlined = block, sizes, plan, inlined
        self.count, self.loops, self.depth = len(block.inputs), len(block.loops), depths(block)
        self.memory: dict[int, tuple[str, int]] = {}
        self.version = itertools.count()
        self.held: dict[tuple[str, int], int] = {}
        self.before = dict(plan.before)
        self.deeper = {i for v in plan.order for i in self.operands(v) if self.runs(v) > self.depth[i]}
        self.walk(0)

    def operands(self, value: int) -> list[int]:
        found = []
        for i in self.block.nodes[value - self.count].inputs:
            if i >= self.count and (i in self.inlined or isinstance(self.op(i), Scalar)):
                found += self.operands(i)
            else:
                found.append(i)
        return found

    def op(self, value: int):  # type: ignore[no-untyped-def]  # an operator
        return self.block.nodes[value - self.count].op

    def runs(self, value: int) -> int:
        return max((self.depth[i] for i in self.operands(value)), default=0)

    def maximum(self, value: int) -> int:
        return seen_through(self.block, self.block.nodes[value - self.count].inputs[1])

    def place(self, kind: str, value: int) -> range | None:
        at = self.plan.offsets[value] if kind == "tile" else self.before[value]
        return None if at is None else range(at, at + self.sizes[value])

    def write(self, kind: str, value: int) -> None:
        if (place := self.place(kind, value)) is not None:
            assert place.stop <= self.plan.size
            self.held[kind, value] = next(self.version)
            self.memory.update((byte, (kind, self.held[kind, value])) for byte in place)

    def holds(self, kind: str, value: int) -> bool:
        place = self.place(kind, value)
        return place is None or ((kind, value) in self.held
                                 and all(self.memory[b] == (kind, self.held[kind, value]) for b in place))  # fmt: skip

    def walk(self, level: int) -> None:
        for value in range(self.count):
            if self.depth[value] == level:
                self.held.pop(("tile", value), None)
        self.phase(level)
        if level == self.loops:
            return
        for value in range(self.count):
            if self.depth[value] == level and value in self.deeper and ("tile", value) not in self.held:
                self.write("tile", value)
        own = [
            v
            for v in self.plan.order
            if isinstance(self.op(v), Accumulate | Running | RescaledSum) and self.op(v).level == level
        ]
        for value in own:
            self.write("tile", value)
        for _ in range(2):
            self.walk(level + 1)
        self.phase(2 * self.loops - level)

    def phase(self, phase: int) -> None:
        for value in (v for v, p in zip(self.plan.order, self.plan.phases, strict=True) if p == phase):
            self.run(value)

    def run(self, value: int) -> None:
        operands, op = self.operands(value), self.op(value)
        for i in operands:
            if i < self.count and ("tile", i) not in self.held:
                self.write("tile", i)
            assert self.holds("tile", i), f"v{i} is lost before v{value}"
        if isinstance(op, RescaledSum):
            assert self.holds("before", self.maximum(value)), "what the maximum was before is lost"
        if isinstance(op, Accumulate | Running | RescaledSum):
            assert self.holds("tile", value), f"v{value} is lost between iterations"
        if isinstance(op, Running) and value in self.before:
            self.write("before", value)
            assert self.holds("tile", value)
        self.write("tile", value)
        if isinstance(op, RescaledSum):
            assert self.holds("before", self.maximum(value))
        over = [i for i in operands if self.place("tile", i) == self.place("tile", value)]
        allowed = over[:1] if isinstance(op, Map | Squeeze | Unsqueeze) else []
        for i in operands:
            assert i in allowed or self.holds("tile", i), f"v{value} is written over its operand v{i}"


def _blocks(made: RandomMuGraph):  # type: ignore[no-untyped-def]  # blocks with the sizes of their tiles
    found = shapes(made.graph, made.inputs, made.extents)
    for node, block in zip(made.graph.nodes, found.blocks, strict=True):
        if isinstance(node.op, BlockGraph) and block is not None:
            yield node.op, block.tile_bytes(1)


@given(mugraphs(kernels=2, steps=8))
@settings(max_examples=60, deadline=None)
def test_no_tile_is_lost_while_it_is_needed(made: RandomMuGraph) -> None:
    for block, sizes in _blocks(made):
        plan = plan_scratch(block, sizes, align=1)
        Run(block, sizes, plan, frozenset())
        assert plan.peak <= plan.size <= sum(sizes) + sum(sizes[value] for value, _ in plan.before)


@given(mugraphs(kernels=2, steps=8))
@settings(max_examples=30, deadline=None)
def test_what_is_computed_where_it_is_read_keeps_its_operands_alive(made: RandomMuGraph) -> None:
    for block, sizes in _blocks(made):
        count, outputs = len(block.inputs), {out.value for out in block.outputs}
        inlined = frozenset(v for v, node in enumerate(block.nodes, count) if isinstance(node.op, Map)) - outputs
        Run(block, sizes, plan_scratch(block, sizes, inlined=inlined, align=1), inlined)


@given(mugraphs(kernels=1, steps=4))
@settings(max_examples=30, deadline=None)
def test_no_other_order_has_a_smaller_peak(made: RandomMuGraph) -> None:
    for block, sizes in _blocks(made):
        plan = plan_scratch(block, sizes, align=1)
        assert plan.exact
        if len(plan.order) > 6:
            continue
        peaks = []
        for order in itertools.permutations(plan.order):
            try:
                peaks.append(plan_scratch(block, sizes, order=order, align=1).peak)
            except CheckError:
                continue
        assert min(peaks) == plan.peak


@pytest.mark.parametrize("name", EXPERT)
def test_the_plan_of_what_an_expert_writes_needs_no_more_than_what_is_alive(name: str) -> None:
    graph, found = EXPERT[name], shapes(EXPERT[name], *EXPERT_SHAPES[name])
    block, tiles = graph.nodes[0].op, found.blocks[0]
    assert isinstance(block, BlockGraph) and tiles is not None
    plan = plan_scratch(block, tiles.tile_bytes(), align=1)
    assert plan.size == plan.peak == live_bytes(block, tiles.tiles)
    aligned = plan_scratch(block, tiles.tile_bytes())
    assert all(at is None or at % 64 == 0 for at in aligned.offsets)
    check_scratch(graph, found, aligned.size)


@pytest.mark.parametrize("path", SAVED, ids=lambda path: path.stem)
def test_a_saved_mugraph_of_another_system_runs_in_what_is_planned_for_it(path: Path) -> None:
    for saved in read_mirage(path):
        whole = input_shapes(saved)
        names = [f"x{i}" for i in range(len(whole))]
        graph = import_mirage(saved, names)
        check(graph, {name: len(shape) for name, shape in zip(names, whole, strict=True)})
        found = shapes(graph, dict(zip(names, whole, strict=True)))
        for node, tiles in zip(graph.nodes, found.blocks, strict=True):
            if isinstance(node.op, BlockGraph) and tiles is not None:
                plan = plan_scratch(node.op, tiles.tile_bytes())
                small = [min(size, 64) for size in tiles.tile_bytes()]
                Run(node.op, small, plan_scratch(node.op, small, align=1), frozenset())
                assert plan.exact and plan.size < sum(tiles.tile_bytes())


def test_the_running_maximum_and_what_it_was_before_outlive_the_iteration() -> None:
    block = online_attention().nodes[0].op
    assert isinstance(block, BlockGraph)
    plan = plan_scratch(block, [0, 0, 0, 8, 1, 1, 8, 8, 1, 1, 8, 8, 8], align=1)
    # always the maximum (1), both sums (1, 8); at the second product: its operand and result (16), the maximum before
    assert plan.peak == 10 + 16 + 1
    assert [value for value, _ in plan.before] == [5]


def test_an_operator_that_only_the_end_reads_waits_for_it() -> None:
    b = MuGraphBuilder()
    x, y = b.input("x", 1), b.input("y", 1)
    with b.kernel(loops={"l": None}) as k:
        bias = k.load(y)
        shifted = k.exp(bias)
        total = k.accumulate("sum", k.load(x, fmap={"l": 0}))
        z = k.store(total + shifted)
    (block,) = (node.op for node in b.finish(z).nodes)
    assert isinstance(block, BlockGraph)
    plan = plan_scratch(block, [4] * 5, align=1)
    assert (plan.order, plan.phases, plan.peak) == ((3, 2, 4), (1, 2, 2), 8)


def test_a_block_of_many_operators_is_ordered_greedily_and_still_holds() -> None:
    b = MuGraphBuilder()
    x = b.input("x", 1)
    with b.kernel() as k:
        tile = k.load(x)
        parts = [k.exp(tile * float(i)) for i in range(17)]
        while len(parts) > 1:
            parts.append(parts.pop(0) + parts.pop(0))
        y = k.store(parts[0])
    (block,) = (node.op for node in b.finish(y).nodes)
    assert isinstance(block, BlockGraph)
    sizes = [4] * (1 + len(block.nodes))
    plan = plan_scratch(block, sizes, align=1)
    assert not plan.exact
    Run(block, sizes, plan, frozenset())
    assert plan.peak < 4 * 12


@pytest.mark.parametrize("order", [(2,), (3, 2), (2, 2, 3)])
def test_an_order_that_is_none_of_the_block_is_refused(order: tuple[int, ...]) -> None:
    graph = EXPERT["split_product"]
    with pytest.raises(CheckError, match="scratch, order"):
        plan_scratch(graph.nodes[0].op, [4, 4, 4, 4], order=order)  # type: ignore[arg-type]


def test_a_phase_that_comes_before_an_earlier_one_is_refused() -> None:
    block = EXPERT["rmsnorm_linear"].nodes[0].op
    assert isinstance(block, BlockGraph)
    with pytest.raises(CheckError, match="phases"):
        plan_scratch(block, [4] * 11, order=(2, 3, 4, 8, 5, 6, 9, 10))


def test_tiles_that_do_not_fit_are_refused() -> None:
    graph = EXPERT["rmsnorm_linear"]
    with pytest.raises(CheckError, match=r"kernel 0.*of 2048"):
        check_scratch(graph, shapes(graph, *EXPERT_SHAPES["rmsnorm_linear"]), 2048)


def test_the_run_of_these_tests_notices_a_tile_that_is_written_over() -> None:
    block = EXPERT["rmsnorm_linear"].nodes[0].op
    assert isinstance(block, BlockGraph)
    sizes = [4] * 11
    plan = plan_scratch(block, sizes, align=1)
    lost = replace(plan, offsets=(*plan.offsets[:6], plan.offsets[4], *plan.offsets[7:]))
    with pytest.raises(AssertionError, match="lost"):
        Run(block, sizes, lost, frozenset())
