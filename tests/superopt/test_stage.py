"""The stage that looks for fused kernels: what it searches, remembers and lowers, and that nothing stops a run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pipeline.ir.graph import Graph
from pipeline.ir.graph_builder import GraphBuilder
from pipeline.ir.program import Program, Seq
from pipeline.ir.target import Target
from pipeline.schedule.sketch import Sketch
from pipeline.space.partition import partition
from pipeline.superopt import stage
from pipeline.superopt.enumeration.finding import Finding
from pipeline.superopt.mugraph.builder import MuGraphBuilder
from pipeline.superopt.mugraph.graph import MuGraph
from pipeline.superopt.spec import Spec
from pipeline.superopt.stage import Effort, Outcome, look_for_alternatives
from pipeline.superopt.subprograms import subprograms
from tests.superopt.model_graphs import TARGET, bert
from tests.superopt.stage_cases import RULES, Notes, Search, effort, finding, fused, normalised, unlooped


def outcome(graph: Graph, search: Search, notes: Notes | None = None, tries: Effort | None = None) -> Outcome:
    return look_for_alternatives(
        graph, partition(graph), TARGET, RULES, tries or effort(), search, Notes() if notes is None else notes
    )


def test_what_is_found_is_lowered_and_scheduled_by_the_rules() -> None:
    made = outcome(normalised(), Search((fused(),)))
    (one,) = made.alternatives
    assert one.reason == "" and not one.known and len(one.subprogram.uses) == 1
    assert one.sketches and {lowered.graph for lowered in one.sketches} == {0}
    assert all(lowered.sketch.trace for lowered in one.sketches), "the rules have scheduled what is inside"
    arguments = {buffer.name for buffer in one.sketches[0].sketch.program.buffers if buffer.role != "intermediate"}
    assert arguments == {"x0", "x1", "out0"}, "named as those of the task"


def test_a_second_run_finds_it_in_the_notes() -> None:
    notes, search = Notes(), Search((fused(),))
    first = outcome(normalised(), search, notes)
    second = outcome(normalised(), search, notes)
    assert len(search.given) == 1
    assert second.alternatives[0].known and not first.alternatives[0].known
    assert second.alternatives[0].finding == first.alternatives[0].finding
    assert [one.key for one in second.alternatives[0].sketches] == [one.key for one in first.alternatives[0].sketches]


@pytest.mark.parametrize("other", [effort(version="2"), effort(seconds=30.0)])
def test_another_version_or_budget_is_searched_anew(other: Effort) -> None:
    notes, search = Notes(), Search((fused(),))
    outcome(normalised(), search, notes)
    outcome(normalised(), search, notes, other)
    assert len(search.given) == 2


def test_the_speed_of_the_machine_at_the_moment_does_not_matter_to_the_notes() -> None:
    notes, search = Notes(), Search((fused(),))
    outcome(normalised(), search, notes)
    parts = partition(normalised())
    slow = replace(TARGET, clock_ghz=1.1, bandwidth_gbs=3.0)
    again = look_for_alternatives(normalised(), parts, slow, RULES, effort(), search, notes)
    assert again.alternatives[0].known


def test_a_note_that_cannot_be_read_is_searched_again_and_replaced() -> None:
    notes, search = Notes(), Search((fused(),))
    outcome(normalised(), search, notes)
    (key,) = notes.kept
    whole = notes.kept[key]
    for broken in ("{", "{}", whole.replace("accumulate", "acumulate")):
        notes.kept[key] = broken
        assert not outcome(normalised(), search, notes).alternatives[0].known
        assert notes.kept[key] == whole


def test_nothing_is_searched_once_the_time_is_over() -> None:
    search = Search((fused(),))
    made = outcome(normalised(), search, tries=effort(seconds=0.0))
    assert search.given == [] and [one.reason for one in made.alternatives] == ["the time was over"]
    assert not made.interrupted


def test_a_second_run_does_not_go_on_where_the_first_had_no_time_left() -> None:
    notes = Notes()

    class Slow(Search):
        def __call__(self, spec: Spec, seconds: float) -> Finding:
            self.given.append(seconds)
            return replace(finding(spec), seconds=40.0)

    first = Slow()
    outcome(two_of_them(), first, notes, effort(seconds=30.0))
    assert len(first.given) == 2, "none of them took its time in fact"
    again = outcome(two_of_them(), Slow(), notes, effort(seconds=30.0))
    assert [one.known for one in again.alternatives] == [True, True]
    kept = dict(list(notes.kept.items())[:1])
    second = Slow()
    third = outcome(two_of_them(), second, Notes(kept), effort(seconds=30.0))
    assert second.given == [] and third.alternatives[1].reason == "the time was over"


def test_no_search_is_given_more_than_is_left_and_the_most_promising_comes_first() -> None:
    search = Search()
    made = outcome(bert(), search, tries=effort(seconds=5.0))
    assert len(search.given) > 3 and max(search.given) <= 5.0
    ranked = [one.task.key for one in subprograms(bert(), partition(bert()), TARGET)]
    assert [one.subprogram.task.key for one in made.alternatives] == ranked
    assert all(one.reason == "nothing is left" for one in made.alternatives if one.finding)


def test_what_comes_next_is_what_saves_most_beside_what_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = bert(hidden=128, sequence=96, positions=96)
    whole = subprograms(graph, partition(graph), TARGET)[0]
    ready = (stage.Lowered(Sketch(Program("p", (), Seq(()))), "k", 0),)

    def lowered(made: stage.Alternative, *rest: object) -> stage.Alternative:
        return replace(made, sketches=ready if made.subprogram.task.key == whole.task.key else ())

    monkeypatch.setattr(stage, "_lowered", lowered)
    found = outcome(graph, Search((fused(),)), tries=effort(seconds=1000.0)).alternatives
    assert found[0].subprogram.task.key == whole.task.key
    beside = [one.subprogram.promise_beside([whole]) for one in found[1:]]
    assert beside == sorted(beside, reverse=True)
    parts = [place for place, one in enumerate(found[1:]) if whole.whole_of(one.subprogram)]
    alone = [one.subprogram.promise for one in found[1:]]
    assert parts and all(beside[place] < alone[place] for place in parts), "some of it is there"
    part = found[1 + parts[0]].subprogram
    assert part.promise_beside([whole, whole]) < beside[parts[0]], "the more there are, the likelier one is used"


def test_enough_alternatives_end_the_search() -> None:
    search = Search((fused(),))
    graph = two_of_them()
    made = outcome(graph, search, tries=effort(subprograms=1))
    ready = [one for one in made.alternatives if one.sketches]
    assert len(ready) == 1 and len(search.given) < len(made.alternatives)
    assert any("1 alternatives were found before it" in one.reason for one in made.alternatives)


def two_of_them() -> Graph:
    """Two products after two different normalisations."""
    b = GraphBuilder()
    ends = []
    for number, width in enumerate((64, 32)):
        x, w = b.input(f"x{number}", (16, width), "float32"), b.input(f"w{number}", (width, 48), "float32")
        mean = b.elementwise("mul", b.reduce("sum", b.elementwise("mul", x, x), [1], True), b.scalar(1 / width, x))
        ends.append(b.matmul(b.elementwise("mul", x, b.elementwise("rsqrt", mean)), w))
    return b.finish([("y", ends[0]), ("z", ends[1])])


def test_a_search_that_fails_costs_its_own_alternative_only() -> None:
    search = Search(raises=AssertionError("planted"))
    made = outcome(two_of_them(), search)
    assert len(search.given) == len(made.alternatives) >= 2
    assert all("the search has failed: AssertionError: planted" in one.reason for one in made.alternatives)
    assert not made.interrupted


def test_an_interrupt_ends_the_stage_with_what_there_is() -> None:
    notes = Notes()

    class Impatient(Search):
        def __call__(self, spec: Spec, seconds: float) -> Finding:
            if self.given:
                raise KeyboardInterrupt
            return super().__call__(spec, seconds)

    made = outcome(two_of_them(), Impatient((fused(),)), notes)
    assert made.interrupted and len(made.alternatives) == 1 and made.alternatives[0].sketches
    assert len(notes.kept) == 1


def test_what_an_interrupted_search_has_found_is_used_but_not_noted() -> None:
    notes = Notes()

    class Interrupted(Search):
        def __call__(self, spec: Spec, seconds: float) -> Finding:
            return replace(finding(spec, fused()), interrupted=True)

    made = outcome(two_of_them(), Interrupted(), notes)
    assert made.interrupted and len(made.alternatives) == 1 and made.alternatives[0].sketches
    assert notes.kept == {}


def test_a_graph_that_cannot_be_lowered_is_left_out_with_the_reason() -> None:
    b = MuGraphBuilder()
    x, w = b.input("x", rank=2), b.input("w", rank=2)
    with b.kernel(grid={"n": None}) as k:
        y = k.store(k.contract("mk,nk->mn", k.load(x), k.load(w, imap={"n": 0})), omap={"n": "stack"})
    search = Search((b.finish(y),))
    (one,) = outcome(normalised(), search).alternatives
    assert one.sketches == () and one.reason.startswith("none of its µGraphs could be lowered")
    both = outcome(normalised(), Search((b.finish(y), fused()))).alternatives[0]
    assert {lowered.graph for lowered in both.sketches} == {1} and both.reason == ""


def test_a_rule_that_breaks_on_a_fused_kernel_costs_that_kernel_only() -> None:
    class Broken:
        def apply(self, sketch: Sketch, block: str, target: Target) -> list[Sketch]:
            raise KeyError("planted")

    graph = normalised()
    made = look_for_alternatives(
        graph, partition(graph), TARGET, (*RULES, Broken()), effort(), Search((fused(),)), Notes()
    )
    (one,) = made.alternatives
    assert one.sketches == () and "planted" in one.reason and not made.interrupted


def test_a_defect_of_the_lowering_costs_its_own_graph_only(monkeypatch: pytest.MonkeyPatch) -> None:
    real = stage.lower_mugraph

    def broken(spec: Spec, graph: MuGraph, *rest: object) -> Sketch:
        assert graph != replace(fused(2.0), inputs=graph.inputs), "planted"
        return real(spec, graph, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(stage, "lower_mugraph", broken)
    (one,) = outcome(normalised(), Search((fused(2.0), unlooped()))).alternatives
    assert {lowered.graph for lowered in one.sketches} == {1}
    (one,) = outcome(normalised(), Search((fused(2.0),))).alternatives
    assert one.sketches == () and "AssertionError: planted" in one.reason


def test_of_graphs_that_cut_their_operands_alike_the_first_is_tuned() -> None:
    alike = fused(2.0)
    made = outcome(normalised(), Search((fused(), alike, unlooped()))).alternatives[0]
    assert {lowered.graph for lowered in made.sketches} == {0, 2}
    assert made.finding is not None and len(made.finding.graphs) == 3


def test_a_graph_without_subprograms_is_not_searched() -> None:
    b = GraphBuilder()
    x, w = b.input("x", (16, 64), "float32"), b.input("w", (64, 48), "float32")
    search = Search()
    made = outcome(b.finish([("y", b.matmul(x, w))]), search)
    assert made.alternatives == () and search.given == []
