"""What a search for µGraphs of one specification has found: proven ones, the fastest by the model first.

As JSON it is kept in the store, so that the same specification is not searched again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pipeline.superopt.enumeration.search import Found
from pipeline.superopt.mugraph.graph import MuGraph
from pipeline.superopt.mugraph.parse import from_text
from pipeline.superopt.mugraph.text import to_text


@dataclass(frozen=True, slots=True)
class Proven:
    """A µGraph that was proven to compute its specification.

    seconds      by the roofline model
    tests        over finite fields that it passed, each with inputs of its own
    bound        on the probability that one wrong element passes them
    assumptions  what the bound rests on, where functions or maxima were modelled
    extents      of its grid axes and loops, at which it takes these seconds
    """

    graph: MuGraph
    seconds: float
    tests: int
    bound: float
    assumptions: tuple[str, ...] = ()
    extents: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Finding:
    """Of one search.

    seconds      that it took
    complete     everything was enumerated within its limits: more time would find no more
    statistics   counts by name: enumerated, pruned by each method, proven
    interrupted  the user stopped it
    reason       why there is no graph, where there is none
    """

    graphs: tuple[Proven, ...]
    seconds: float
    complete: bool
    statistics: Mapping[str, int] = field(default_factory=dict)
    interrupted: bool = False
    reason: str = ""

    @staticmethod
    def of(found: Found) -> Finding:
        """The finding that a search gave."""
        graphs = tuple(
            Proven(one.graph, one.seconds, one.proof.tests, one.proof.bound, one.proof.assumptions, one.extents)
            for one in found.graphs
        )
        return Finding(
            graphs, found.seconds, found.exhausted, found.statistics.row(), found.interrupted, found.reason
        )  # fmt: skip


def to_json(finding: Finding) -> str:
    """One line of JSON; `from_json` gives an equal finding. One that was interrupted is not to be kept."""
    graphs = [
        {
            "text": to_text(one.graph), "seconds": one.seconds, "tests": one.tests, "bound": one.bound,
            "assumptions": list(one.assumptions), "extents": dict(one.extents),
        }
        for one in finding.graphs
    ]  # fmt: skip
    data = {
        "graphs": graphs, "seconds": finding.seconds, "complete": finding.complete,
        "statistics": dict(finding.statistics), "reason": finding.reason,
    }  # fmt: skip
    return json.dumps(data, sort_keys=True, ensure_ascii=False)


def from_json(text: str) -> Finding:
    """The finding of one line. ValueError or a `PipelineError` where it is not one."""
    data: dict[str, Any] = json.loads(text)
    try:
        graphs = tuple(
            Proven(from_text(one["text"]), one["seconds"], one["tests"], one["bound"], tuple(one["assumptions"]),
                   one["extents"])
            for one in data["graphs"]
        )  # fmt: skip
        return Finding(graphs, data["seconds"], data["complete"], data["statistics"], reason=data["reason"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"missing or mistyped: {error}") from None
