"""The static memory plan: no two live buffers overlap, and the bound is a bound."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.codegen.memory import ALIGNMENT, Lifetime, MemoryPlan, lower_bound, plan_memory

lifetimes = st.lists(
    st.builds(
        lambda size, first, span: (size, first, first + span),
        st.integers(0, 5000),
        st.integers(0, 30),
        st.integers(0, 12),
    ),
    max_size=40,
).map(lambda rows: [Lifetime(f"b{i}", *row) for i, row in enumerate(rows)])


def overlapping(items: list[Lifetime], plan: MemoryPlan) -> list[tuple[str, str]]:
    return [
        (a.name, b.name)
        for a, b in itertools.combinations(items, 2)
        if a.nbytes
        and b.nbytes
        and a.first <= b.last
        and b.first <= a.last
        and plan.offsets[a.name] < plan.offsets[b.name] + b.nbytes
        and plan.offsets[b.name] < plan.offsets[a.name] + a.nbytes
    ]


@given(lifetimes)
@settings(max_examples=200, deadline=None)
def test_no_two_buffers_that_live_together_overlap(items: list[Lifetime]) -> None:
    plan = plan_memory(items)
    assert overlapping(items, plan) == []
    assert all(offset % ALIGNMENT == 0 for offset in plan.offsets.values())
    assert plan.offsets.keys() == {item.name for item in items}
    assert plan.lower_bound <= plan.total
    assert all(plan.offsets[item.name] + item.nbytes <= plan.total for item in items if item.nbytes)


@given(lifetimes)
@settings(max_examples=100, deadline=None)
def test_the_lower_bound_is_what_lives_at_the_worst_time(items: list[Lifetime]) -> None:
    times = range(60)
    live = [sum(-(-i.nbytes // 64) * 64 for i in items if i.first <= t <= i.last) for t in times]
    assert lower_bound(items) == max(live)


def test_a_chain_needs_two_buffers() -> None:
    items = [Lifetime(f"x{i}", 1000, i, i + 1) for i in range(20)]
    assert plan_memory(items).total == 2048


def test_buffers_that_live_at_different_times_share_bytes() -> None:
    plan = plan_memory([Lifetime("a", 64, 0, 0), Lifetime("b", 64, 1, 1)])
    assert plan.total == 64
    assert plan.offsets == {"a": 0, "b": 0}


def test_an_empty_plan_is_no_bytes() -> None:
    assert plan_memory([]).total == 0


def test_the_overlap_check_of_these_tests_sees_an_overlap() -> None:
    items = [Lifetime("a", 64, 0, 1), Lifetime("b", 64, 1, 2)]
    assert overlapping(items, MemoryPlan({"a": 0, "b": 32}, 128, 128, "planted")) == [("a", "b")]
