"""The page of a run that shows its µGraphs: what was searched, each one drawn and in text, and what was chosen."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from pipeline.errors import PipelineError, counted
from pipeline.report.mugraph_drawing import draw_svg
from pipeline.report.summary import MuGraphSummary, SubprogramSummary, SuperoptSummary
from pipeline.report.superopt_report import rewrite_line
from pipeline.superopt.mugraph.parse import from_text

STYLE = """
body { font-family: system-ui, sans-serif; margin: 2em auto; max-width: 80em; padding: 0 1em; color: #1f2328 }
pre { background: #f6f8fa; padding: 0.8em; overflow-x: auto; font-size: 0.85em }
table { border-collapse: collapse } td, th { padding: 0.2em 0.8em; text-align: right; border-bottom: 1px solid #d0d7de }
td:first-child, th:first-child { text-align: left }
figure { margin: 1em 0; overflow-x: auto } h2 { margin-top: 2em; border-top: 1px solid #d0d7de; padding-top: 0.6em }
"""


def page(workload: str, summary: SuperoptSummary) -> str:
    """The text of a self-contained HTML file."""
    gained = "" if summary.gained_ms is None else f" Together they save {summary.gained_ms:.4g} ms of kernel time."
    rewrites = "".join(f"<p>{escape(rewrite_line(one))}.</p>\n" for one in summary.rewrites)
    body = "\n".join(part for one in summary.subprograms for part in _subprogram(one))
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>µGraphs of {escape(workload)}</title>'
        f"<style>{STYLE}</style></head><body>\n<h1>µGraphs of {escape(workload)}</h1>\n"
        f"<p>{counted(len(summary.subprograms), 'subprograms')}, {summary.seconds:.1f} s of search.{gained}</p>\n"
        f"{rewrites}{body}\n</body></html>\n"
    )


def _subprogram(one: SubprogramSummary) -> Iterator[str]:
    if one.search_seconds is None and not one.graphs:
        yield f"<p>{escape(one.name)} ({one.uses}×): not searched, as {escape(one.reason)}.</p>"
        return
    yield f"<h2>{escape(one.name)}, {one.uses}×</h2>"
    yield f"<p><b>{'Used' if one.chosen else 'Not used'}</b>: {escape(one.reason)}.</p>"
    yield f"<details><summary>The specification</summary><pre>{escape(one.specification)}</pre></details>"
    rows = "".join(f"<tr><td>{escape(name)}</td><td>{count:,}</td></tr>" for name, count in one.statistics.items())
    how = "everything within its limits" if one.complete else "as far as its time went"
    yield (
        f"<details><summary>The search: {one.search_seconds or 0.0:.1f} s, {how}"
        f"{', in an earlier run' if one.known else ''}</summary><table>{rows}</table></details>"
    )
    measured = [graph for graph in one.graphs if graph.latency_ms is not None]
    best = min(measured, key=lambda graph: graph.latency_ms or 0.0, default=one.graphs[0] if one.graphs else None)
    for graph in one.graphs:
        yield from _graph(graph, shown=graph is best)


def _graph(graph: MuGraphSummary, *, shown: bool) -> Iterator[str]:
    took = "not measured" if graph.latency_ms is None else f"{graph.latency_ms:.4g} ms measured"
    whole = ", one of them at its full extents" if graph.full else ""
    bound = f"proven by {counted(graph.tests + graph.full, 'tests')}{whole}, error at most {graph.bound:.2g} an element"
    assuming = f", assuming {'; '.join(graph.assumptions)}" if graph.assumptions else ""
    yield f"<details{' open' if shown else ''}><summary>{took}, {graph.predicted_ms:.4g} ms predicted</summary>"
    yield f"<p>{escape(bound + assuming)}.</p>"
    try:
        yield f"<figure>{draw_svg(from_text(graph.text))}</figure>"
    except PipelineError as error:  # its text is there all the same
        yield f"<p>It cannot be drawn: {escape(str(error))}</p>"
    yield f"<pre>{escape(graph.text)}</pre></details>"
