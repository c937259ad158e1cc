"""Several runs as one table: a suite in one process, or the jobs of a sweep."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

log = logging.getLogger("pipeline")


def write_table(folder: Path) -> None:
    """Logs one row for each run below `folder`, and writes their summaries to `table.json` there."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.glob("*/summary.json"), key=lambda path: _natural(path.parent.name)):
        found[path.parent.name] = json.loads(path.read_text(encoding="utf-8"))
    (folder / "table.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    for line in table(found):
        log.info("%s", line)


def table(summaries: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The lines: name, whether verified, our median in ms, and for each peer its median over ours."""
    peers = sorted({peer for summary in summaries.values() for peer in summary.get("peers") or {}})
    rows = [["run", "verified", "ms", *peers]]
    for name, summary in summaries.items():
        measured = summary.get("peers") or {}
        ratios = [_figure((measured.get(peer) or {}).get("ratio"), "x") for peer in peers]
        ours = _figure((summary.get("latency_ms") or {}).get("median"), "")
        rows.append([name, "yes" if summary.get("verified") is True else "NO", ours, *ratios])
    return _aligned(rows)


def _figure(value: object, unit: str) -> str:
    return f"{value:.4g}{unit}" if isinstance(value, int | float) else "-"


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
