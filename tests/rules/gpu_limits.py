"""Sampled candidates of MetaSchedule's operators on a GPU, each compiled, and what fails for a limit of the device.

    python -m tests.rules.gpu_limits 10000 --target a100 --dtype float16 --processes 2

The first case of each of the thirteen families, every sketch in turn. What must not happen: a candidate whose code the
compiler refuses, or that asks for more threads or shared memory than a block may have, which is refused where it is
emitted. Registers beyond what there are spill, and that is counted. Takes minutes.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context

import numpy as np
import yaml

from pipeline.codegen.cuda.build import build_kernel
from pipeline.frontend.workloads.workload import Workload
from pipeline.ir.target import Target
from pipeline.registry import Component, Registry
from pipeline.schedule.sketch import Sketch
from pipeline.search.candidates import SketchSpace
from pipeline.space.generate import generate
from pipeline.space.lower import lower
from pipeline.space.partition import partition
from tests.known_gpus import gpu
from tests.rules.schedule.gpu_cases import gpu_rules
from tests.search.spaces import CONF

FAMILIES = ("c1d", "c2d", "c3d", "gmm", "grp", "dil", "dep", "t2d", "cap", "nrm", "sfm", "cbr", "tbg")
COMPILED = 8  # programs of one sketch that a process is handed at a time


@dataclass(frozen=True, slots=True)
class Batch:
    """Candidates of one sketch."""

    name: str
    sketch: Sketch
    rows: tuple[tuple[int, ...], ...]
    target: Target


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("count", type=int)
    parser.add_argument("--target", default="a100")
    parser.add_argument("--dtype", default="float16")
    parser.add_argument("--processes", type=int, default=1)
    given = parser.parse_args(arguments)
    target, start = gpu(given.target), time.monotonic()
    sketches = [(name, sketch) for name in FAMILIES for sketch in _sketches(name, given.dtype, target)]
    share = -(-given.count // len(sketches))
    outcomes: Counter[str] = Counter()
    with ProcessPoolExecutor(given.processes, mp_context=get_context("spawn")) as pool:
        batches = [batch for name, sketch in sketches for batch in _batches(name, sketch, share, target)]
        for number, found in enumerate(pool.map(compile_batch, batches), 1):
            outcomes.update(found)
            if number % 50 == 0:
                seconds, total = time.monotonic() - start, sum(len(batch.rows) for batch in batches)
                print(f"{sum(outcomes.values())} of {total}, {seconds:.0f} s, {dict(outcomes)}", flush=True)
    print(f"{sum(outcomes.values())} candidates of {len(sketches)} sketches: {dict(outcomes)}")
    return int(any(not said.startswith("ok") for said in outcomes))


def _sketches(name: str, dtype: str, target: Target) -> Iterator[Sketch]:
    given = yaml.safe_load((CONF / "workload" / f"{name}.yaml").read_text(encoding="utf-8"))
    workload = Registry().build(Workload, Component.model_validate(given | {"case": 0, "dtype": dtype}), name)
    for task in partition(workload.build(0)).tasks:
        yield from generate(lower(task.graph, task.name, task.constants), gpu_rules(), target)


def _batches(name: str, sketch: Sketch, count: int, target: Target) -> Iterator[Batch]:
    """Different candidates, drawn at random, as many as there are up to the count."""
    space = SketchSpace(0, sketch, target)
    rows = space.space.unique(space.draw(count, np.random.default_rng(0)))
    for first in range(0, len(rows), COMPILED):
        chosen = tuple(tuple(int(n) for n in row) for row in rows[first : first + COMPILED])
        yield Batch(name, sketch, chosen, target)


def compile_batch(batch: Batch) -> list[str]:
    """What became of each: ok, ok but spills, or why it is refused."""
    space = SketchSpace(0, batch.sketch, batch.target)
    found = []
    for row in batch.rows:
        try:
            kernel = build_kernel(space.program(np.array(row, np.int64)), batch.target)
        except Exception as error:  # it is what is counted here
            found.append(f"{batch.name}: {type(error).__name__}: {str(error)[:120]}")
            continue
        spills = any(kernel.resources[launch.symbol].spill_stores for launch in kernel.program.launches)
        found.append("ok, spills" if spills else "ok")
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
