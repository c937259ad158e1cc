"""The summary of a run, made from what its stages gave."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from pipeline.ir.graph import Graph
from pipeline.ir.target import Target
from pipeline.report.summary import (
    KernelFacts,
    Latency,
    Machine,
    MaxError,
    PeerSummary,
    Summary,
    TaskSummary,
)
from pipeline.report.superopt_report import superopt_summary
from pipeline.search.contest import Contest
from pipeline.search.tuner import TaskState, Tuner
from pipeline.space.task import roofline_seconds
from pipeline.superopt.stage import Outcome
from pipeline.verification.module_gate import Report as Verification


@dataclass(frozen=True, slots=True, eq=False)
class Finished:
    """What a run has come to.

    predicted  the times are a model's
    unchecked  what the verification cannot see
    outcome    of the superoptimizer; None where it was off
    facts      about the kernel of a task, by the task's key
    """

    workload: str
    seed: int
    predicted: bool
    unchecked: str
    model: Graph
    tuner: Tuner
    both: Contest
    outcome: Outcome | None
    verification: Verification
    latency: Latency
    peers: Mapping[str, PeerSummary]
    facts: Mapping[str, KernelFacts]
    machine: Machine
    target: Target
    versions: Mapping[str, str]
    artifact: Path


def run_summary(run: Finished) -> Summary:
    """All of summary.json."""
    tuner, error = run.tuner, run.verification.max_error
    failed: Counter[str] = Counter()
    for state in tuner.states:
        failed.update(state.failures)
    _, used = run.both.decided()
    status: Literal["complete", "interrupted"] = "interrupted" if tuner.interrupted else "complete"
    return Summary(
        workload=run.workload, target=run.machine.cpu, seed=run.seed,
        status=status if run.verification.verified else "failed", verified=run.verification.verified,
        unchecked=run.unchecked,
        max_error=MaxError(absolute=error.absolute, relative=error.relative, tolerance=error.tolerance),
        latency_ms=run.latency, predicted=run.predicted,
        # what the module would take with the first kernel of each task
        untuned_ms=run.latency.median + (tuner.untuned - tuner.total) * 1e3,
        roofline_ms=roofline_seconds(run.model, run.target) * 1e3,
        tuning_seconds=tuner.tuning_seconds, trials=tuner.trials, invalid_candidates=tuner.invalid,
        failed_candidates=dict(failed), tasks=tuple(_task(state, run.facts) for state in used),
        superopt=None if run.outcome is None else superopt_summary(run.outcome, run.both), peers=dict(run.peers),
        machine=run.machine,
        versions={"python": platform.python_version(), "numpy": np.__version__, **run.versions},
        artifact=str(run.artifact),
    )  # fmt: skip


def _task(state: TaskState, facts: Mapping[str, KernelFacts]) -> TaskSummary:
    return TaskSummary(
        name=state.task.name, weight=state.weight, flops=state.task.flops, bytes=state.task.traffic,
        latency_ms=state.best * 1e3, roofline_ms=state.roofline * 1e3, sketches=len(state.traces),
        trials=state.trials + state.resumed, best_at_trial=state.best_at, kernel=facts.get(state.task.key),
    )  # fmt: skip
