"""The stage that looks for fused kernels: a partitioned graph into alternatives, each proven and ready to be tuned."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from pipeline.errors import PipelineError, UserError
from pipeline.ir.graph import Graph, Input
from pipeline.ir.target import Target
from pipeline.progress import Step, untold
from pipeline.schedule.rule import Rule
from pipeline.schedule.sketch import Sketch
from pipeline.space.generate import MOST, generate
from pipeline.space.partition import Partition
from pipeline.superopt.enumeration.finding import Finding, from_json, to_json
from pipeline.superopt.lowering.lower import lower_mugraph
from pipeline.superopt.mugraph.graph import BlockGraph, MuGraph
from pipeline.superopt.mugraph.text import to_text
from pipeline.superopt.rewrites import Rewrite
from pipeline.superopt.spec import Spec
from pipeline.superopt.subprograms import Limits, Subprogram, subprograms

log = logging.getLogger("pipeline")

LEAST_SECONDS = 5.0  # a search that gets less is not worth its start
SHORTEST = 1.0  # seconds that are left: below it nothing new is begun
SHARE = 1 / 3  # of the time that is left for one search, where others wait

Search = Callable[[Spec, float], Finding]  # within so many seconds


class Notes(Protocol):
    """Texts under keys that outlive the run."""

    def note(self, key: str, text: str) -> None: ...

    def noted(self, key: str) -> str | None: ...


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is searched and lowered.

    seconds      of search in all
    subprograms  alternatives that are tuned, at most
    graphs       µGraphs of each that are tuned: of those that cut their operands alike the fastest by the model
    version      whatever else decides over what is found: of this program, of the axioms
    """

    seconds: float
    subprograms: int
    graphs: int
    limits: Limits
    version: str


@dataclass(frozen=True, slots=True)
class Lowered:
    """A sketch of a µGraph: the sha256 of the text of that, and its number in the finding."""

    sketch: Sketch
    key: str
    graph: int


