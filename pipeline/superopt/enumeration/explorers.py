"""Explorers: who explores assignments of roles, in this process or in others, one job after another."""

from __future__ import annotations

import math
import multiprocessing as mp
import os
import signal
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Protocol

from pipeline.ir.target import Target
from pipeline.superopt.enumeration.enumerate import Limits
from pipeline.superopt.enumeration.explore import Candidate, Goals, explore
from pipeline.superopt.enumeration.nearness import Oracle
from pipeline.superopt.enumeration.roles import Roles
from pipeline.superopt.enumeration.statistics import Statistics
from pipeline.superopt.spec import Spec

FILLING = 0.7  # share of the seconds of a job for its table of values; the rest is for programs
LONGEST_WAIT = 3600.0  # seconds; the system counts in milliseconds and refuses what does not fit into an int


@dataclass(frozen=True, slots=True)
class Job:
    """One assignment of roles to explore.

    number   of the specification among all that a search looks at
    most     programs that are wanted
    foreign, values, unknown   see `Limits`
    seconds  that it may take
    """

    number: int
    roles: Roles
    most: int
    foreign: int
    values: int
    unknown: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Report:
    """What came of a job."""

    job: Job
    candidates: tuple[Candidate, ...]
    exhausted: bool
    statistics: Statistics


class Explorers(Protocol):
    """Reports come as the jobs are done, until the deadline (by `time.monotonic`); then some may be missing."""

    def run(self, jobs: Iterable[Job], deadline: float) -> Iterator[Report]: ...

    def close(self) -> None: ...


@dataclass(slots=True)
class Alone:
    """Explores in this process. Oracles are kept: assignments with the same factors share one."""

    specs: tuple[Spec, ...]
    target: Target
    goals: Goals
    seed: int
    _oracles: dict[tuple[int, tuple[tuple[int, tuple[str, ...]], ...]], Oracle] = field(default_factory=dict)

    def run(self, jobs: Iterable[Job], deadline: float) -> Iterator[Report]:
        for job in jobs:
            if time.monotonic() > deadline:
                return
            yield self.explore(job, deadline)

    def explore(self, job: Job, deadline: float) -> Report:
        def oracle(spec: Spec, parts: Mapping[int, tuple[str, ...]]) -> Oracle:
            key = (job.number, tuple(sorted(parts.items())))
            if key not in self._oracles:
                self._oracles[key] = self.goals(spec, parts)
            return self._oracles[key]

        statistics = Statistics()
        begin = time.monotonic()
        deadline = min(deadline, begin + job.seconds)
        limits = Limits(job.foreign, job.values, job.unknown, begin + FILLING * (deadline - begin))
        found, exhausted = explore(
            self.specs[job.number], job.roles, self.target, oracle, statistics,
            seed=self.seed, most=job.most, deadline=deadline, limits=limits,
        )  # fmt: skip
        return Report(job, tuple(found), exhausted, statistics)

    def close(self) -> None:
        """Nothing is open."""


class Team:
    """Explores in processes of its own, at most one a core; each gets the next job when it has done one."""

    def __init__(self, specs: tuple[Spec, ...], target: Target, goals: Goals, seed: int, workers: int) -> None:
        context = mp.get_context("spawn")
        self._members: list[tuple[mp.process.BaseProcess, Connection]] = []
        for _ in range(min(workers, os.cpu_count() or 1)):  # more find nothing more, and take seconds to start
            ours, theirs = context.Pipe()
            member = context.Process(target=_serve, args=(theirs, Alone(specs, target, goals, seed)), daemon=True)
            with _no_interrupts():
                member.start()
            theirs.close()
            self._members.append((member, ours))

    @property
    def members(self) -> tuple[int, ...]:
        """Their process numbers."""
        return tuple(member.pid or 0 for member, _ in self._members)

    def run(self, jobs: Iterable[Job], deadline: float) -> Iterator[Report]:
        waiting = iter(jobs)
        idle = [connection for _, connection in self._members]
        busy: set[Connection] = set()
        while True:
            while idle and (job := next(waiting, None)) is not None:
                connection = idle.pop()
                left = None if math.isinf(deadline) else deadline - time.monotonic()
                try:
                    connection.send((job, left))
                except OSError:
                    continue  # it was killed, and the job with it
                busy.add(connection)
            if not busy:
                return
            left = max(0.0, deadline - time.monotonic())
            ready = [c for c in wait(list(busy), min(left, LONGEST_WAIT)) if isinstance(c, Connection)]
            if not ready and time.monotonic() >= deadline:
                return
            for connection in ready:
                busy.discard(connection)
                try:
                    report: Report = connection.recv()
                except (EOFError, OSError):
                    continue  # it was killed: its job is missing, the others go on
                idle.append(connection)
                yield report

    def close(self) -> None:
        for member, connection in self._members:
            connection.close()
            member.terminate()
            member.join()


@contextmanager
def _no_interrupts() -> Iterator[None]:
    """What is started meanwhile never sees Ctrl-C, which is for this process: it gets it afterwards."""
    resource_tracker.ensure_running()  # which lets interrupts through when it starts
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(connection: Connection, explorer: Alone) -> None:
    """The life of a member of a team."""
    try:
        while True:
            job, left = connection.recv()
            deadline = math.inf if left is None else time.monotonic() + left
            connection.send(explorer.explore(job, deadline))
    except (EOFError, ConnectionError):  # the team is closed, or gone
        return
