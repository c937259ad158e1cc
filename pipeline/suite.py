"""Several runs as one table: a suite in one process, or the jobs of a sweep."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

log = logging.getLogger("pipeline")


def write_table(folder: Path) -> None:
    """Logs one row for each run below `folder`, and writes their summaries to `table.json` there."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.glob("*/summary.json"), key=lambda path: _natural(path.parent.name)):
        found[path.parent.name] = json.loads(path.read_text(encoding="utf-8"))
    (folder / "table.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    for line in table(found) if found else ():
        log.info("%s", line)


def table(summaries: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The lines: name, our median in ms, each peer's median over ours, the best peer's, the share of the roofline,
    and whether verified. The last row has the geometric means.

    A peer that gave another result, failed or is missing has that in place of a ratio, and is not among the best.
    A time that no clock has seen is marked, and a verification that did not see all.
    """
    peers = list(dict.fromkeys(peer for summary in summaries.values() for peer in summary.get("peers") or {}))
    columns = [*peers, *(["best peer"] if peers else []), "roofline"]
    rows, figures = [["run", "ms", *columns, "verified"]], []
    for name, summary in summaries.items():
        ratios = {peer: _ratio(summary, peer) for peer in peers}
        known = [ratio for ratio in ratios.values() if ratio is not None]
        shown = {**ratios, "best peer": min(known, default=None), "roofline": _of_roofline(summary)}
        figures.append(shown)
        cells = [_cell(column, shown[column], summary) for column in columns]
        verified = "NO" if summary.get("verified") is not True else "in part" if summary.get("unchecked") else "yes"
        mark = " predicted" if summary.get("predicted") else ""
        rows.append([name, _figure(_median(summary), "") + mark, *cells, verified])
    if len(rows) > 2:
        means = {column: _geometric_mean(figure[column] for figure in figures) for column in columns}
        verified = f"{sum(row[-1] == 'yes' for row in rows[1:])} of {len(figures)}"
        rows.append(["geometric mean", "", *(_cell(column, means[column], {}) for column in columns), verified])
    return _aligned(rows)


def _median(summary: Mapping[str, Any]) -> float | None:
    value = (summary.get("latency_ms") or {}).get("median")
    return float(value) if isinstance(value, int | float) else None


def _ratio(summary: Mapping[str, Any], peer: str) -> float | None:
    """The peer's median over ours, where it gave our result."""
    found = (summary.get("peers") or {}).get(peer) or {}
    value = found.get("ratio")
    return float(value) if isinstance(value, int | float) and found.get("status", "ok") == "ok" else None


def _of_roofline(summary: Mapping[str, Any]) -> float | None:
    """The time that the machine's limits allow for the whole model, over ours."""
    roofline, ours = summary.get("roofline_ms"), _median(summary)
    return roofline / ours if isinstance(roofline, int | float) and ours else None


def _geometric_mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None and value > 0]
    return math.exp(sum(map(math.log, known)) / len(known)) if known else None


def _cell(column: str, value: float | None, summary: Mapping[str, Any]) -> str:
    if value is None:
        status = ((summary.get("peers") or {}).get(column) or {}).get("status", "ok")
        return "-" if status == "ok" else str(status)
    return f"{value:.0%}" if column == "roofline" else _figure(value, "x")


def _figure(value: float | None, unit: str) -> str:
    return "-" if value is None else f"{value:.4g}{unit}"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        first, *others = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        lines.append("  ".join([first.strip().ljust(widths[0]), *others]))
    return lines


def _natural(name: str) -> tuple[int, str]:
    """Jobs of a sweep are named by their number first."""
    head = name.partition("-")[0]
    return (int(head) if head.isdigit() else -1, name)
