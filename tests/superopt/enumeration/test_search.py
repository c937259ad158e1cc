"""The superoptimizer finds what an expert would write, proves it, and always ends."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pipeline.ir.target import Cache, Target
from pipeline.superopt.enumeration.search import Found, superoptimize
from pipeline.superopt.goal.goal import Goal
from pipeline.superopt.goal.term import Factor
from pipeline.superopt.mugraph.graph import Accumulate, BlockGraph, Contract, Map, block_graphs
from pipeline.superopt.mugraph.text import to_text
from pipeline.superopt.spec import Spec
from tests.superopt.specs import Writer, gqa, rmsnorm_linear

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


def texts(found: Found) -> list[str]:
    return [to_text(one.graph) for one in found.graphs]


def small_softmax_product() -> Spec:
    """softmax(X) W: axes m, k, n."""
    w = Writer((8, 96, 40))
    x, weight = w.input("x", (0, 1)), w.input("w", (1, 2))
    power = w.apply("exp", w.apply("sub", x, w.reduce("max", x, (1,))))
    return w.finish(w.product(w.apply("div", power, w.reduce("sum", power, (1,))), weight, (1,)))


def dot_of_rows() -> Spec:
    """The sum over k of x * y: axes m, k."""
    w = Writer((8, 16))
    return w.finish(w.reduce("sum", w.apply("mul", w.input("x", (0, 1)), w.input("y", (0, 1))), (1,)))


def twice_exponentiated() -> Spec:
    w = Writer((8, 96))
    return w.finish(w.reduce("sum", w.apply("exp", w.apply("exp", w.input("x", (0, 1)))), (1,)))


def test_the_result_is_determined_by_the_seed() -> None:
    first, second = (superoptimize(small_softmax_product(), TARGET, seconds=1000, seed=3, patience=6) for _ in range(2))
    assert texts(first) == texts(second) and first.statistics == second.statistics
    other = superoptimize(small_softmax_product(), TARGET, seconds=1000, seed=4, patience=6)
    assert texts(first)[0] == texts(other)[0], "another random point, the same program"


def test_an_exhausted_search_finds_the_same_in_processes_of_its_own() -> None:
    alone = superoptimize(dot_of_rows(), TARGET, seconds=1000)
    team = superoptimize(dot_of_rows(), TARGET, seconds=1000, workers=2)
    assert alone.exhausted and team.exhausted
    assert texts(alone) == texts(team)


def test_a_second_is_enough_to_end_with_something() -> None:
    begin = time.monotonic()
    found = superoptimize(gqa(), TARGET, seconds=1)
    assert not found.exhausted and found.seconds <= time.monotonic() - begin
    assert found.graphs or found.reason


def test_no_time_at_all_gives_a_reason() -> None:
    found = superoptimize(gqa(), TARGET, seconds=0)
    assert found.graphs == () and "budget" in found.reason


def test_an_interrupt_gives_what_is_there() -> None:
    calls = 0

    def goals(spec: Spec, parts: Mapping[int, tuple[str, ...]]) -> Goal:
        nonlocal calls
        calls += 1
        if calls > 2:
            raise KeyboardInterrupt
        return Goal.of(spec, parts)

    found = superoptimize(rmsnorm_linear(), TARGET, seconds=60, goals=goals)
    assert found.interrupted and not found.exhausted
    assert found.graphs and found.graphs[0].proof.equal


def test_an_oracle_that_never_knows_prunes_nothing_and_the_search_still_ends() -> None:
    """It is far slower: what the oracle does not know is taken up last, and only so much of it."""
    found = superoptimize(dot_of_rows(), TARGET, seconds=10, goals=lambda spec, parts: Blind(), patience=4)
    assert found.statistics.pruned_expression == 0 < found.statistics.unknown
    assert found.graphs and found.graphs[0].proof.equal


def test_what_cannot_be_proven_is_not_searched_and_the_reason_is_given() -> None:
    found = superoptimize(twice_exponentiated(), TARGET, seconds=60)
    assert found.graphs == () and found.exhausted
    assert "exponential" in found.reason


def test_no_exponential_is_taken_of_what_has_no_bound() -> None:
    """exp(s) / sum exp(s) is equal to a softmax and proven to be, but overflows: the maximum stays."""
    found = superoptimize(small_softmax_product(), TARGET, seconds=20, patience=10)
    assert len(found.graphs) > 2
    for one in found.graphs:
        assert "max" in to_text(one.graph)
        for block in block_graphs(one.graph):
            for node in block.nodes:
                if node.op == Map("exp"):
                    operand = block.nodes[node.inputs[0] - len(block.inputs)]
                    assert operand.op == Map("sub")


@dataclass(slots=True)
class Blind:
    """An oracle to which all terms are different, and that knows of none whether it contributes."""

    _everything: dict[object, int] = field(default_factory=dict)

    def _class(self, key: object) -> int:
        return self._everything.setdefault(key, len(self._everything))

    def leaf(self, number: int, factors: Iterable[Factor]) -> int:
        return self._class(("leaf", number, frozenset(factors)))

    def number(self, value: float) -> int:
        return self._class(("number", value))

    def apply(self, fn: str, args: Sequence[int]) -> int:
        return self._class((fn, tuple(args)))

    def reduce(self, kind: str, factors: Iterable[Factor], value: int) -> int:
        return self._class((kind, frozenset(factors), value))

    def contributes(self, value: int) -> bool | None:
        return None
