"""What a run says of its fused kernels, in JSON, on the console and on a page: proven, chosen or not, and why."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from pipeline.report.console import summary_lines
from pipeline.report.mugraph_drawing import STYLES
from pipeline.report.mugraph_page import LEGEND, page
from pipeline.report.summary import SubprogramSummary, SuperoptSummary
from pipeline.report.superopt_report import outcome_lines, subprogram_lines, superopt_summary
from pipeline.search.contest import MORE, Contest
from pipeline.space.partition import partition
from pipeline.superopt.mugraph.parse import from_text
from pipeline.superopt.rewrites import Rewrite
from pipeline.superopt.stage import Outcome, look_for_alternatives
from tests.report.test_summary import SUMMARY
from tests.search.contests import entered, measure
from tests.superopt.model_graphs import TARGET
from tests.superopt.stage_cases import RULES, Notes, Search, effort, fused, normalised


def told(made: Contest) -> SuperoptSummary:
    """Of a contest with its only alternative."""
    return superopt_summary(Outcome(tuple(entrant.alternative for entrant in made.entrants), 1.5), made)


def measured(*seconds: float | None) -> Contest:
    made = entered(fused())
    for number, one in enumerate(seconds):
        measure(made, number, one)
    return made


def without(search: Search, **tries: object) -> SuperoptSummary:
    """Where there is nothing to tune."""
    graph = normalised()
    outcome = look_for_alternatives(graph, partition(graph), TARGET, RULES, effort(**tries), search, Notes())
    return superopt_summary(outcome, entered())


def test_a_chosen_kernel_says_what_it_saves_and_what_proves_it() -> None:
    made = measured(4e-3, 3e-3, 5e-3)
    made.confirm(np.random.default_rng(0))
    summary = told(made)
    (one,) = summary.subprograms
    assert (one.chosen, one.chosen_uses, one.uses) == (True, 1, 1)
    assert (one.fused_ms, one.ordinary_ms) == (pytest.approx(5.0), pytest.approx(7.0))
    assert one.reason == "it takes 5 ms, and what it replaces 7 ms"
    assert summary.gained_ms == pytest.approx(2.0)
    (graph,) = one.graphs
    assert graph.full and graph.trials == 1 and graph.latency_ms == pytest.approx(5.0)
    assert from_text(graph.text) == made.entrants[0].alternative.finding.graphs[0].graph  # type: ignore[union-attr]
    assert "sum over" in one.specification
    lines = subprogram_lines(summary)
    assert "used: it takes 5 ms" in lines[0] and "3 programs enumerated (all), 1 proven" in lines[0]
    assert "proven by 4 tests, error at most 1e-20" in lines[1]


@pytest.mark.parametrize(
    ("seconds", "reason"),
    [
        ((4e-3, 3e-3, 8e-3), "it takes 8 ms, and what it replaces 7 ms"),
        ((4e-3, 3e-3), "it was not tuned within the budget"),
    ],
)
def test_a_kernel_that_is_not_used_says_why(seconds: tuple[float, ...], reason: str) -> None:
    summary = told(measured(*seconds))
    (one,) = summary.subprograms
    assert (one.chosen, one.reason) == (False, reason)
    assert summary.gained_ms == 0.0
    assert f"not used: {reason}" in subprogram_lines(summary)[0]


def test_of_a_faster_kernel_that_whole_modules_decided_against_that_is_the_reason() -> None:
    made = measured(4e-3, 3e-3, 6.9e-3)
    assert "used: it takes 6.9 ms" in subprogram_lines(told(made))[0]
    made.factors = {2: MORE}
    assert (
        "not used: it takes 6.9 ms, and what it replaces 7 ms, but the whole module is faster without it"
        in (subprogram_lines(told(made))[0])
    )


@pytest.mark.parametrize(("seconds", "mark"), [(2e-3, "used: 2 ms"), (4e-3, "not used: 4 ms")])
def test_a_rewrite_says_how_many_kernels_it_leaves_and_what_the_roofline_finds(seconds: float, mark: str) -> None:
    outcome = Outcome(rewrites=(Rewrite("MergeProducts", 7, 5, 3e-3, seconds),))
    summary = superopt_summary(outcome, entered())
    said = f"MergeProducts: 5 kernels in place of 7; {mark} at the roofline, 3 ms without it"
    assert subprogram_lines(summary) == [said]
    assert said in page("gmm", summary)


def test_a_kernel_whose_candidates_all_failed_says_of_what() -> None:
    made = measured(4e-3, 3e-3, None)
    made.states[2].failures["wrong"] = 3
    made.states[2].details.append('memory: Traceback (most recent call last):\n  File "a.py"\nMemoryError: no room\n')
    assert "failed: memory: MemoryError: no room" in told(made).subprograms[0].reason
    made.states[2].details.append("wrong: y[0] is 7\nand more")
    (one,) = told(made).subprograms
    assert one.reason == "3 of its candidates failed: wrong: y[0] is 7"


@pytest.mark.parametrize(
    ("search", "tries", "reason"),
    [
        (Search(), {}, "nothing is left"),
        (Search(raises=ValueError("no luck")), {}, "the search has failed: ValueError: no luck"),
        (Search(), {"seconds": 0.0}, "the time was over"),
    ],
)
def test_where_nothing_is_found_the_reason_is_told(search: Search, tries: dict[str, float], reason: str) -> None:
    (one,) = without(search, **tries).subprograms
    assert (one.chosen, one.reason, one.graphs, one.fused_ms) == (False, reason, (), None)
    assert (one.search_seconds is None) == (reason != "nothing is left")


def test_the_log_says_how_much_was_searched_and_found() -> None:
    graph = normalised()
    notes = Notes()
    for known in ("", " (1 known from earlier runs)"):
        outcome = look_for_alternatives(
            graph, partition(graph), TARGET, RULES, effort(), Search((fused(),)), notes
        )  # fmt: skip
        (line,) = outcome_lines(replace(outcome, seconds=2.0))
        assert line == (
            f"superoptimizer: 1 of 1 subprogram searched in 2.0 s{known}, 1 µGraph proven, 1 alternative to tune"
        )
    assert outcome_lines(Outcome()) == []


def test_the_end_of_a_run_has_a_line_for_each_searched_subprogram_and_one_for_the_rest() -> None:
    summary = told(measured(4e-3, 3e-3, 5e-3))
    skipped = summary.subprograms[0].model_copy(update={"search_seconds": None, "graphs": (), "chosen": False})
    whole = SUMMARY.model_copy(
        update={"superopt": summary.model_copy(update={"subprograms": (*summary.subprograms, skipped, skipped)})}
    )
    lines = summary_lines(whole)
    assert sum(line.startswith("fused kernel of") for line in lines) == 1
    assert "2 further subprograms were not searched" in lines
    assert not any("fused kernel" in line for line in summary_lines(SUMMARY))


class Balanced(HTMLParser):
    """Refuses a page whose elements are not closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        """Nothing is left open."""

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def shown(summary: SuperoptSummary, workload: str = "gmm") -> str:
    text = page(workload, summary)
    parser = Balanced()
    parser.feed(text)
    parser.close()
    assert parser.open == []
    return text


