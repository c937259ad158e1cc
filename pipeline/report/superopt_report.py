"""What the superoptimizer did, for people and programs: what was searched, proven and chosen, and why or why not."""

from __future__ import annotations

import math

from pipeline.errors import counted
from pipeline.report.summary import MuGraphSummary, RewriteSummary, SubprogramSummary, SuperoptSummary
from pipeline.search.contest import Contest, Entrant
from pipeline.superopt.enumeration.finding import Finding
from pipeline.superopt.mugraph.text import to_text
from pipeline.superopt.rewrites import Rewrite
from pipeline.superopt.spec_text import to_text as spec_text
from pipeline.superopt.stage import Alternative, Outcome

UNTUNED = "it was not tuned within the budget"


def outcome_lines(outcome: Outcome) -> list[str]:
    """One line for the log once the search has ended; nothing where there was nothing to search."""
    if not outcome.alternatives:
        return []
    searched = [one for one in outcome.alternatives if one.finding is not None]
    ready = sum(1 for one in outcome.alternatives if one.sketches)
    proven = sum(len(one.finding.graphs) for one in searched if one.finding is not None)
    known = sum(1 for one in searched if one.known)
    return [
        f"superoptimizer: {len(searched)} of {counted(len(outcome.alternatives), 'subprograms')} searched in "
        f"{outcome.seconds:.1f} s" + (f" ({known} known from earlier runs)" if known else "")
        + f", {counted(proven, 'µGraphs')} proven, {counted(ready, 'alternatives')} to tune"
    ]  # fmt: skip


def superopt_summary(outcome: Outcome, contest: Contest) -> SuperoptSummary:
    """The section of summary.json."""
    entrants = {id(entrant.alternative): entrant for entrant in contest.entrants}
    chosen = contest.chosen_uses()
    subprograms = tuple(
        _subprogram(one, entrants.get(id(one)), contest, chosen) for one in outcome.alternatives
    )  # fmt: skip
    bests = [state.best for state in contest.states]
    alone = contest.seconds([math.inf if state.optional else state.best for state in contest.states])
    gained = alone - contest.seconds(bests)
    return SuperoptSummary(
        seconds=outcome.seconds, gained_ms=gained * 1e3 if math.isfinite(gained) else None, subprograms=subprograms,
        rewrites=tuple(map(_rewrite, outcome.rewrites)),
    )  # fmt: skip


def _rewrite(one: Rewrite) -> RewriteSummary:
    return RewriteSummary(
        name=one.name, used=one.used, kernels=one.kernels, rewritten_kernels=one.rewritten_kernels,
        roofline_ms=one.seconds * 1e3, rewritten_roofline_ms=one.rewritten_seconds * 1e3,
    )  # fmt: skip


def _subprogram(
    one: Alternative, entrant: Entrant | None, contest: Contest, chosen: dict[int, int]
) -> SubprogramSummary:
    finding = one.finding
    fused = math.inf if entrant is None else contest.fused_seconds(entrant)
    ordinary = math.inf if entrant is None else contest.ordinary_seconds(entrant)
    uses = len(one.subprogram.uses)
    used = 0
    if entrant is not None:
        used = 0 if entrant.inside and fused >= ordinary else chosen.get(entrant.state, 0)
    return SubprogramSummary(
        name=one.subprogram.task.name, uses=uses, chosen_uses=used, specification=spec_text(one.subprogram.spec),
        search_seconds=None if finding is None else finding.seconds, known=one.known,
        complete=finding is not None and finding.complete,
        statistics={} if finding is None else dict(finding.statistics),
        graphs=() if finding is None else _graphs(one, finding, entrant, contest),
        fused_ms=_ms(fused), ordinary_ms=_ms(ordinary), chosen=used > 0,
        reason=_reason(one, entrant, contest, fused, ordinary, used, uses),
    )  # fmt: skip