@dataclass(frozen=True, slots=True)
class Alternative:
    """A subprogram that was searched, or why it was not.

    known    the finding was in the store
    reason   why there is nothing to tune; "" where there is
    """

    subprogram: Subprogram
    finding: Finding | None
    sketches: tuple[Lowered, ...]
    known: bool = False
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Alternatives in the order in which they were searched, the seconds of it all, and whether it was interrupted.

    rewrites  of the whole graph that were looked at before
    """

    alternatives: tuple[Alternative, ...] = ()
    seconds: float = 0.0
    interrupted: bool = False
    rewrites: tuple[Rewrite, ...] = ()


def look_for_alternatives(
    graph: Graph, parts: Partition, target: Target, rules: Sequence[Rule], effort: Effort, search: Search, notes: Notes,
    step: Step = untold,
) -> Outcome:  # fmt: skip
    """Searches the subprograms that promise most beside what is found, until the time or the number is reached.

    Each gets a share of the time that is left. What an earlier run has searched counts as if it had been searched now,
    so that a second run does not go on where the first one had to stop. An interrupt ends the stage with what there is.
    """
    start = time.monotonic()
    spent = 0.0
    found: list[Alternative] = []
    interrupted = False
    waiting = list(subprograms(graph, parts, target, effort.limits))
    count = len(waiting)
    try:
        while waiting:
            one = waiting.pop(0)
            step(count - len(waiting), count, one.task.name)
            left = effort.seconds - spent
            share = max(SHARE, 1 / (1 + len(waiting)))
            ready = sum(1 for alternative in found if alternative.sketches)
            begin = time.monotonic()
            made = (
                Alternative(one, None, (), reason=f"{ready} alternatives were found before it")
                if ready >= effort.subprograms
                else _searched(one, min(left, max(LEAST_SECONDS, share * left)), effort, target, search, notes)
            )
            spent += made.finding.seconds if made.finding and made.known else time.monotonic() - begin
            found.append(_lowered(made, effort.graphs, rules, target) if made.finding and made.finding.graphs else made)
            if made.finding and made.finding.interrupted:
                raise KeyboardInterrupt
            if found[-1].sketches:
                there = [alternative.subprogram for alternative in found if alternative.sketches]
                waiting.sort(key=lambda other: -other.promise_beside(there))
    except KeyboardInterrupt:
        interrupted = True
        log.warning("interrupted: the search for fused kernels ends here")
    return Outcome(tuple(found), time.monotonic() - start, interrupted)


def _searched(
    one: Subprogram, seconds: float, effort: Effort, target: Target, search: Search, notes: Notes
) -> Alternative:
    """The finding for a subprogram: from the notes, or searched now and noted."""
    key = _key(one.spec, effort, target)
    known = _noted(notes, key)
    if known is not None:
        return Alternative(one, known, (), known=True, reason="" if known.graphs else known.reason)
    if seconds <= 0 or seconds < min(SHORTEST, effort.seconds):
        return Alternative(one, None, (), reason="the time was over")
    try:
        finding = search(one.spec, seconds)
    except UserError:
        raise
    except Exception as error:  # the model can do without: a defect of the search must not cost the run
        log.warning("the search for a fused kernel of %s has failed", one.task.name, exc_info=True)
        return Alternative(one, None, (), reason=f"the search has failed: {type(error).__name__}: {error}")
    if not finding.interrupted:
        notes.note(key, to_json(finding))
    return Alternative(one, finding, (), reason="" if finding.graphs else finding.reason)


def _noted(notes: Notes, key: str) -> Finding | None:
    """What an earlier run has found; a note that cannot be read is searched again."""
    text = notes.noted(key)
    if text is None:
        return None
    try:
        return from_json(text)
    except (ValueError, PipelineError):
        return None


def _key(spec: Spec, effort: Effort, target: Target) -> str:
    """Of everything that decides over what a search finds, but the speed of the machine."""
    machine = replace(target, clock_ghz=1.0, bandwidth_gbs=1.0)  # both are measured anew in each run
    text = f"µGraphs\n{effort.version}\n{effort.seconds}\n{machine}\n{spec}"
    return hashlib.sha256(text.encode()).hexdigest()


def _lowered(made: Alternative, most: int, rules: Sequence[Rule], target: Target) -> Alternative:
    """With the sketches of its best µGraphs that cut differently; what cannot be lowered is left out and told."""
    assert made.finding is not None
    one = made.subprogram
    names = [node.op.name for node in one.task.graph.nodes if isinstance(node.op, Input)]
    arguments = [names[tensor.source] for tensor in one.spec.inputs]
    lowered: list[Lowered] = []
    reasons: list[str] = []
    taken: set[object] = set()
    for number, proven in enumerate(made.finding.graphs):
        cuts = _cuts(proven.graph)
        if len(taken) >= most:
            break
        if cuts in taken:
            continue
        try:
            start = lower_mugraph(one.spec, proven.graph, one.task.name, arguments, target)
            sketches = generate(start, rules, target)
        except PipelineError as error:
            reasons.append(str(error))
            continue
        except Exception as error:  # as above
            log.warning("a µGraph of %s cannot be lowered", one.task.name, exc_info=True)
            reasons.append(f"{type(error).__name__}: {error}")
            continue
        taken.add(cuts)
        key = hashlib.sha256(to_text(proven.graph).encode()).hexdigest()
        lowered += [Lowered(sketch, key, number) for sketch in sketches[: max(1, MOST // most)]]
    reason = "" if lowered else f"none of its µGraphs could be lowered: {'; '.join(dict.fromkeys(reasons))}"
    return replace(made, sketches=tuple(lowered), reason=reason)


def _cuts(graph: MuGraph) -> object:
    """How each kernel cuts its operands and what it loops over: µGraphs that agree in that run alike."""
    return tuple(
        (block.grid, block.loops, frozenset(zip(node.inputs, block.inputs, strict=True)), block.outputs[0].omap)
        if isinstance(block := node.op, BlockGraph) else node
        for node in graph.nodes
    )  # fmt: skip
