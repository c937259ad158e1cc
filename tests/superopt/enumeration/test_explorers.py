"""Explorers end when the jobs do, with their deadline, and without a member that was killed."""

from __future__ import annotations

import math
import os
import signal
import time

from pipeline.superopt.enumeration.explorers import Alone, Job, Team
from pipeline.superopt.enumeration.roles import Roles
from pipeline.superopt.goal.goal import Goal
from tests.superopt.specs import gqa, rmsnorm_linear
from tests.superopt.topologies import TWO_CORES

SPECS = (rmsnorm_linear(), gqa())
JOBS = [
    Job(0, Roles((0, 2), (1,)), 2, 1, 1000, 0, 60.0),
    Job(0, Roles((0, 2), ()), 2, 1, 1000, 0, 60.0),
    Job(1, Roles((0, 1, 4), (2,)), 2, 1, 1000, 0, 60.0),
]


def outcome(reports: object) -> set[tuple[Roles, tuple[str, ...]]]:
    return {(one.job.roles, tuple(c.text for c in one.candidates)) for one in reports}  # type: ignore[attr-defined]


def test_a_team_finds_what_one_does_alone_and_ends() -> None:
    alone = outcome(Alone(SPECS, TWO_CORES, Goal.of, 0).run(JOBS, math.inf))
    team = Team(SPECS, TWO_CORES, Goal.of, 0, 2)
    try:
        assert outcome(team.run(JOBS, math.inf)) == alone
        assert list(team.run([], math.inf)) == []
    finally:
        team.close()


def test_a_member_that_is_killed_costs_its_job_and_nothing_else() -> None:
    team = Team(SPECS, TWO_CORES, Goal.of, 0, 2)
    try:
        victim = team.members[0]
        os.kill(victim, signal.SIGKILL)
        found = outcome(team.run(JOBS * 2, math.inf))
        assert {roles for roles, _ in found} <= {job.roles for job in JOBS} and found
    finally:
        team.close()


def test_nothing_is_begun_after_the_deadline() -> None:
    assert list(Alone(SPECS, TWO_CORES, Goal.of, 0).run(JOBS, time.monotonic() - 1)) == []


def test_a_deadline_ends_a_team_whatever_its_members_do() -> None:
    team = Team(SPECS, TWO_CORES, Goal.of, 0, 1)
    try:
        begin = time.monotonic()
        list(team.run(JOBS * 50, begin + 0.05))
        assert time.monotonic() - begin < 30
    finally:
        team.close()


def test_a_deadline_may_lie_years_ahead() -> None:
    team = Team(SPECS, TWO_CORES, Goal.of, 0, 1)
    try:
        assert len(list(team.run(JOBS[:1], time.monotonic() + 1e9))) == 1
    finally:
        team.close()


def test_an_interrupt_of_all_processes_leaves_a_member_alive_even_while_it_starts() -> None:
    team = Team(SPECS, TWO_CORES, Goal.of, 0, 1)
    try:
        os.kill(team.members[0], signal.SIGINT)
        assert len(list(team.run(JOBS[:1], math.inf))) == 1
    finally:
        team.close()


def test_interrupts_come_through_again_after_a_team_has_started() -> None:
    Team(SPECS, TWO_CORES, Goal.of, 0, 1).close()
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, set())


def test_a_team_has_no_more_members_than_there_are_cores() -> None:
    team = Team(SPECS, TWO_CORES, Goal.of, 0, 10_000)
    try:
        assert len(team.members) <= (os.cpu_count() or 1)
    finally:
        team.close()