def test_the_page_draws_each_graph_and_shows_its_text_and_what_was_counted() -> None:
    made = measured(4e-3, 3e-3, 5e-3)
    made.confirm(np.random.default_rng(0))
    text = shown(told(made))
    assert text.count("<svg") == 1 and text.count("<details open>") == 1
    assert "topologies" in text and "5 ms measured" in text and "proven by 5 tests, one of them at its full" in text
    assert "<b>Used</b>: it takes 5 ms" in text


def test_the_page_says_what_the_boxes_of_each_colour_are() -> None:
    text = shown(told(measured(4e-3, 3e-3, 5e-3)))
    assert set(LEGEND) == set(STYLES)
    for style, (fill, line) in STYLES.items():
        assert f'background: {fill}; border-color: {line}">{style}</dt><dd>{LEGEND[style][:20]}' in text


def test_the_page_of_a_model_with_a_name_like_a_tag_is_still_a_page() -> None:
    summary = without(Search(raises=ValueError("<script>")))
    text = shown(summary, "<img src=x>")
    assert "<script" not in text and "<img" not in text


def test_a_graph_that_cannot_be_drawn_is_shown_as_text() -> None:
    summary = told(measured(4e-3, 3e-3, 5e-3))
    one = summary.subprograms[0]
    broken = one.graphs[0].model_copy(update={"text": "mugraph <nothing>"})
    odd: SubprogramSummary = one.model_copy(update={"graphs": (broken,)})
    text = shown(summary.model_copy(update={"subprograms": (odd,)}))
    assert "It cannot be drawn" in text and "mugraph &lt;nothing&gt;" in text