def _graphs(
    one: Alternative, finding: Finding, entrant: Entrant | None, contest: Contest
) -> tuple[MuGraphSummary, ...]:
    found = []
    for number, proven in enumerate(finding.graphs):
        own = [place for place, lowered in enumerate(one.sketches) if lowered.graph == number]
        full = None if entrant is None else contest.full.get((entrant.state, number))
        trials, seconds = (0, math.inf) if entrant is None else contest.measured(entrant, own)
        found.append(MuGraphSummary(
            text=to_text(proven.graph), predicted_ms=proven.seconds * 1e3, tests=proven.tests, bound=proven.bound,
            assumptions=proven.assumptions, full=full is not None and full.equal, sketches=len(own), trials=trials,
            latency_ms=_ms(seconds),
        ))  # fmt: skip
    return tuple(found)


def _reason(
    one: Alternative, entrant: Entrant | None, contest: Contest, fused: float, ordinary: float, used: int, uses: int
) -> str:
    if entrant is None:
        return one.reason or "nothing better was found"
    if not math.isfinite(fused):
        state = contest.states[entrant.state]
        failed = sum(state.failures.values())
        return f"{failed} of its candidates failed: {state.complaints[-1]}" if failed else UNTUNED
    replaced = f"what it replaces {ordinary * 1e3:.4g} ms" if math.isfinite(ordinary) else "nothing else was measured"
    compared = f"{fused * 1e3:.4g} ms, and {replaced}"
    if used:
        whole = ", but the whole module is faster with it" if fused >= ordinary else ""
        return f"it takes {compared}{whole}" + (f"; used in {used} of {uses} places" if used < uses else "")
    if fused < ordinary and contest.factors.get(entrant.state, 1.0) > 1.0:
        return f"it takes {compared}, but the whole module is faster without it"
    if fused < ordinary:
        return f"it takes {compared}, but another alternative that does some of the same saves more"
    return f"it takes {compared}"


def subprogram_lines(summary: SuperoptSummary | None) -> list[str]:
    """The table at the end of a run: what was looked for, found and chosen."""
    if summary is None:
        return []
    lines = [rewrite_line(one) for one in summary.rewrites]
    for one in summary.subprograms:
        if one.search_seconds is None and not one.graphs:
            continue
        mark = "used" if one.chosen else "not used"
        lines.append(f"fused kernel of {one.name} ({one.uses}x): {_searched(one)}; {mark}: {one.reason}")
        if one.chosen:
            best = min((graph for graph in one.graphs if graph.latency_ms is not None), key=lambda g: g.latency_ms or 0)
            lines.append(f"  proven by {counted(best.tests, 'tests')}, error at most {best.bound:.2g}" + (
                f", assuming {'; '.join(best.assumptions)}" if best.assumptions else ""))  # fmt: skip
    skipped = sum(1 for one in summary.subprograms if one.search_seconds is None and not one.graphs)
    if skipped:
        lines.append(f"{counted(skipped, 'further subprograms')} {'was' if skipped == 1 else 'were'} not searched")
    return lines


def rewrite_line(one: RewriteSummary) -> str:
    """What a rewrite of the whole graph would make of it, and whether it was used."""
    times = f"{one.rewritten_roofline_ms:.4g} ms at the roofline, {one.roofline_ms:.4g} ms without it"
    mark = "used" if one.used else "not used"
    return f"{one.name}: {counted(one.rewritten_kernels, 'kernels')} in place of {one.kernels}; {mark}: {times}"


def _searched(one: SubprogramSummary) -> str:
    programs = counted(one.statistics.get("topologies", 0), "programs")
    where = "known from an earlier run" if one.known else f"{one.search_seconds or 0.0:.1f} s"
    whole = "all" if one.complete else "within the budget"
    return f"{programs} enumerated ({whole}), {len(one.graphs)} proven, {where}"


def _ms(seconds: float) -> float | None:
    return seconds * 1e3 if math.isfinite(seconds) else None
