"""The page of a run that shows its µGraphs: what was searched, each one drawn and in text, and what was chosen."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from pipeline.errors import PipelineError, counted
from pipeline.report.mugraph_drawing import STYLES, draw_svg
from pipeline.report.summary import MuGraphSummary, SubprogramSummary, SuperoptSummary
from pipeline.report.superopt_report import rewrite_line
from pipeline.superopt.mugraph.parse import from_text

STYLE = """
body { font-family: system-ui, sans-serif; margin: 2em auto; max-width: 80em; padding: 0 1em; color: #1f2328 }
pre { background: #f6f8fa; padding: 0.8em; overflow-x: auto; font-size: 0.85em }
table { border-collapse: collapse } td, th { padding: 0.2em 0.8em; text-align: right; border-bottom: 1px solid #d0d7de }
td:first-child, th:first-child { text-align: left }
dl { display: grid; grid-template-columns: max-content auto; gap: 0.3em 1em } dt { border: 1px solid; padding: 0 0.5em }
figure { margin: 1em 0; overflow-x: auto } h2 { margin-top: 2em; border-top: 1px solid #d0d7de; padding-top: 0.6em }
"""

LEGEND = {
    "tensor": "an operand: a tensor in memory",
    "result": "what comes out",
    "operator": "an operator",
    "map": "on the upper edge of a kernel how an operand is cut (imap, fmap): n→1 gives each step along the axis n of "
    "the grid or of a loop the next part of dimension 1, whole is all of it in each; on the lower edge how the parts "
    "of the result are put together (omap): n→1 side by side, s→sum added up",
    "tile": "a part of an operand, which one point of the grid holds in its caches or its shared memory",
    "accumulator": "what each iteration of the loop adds to: a sum, a maximum, pieces in a row, or a sum that is "
    "scaled anew whenever the maximum so far has grown",
    "running": "the largest, or the smallest, so far",
}


def page(workload: str, summary: SuperoptSummary) -> str:
    """The text of a self-contained HTML file."""
    gained = "" if summary.gained_ms is None else f" Together they save {summary.gained_ms:.4g} ms of kernel time."
    rewrites = "".join(f"<p>{escape(rewrite_line(one))}.</p>\n" for one in summary.rewrites)
    body = "\n".join(part for one in summary.subprograms for part in _subprogram(one))
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>µGraphs of {escape(workload)}</title>'
        f"<style>{STYLE}</style></head><body>\n<h1>µGraphs of {escape(workload)}</h1>\n"
        f"<p>{counted(len(summary.subprograms), 'subprograms')}, {summary.seconds:.1f} s of search.{gained}</p>\n"
        f"{_legend()}{rewrites}{body}\n</body></html>\n"
    )


def _legend() -> str:
    """What boxes of each colour are."""
    entries = "".join(
        f'<dt style="background: {fill}; border-color: {line}">{style}</dt><dd>{escape(LEGEND[style])}</dd>'
        for style, (fill, line) in STYLES.items()
    )
    return (
        "<details><summary>How to read the drawings</summary><p>Data flow from top to bottom. A kernel is a box; what "
        "is inside a frame runs in each iteration of that loop, what is above it before, what is below it after.</p>"
        f"<dl>{entries}</dl></details>\n"
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
