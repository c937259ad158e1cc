"""The choice between modules: how far it is can be seen, and its lines of the log have lines of their own."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.machine import module_choice
from pipeline.machine.module_choice import AT_MOST, LOADS, faster, fastest_module, until_sure
from pipeline.report.console import Progress

NEAR = [(0, 0.9), (1, 0.9)]


@dataclass
class Choice:
    """Two alternatives, each of which is used where its factor is below 1."""

    factors: Mapping[int, float] = field(default_factory=dict)
    states: Sequence[Any] = tuple(SimpleNamespace(task=SimpleNamespace(name=name, key=name)) for name in "ab")

    def chosen_uses(self) -> dict[int, int]:
        return {number: int(self.factors.get(number, 1.0) < 1.0) for number in (0, 1)}

    def decided(self) -> tuple[None, Sequence[Any]]:
        return None, [state for number, state in enumerate(self.states) if self.chosen_uses()[number]]


class Seconds:
    """A clock that comparing moves."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """Where both the bar and the log go, as on a terminal."""
    made = io.StringIO()
    handler, log = logging.StreamHandler(made), logging.getLogger("pipeline")
    before = log.level
    log.addHandler(handler)
    log.setLevel("INFO")
    yield made
    log.removeHandler(handler)
    log.setLevel(before)


def chosen(folder: Path, progress: Progress, clock: Seconds, monkeypatch: pytest.MonkeyPatch, kernels: str) -> Path:
    """Each comparison takes four seconds and finds the fused one faster."""

    def call(artifacts: Sequence[Path], *given: object) -> list[tuple[float, float]]:
        clock.now += 4.0
        return [(2.0, 1.0)]

    def make(name: str) -> Path:
        (folder / name).mkdir()
        return folder / name

    monkeypatch.setattr(module_choice, "called_in_turns", call)
    both: Any = Choice()
    machine: Any = SimpleNamespace(open=None)
    with progress:
        path, interrupted = fastest_module(both, NEAR, set(kernels), make, machine, {}, progress)
        assert not interrupted
        return path


def test_how_many_modules_are_compared_is_shown_with_the_time_left(
    tmp_path: Path, stream: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Seconds()
    progress = Progress(stream, trials=2, unit="modules compared", terminal=True, clock=clock)
    assert chosen(tmp_path, progress, clock, monkeypatch, "ab") == tmp_path / "artifact"
    shown = [line.strip() for line in stream.getvalue().replace("\r", "\n").splitlines() if line.strip()]
    assert shown == [
        "[                        ]   0% 0 s  0/2 modules compared, a",
        "a not fused: 2 ms, fused: 1 ms (whole modules, called in turns)",
        "[============            ]  50% 4 s, 4 s left  1/2 modules compared, b",
        "b not fused: 2 ms, fused: 1 ms (whole modules, called in turns)",
    ]


@pytest.mark.parametrize(
    ("seconds", "loads"), [([1.0], LOADS), ([3.0], LOADS), ([1.0, 3.0], AT_MOST), ([1.0, 1.0, 3.0], AT_MOST)]
)
def test_modules_are_loaded_more_often_where_it_changes_which_is_faster(seconds: list[float], loads: int) -> None:
    asked: list[float] = []

    def measured() -> Iterator[tuple[float, float]]:
        for other in cycle(seconds):
            asked.append(other)
            yield 2.0, other

    assert until_sure(measured()) == [(2.0, other) for other in islice(cycle(seconds), loads)]
    assert len(asked) == loads, "none more than that are loaded"


def test_a_module_that_is_now_faster_and_now_slower_is_judged_by_the_mean() -> None:
    assert faster([(1.0, 0.96), (1.0, 1.02), (1.0, 0.99)])
    assert not faster([(1.0, 0.98), (1.0, 1.03)])
    assert not faster([(1.0, 1.0)]), "nothing is changed for nothing"


def test_a_choice_without_kernels_counts_as_looked_at(
    tmp_path: Path, stream: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Seconds()
    progress = Progress(stream, trials=2, unit="modules compared", terminal=True, clock=clock)
    chosen(tmp_path, progress, clock, monkeypatch, "a")
    assert stream.getvalue().rstrip().endswith("50% 4 s, 4 s left  1/2 modules compared, b")
    assert "b not fused" not in stream.getvalue()


def test_nothing_is_shown_where_no_stream_is_given(
    tmp_path: Path, stream: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Seconds()
    chosen(tmp_path, Progress(None, trials=2, unit="modules compared", clock=clock), clock, monkeypatch, "ab")
    assert len(stream.getvalue().splitlines()) == 2 and "modules compared" not in stream.getvalue()
