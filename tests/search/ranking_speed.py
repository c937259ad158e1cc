"""A command that prints how many candidates are ranked a second: python -m tests.search.ranking_speed [rows] [rounds].

Ranking is features and prediction together, by trees that have learned from 64 measurements. Each figure is the best of
some rounds, so that other work on the machine does not count.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np
import yaml

from pipeline.frontend.workloads.workload import Workload
from pipeline.ir.graph import Graph
from pipeline.measurement.host import detect_host
from pipeline.registry import Component, Registry
from pipeline.search.candidates import Candidate, History, Observation, SketchSpace
from pipeline.search.catboost_cost import CatboostCost
from tests.search import spaces as small

WORKLOADS = {
    "GMM 1024": ("gmm", {"n": 1024, "m": 1024, "k": 1024}),
    "conv2d 56x56, 64 to 64, 3x3": ("c2d", {"h": 56, "w": 56, "ci": 64, "co": 64, "k": 3, "s": 1, "p": 1}),
}
LEARNED = 64


def graph(name: str, sizes: dict[str, int]) -> Graph:
    """A workload of conf/ with these sizes."""
    node = yaml.safe_load((small.CONF / "workload" / f"{name}.yaml").read_text(encoding="utf-8")) | sizes
    return Registry().build(Workload, Component.model_validate(node), "workload").build(0)


def learned(spaces: tuple[SketchSpace, ...]) -> CatboostCost:
    """Trees that have seen candidates of every sketch. What they were told is made up: speed does not depend on it."""
    history, cost = History(spaces), CatboostCost()
    rng = np.random.default_rng(0)
    for space in spaces:
        rows = space.draw(-(-LEARNED // len(spaces)), rng)
        for row, seconds in zip(rows, space.analyse(rows)[0], strict=True):
            measured = float(seconds * rng.uniform(0.7, 1.5))
            history.observations.append(Observation(Candidate(space.number, tuple(map(int, row))), measured))
    cost.learn(history)
    return cost


def fastest(call: Callable[[], object], rounds: int) -> float:
    """Seconds of the fastest of some calls."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def main(count: int = 8192, rounds: int = 15) -> None:
    """One line for each sketch."""
    target = detect_host()
    print(f"{count} candidates at once, best of {rounds}; candidates per second")
    for title, (name, sizes) in WORKLOADS.items():
        task = max(small.parts(graph(name, sizes)).tasks, key=lambda found: found.flops)
        spaces = tuple(SketchSpace(i, sketch, target) for i, sketch in enumerate(small.sketches(task, target)))
        cost = learned(spaces)
        for space in spaces:
            parameters = len(space.space.columns)
            print(f"{title}, sketch {space.number}, {parameters} parameters: {line(space, cost, count, rounds)}")


def line(space: SketchSpace, cost: CatboostCost, count: int, rounds: int) -> str:
    """The figures of one sketch."""
    rows = space.draw(count, np.random.default_rng(1))
    draw = fastest(lambda: space.draw(count, np.random.default_rng(1)), rounds)
    features = fastest(lambda: space.analyse(rows), rounds)
    rank = fastest(lambda: cost.predict(space, rows), rounds)
    return (
        f"features and prediction {count / rank:,.0f} · drawing too {count / (rank + draw):,.0f} "
        f"(features alone {count / features:,.0f}, drawing alone {count / draw:,.0f})"
    )


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
