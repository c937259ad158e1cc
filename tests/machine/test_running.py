"""Tests of what machines that can run a module share: modules are loaded several times each and called in turns."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import numpy as np

from pipeline.machine.running import called_in_turns


class Sleeper:
    """A module whose call takes so many seconds."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.closed = seconds, False

    def run(self, names: Sequence[str] | None, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        assert not self.closed and set(feeds) == {"x"}
        time.sleep(self.seconds)
        return []


def test_each_load_of_the_modules_gives_a_time_of_each_and_is_closed() -> None:
    loaded: list[tuple[Path, Sleeper]] = []

    @contextmanager
    def load(path: Path) -> Iterator[Sleeper]:
        made = Sleeper(0.002 if path.name == "slow" else 0.0)
        assert sum(not one.closed for _, one in loaded) < 2, "those of the load before are closed"
        loaded.append((path, made))
        yield made
        made.closed = True

    paths = (Path("slow"), Path("quick"))
    found = list(islice(called_in_turns(paths, load, {"x": np.zeros(1)}, seconds=0.02), 3))
    assert len(found) == 3 and all(slow >= 2.0 for slow, _ in found)
    assert [path for path, _ in loaded] == [*paths] * 3 and all(one.closed for _, one in loaded)
