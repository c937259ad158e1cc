"""The gate of a whole module: what it gives on random and on hostile feeds, against the graph in float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.ir.graph import DType, Graph
from pipeline.progress import Step, untold
from pipeline.verification.hostile import Feeds, hostile_feeds, random_feeds
from pipeline.verification.rounding import format_of
from pipeline.verification.tolerance import Reference, evaluate_with_bound
from pipeline.verification.verdict import Verdict, compare

PLAIN = 1e-3


@dataclass(frozen=True, slots=True)
class Case:
    """One output for one set of feeds."""

    feeds: str
    output: str
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class MaxError:
    """The largest error on random feeds.

    absolute   of the element that is farthest off
    relative   the largest of an output over the output's largest magnitude
    tolerance  the bound of the element that is farthest off
    share      the largest error of any element over its bound
    """

    absolute: float
    relative: float
    tolerance: float
    share: float


@dataclass(frozen=True, slots=True)
class Report:
    """What a module gave.

    verified  every element of every case is within its bound, and some random case left fewer than half aside, or the
              outputs agree plainly with float64 where the bounds allow everything
    """

    verified: bool
    max_error: MaxError
    cases: tuple[Case, ...]

    @property
    def failures(self) -> tuple[Case, ...]:
        """The cases that are wrong."""
        return tuple(case for case in self.cases if not case.verdict.ok)


Run = Callable[[Mapping[str, np.ndarray]], Sequence[np.ndarray]]


def verify_module(
    graph: Graph,
    run: Run,
    *,
    seed: int = 0,
    rounds: int = 2,
    hostile: Sequence[str] | None = None,
    usual: Sequence[Feeds] = (),
    step: Step = untold,
) -> Report:
    """Runs the module and judges all its outputs.

    run      takes feeds by name and gives the outputs in the graph's order
    rounds   sets of random feeds
    usual    sets of feeds as users have them, which count as random ones
    hostile  which of `HOSTILE_KINDS` to feed too, what careless programs get wrong; None is all of them, () is none
    step     is told before each set of feeds how many have been judged, of how many, and its name
    """
    rng = np.random.default_rng(seed)
    sets: list[tuple[str, Feeds]] = [(f"random usual {i}", dict(feeds)) for i, feeds in enumerate(usual)]
    sets += [(f"random {i}", random_feeds(graph, rng)) for i in range(rounds)]
    sets += hostile_feeds(graph, rng, hostile)
    cases: tuple[Case, ...] = ()
    for number, (name, feeds) in enumerate(sets):
        step(number, len(sets), name)
        cases = (*cases, *judge(graph, run, name, feeds))
    # The error that is reported is that of ordinary feeds: an error of 1e20 at 1e30 says nothing to a reader.
    ordinary = [case for case in cases if case.feeds.startswith("random")] or list(cases)
    silent = [name for name, _ in graph.outputs if not _telling(name, ordinary)]
    if silent and sets:
        # Saturated outputs (a softmax over logits of 1e20): the analysis allows everything there, so that it proves
        # nothing. Plain agreement is asked of them instead, which a wrong program does not show.
        plain = [case for case in judge(graph, run, f"{sets[0][0]}, plain", sets[0][1], plain=True)
                 if case.output in silent]  # fmt: skip
        cases = (*cases, *plain)
        ordinary = [*(case for case in ordinary if case.output not in silent), *plain]
        silent = [name for name in silent if not _telling(name, plain)]
    verified = all(case.verdict.ok for case in cases) and not silent and bool(cases)
    verdicts = [case.verdict for case in ordinary]
    farthest = max(verdicts, key=lambda verdict: (verdict.max_absolute, verdict.tolerance), default=None)
    error = MaxError(
        farthest.max_absolute if farthest else 0.0,
        max((verdict.max_relative for verdict in verdicts), default=0.0),
        farthest.tolerance if farthest else 0.0,
        max((verdict.share for verdict in verdicts), default=0.0),
    )
    return Report(verified, error, cases)


def _telling(output: str, cases: Sequence[Case]) -> bool:
    """Is there a case in which fewer than half of the output's elements were left aside?"""
    return any(case.verdict.unstable < 0.5 for case in cases if case.output == output)


def judge(graph: Graph, run: Run, name: str, feeds: Feeds, *, plain: bool = False) -> list[Case]:
    """One verdict for each output. plain: a thousandth of the largest value is allowed, or two units in the last place
    of it where the dtype is coarser, whatever the analysis says."""
    references = evaluate_with_bound(graph, feeds)
    if plain:
        types = {name: graph.nodes[number].type.dtype for name, number in graph.outputs}
        references = {key: Reference(r.value, _plain_bound(r.value, types[key])) for key, r in references.items()}
    outputs = run(feeds)
    if len(outputs) != len(graph.outputs):
        raise ValueError(f"the module gave {len(outputs)} outputs and the graph has {len(graph.outputs)}")
    return [
        Case(name, output, compare(np.asarray(got), references[output]))
        for (output, _), got in zip(graph.outputs, outputs, strict=True)
    ]


def _plain_bound(want: np.ndarray, dtype: DType) -> np.ndarray:
    kind = format_of(dtype)
    if kind is None:
        return np.zeros(want.shape)
    finite = np.abs(want[np.isfinite(want)])
    return np.full(want.shape, max(PLAIN, 4 * kind.unit) * float(finite.max(initial=0.0)))
