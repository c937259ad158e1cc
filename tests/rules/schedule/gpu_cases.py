"""The rules of a GPU for tests, and an independent count of what an instantiated program asks of one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from math import prod

import numpy as np
import yaml

from pipeline.ir.graph import ITEM_BYTES
from pipeline.ir.program import Alloc, Block, Loop, Program, Seq, Stmt, blocks, walk
from pipeline.ir.target import Target
from pipeline.registry import Component, Registry
from pipeline.schedule.rule import Rule
from pipeline.schedule.sketch import Sketch
from pipeline.schedule.space import ParameterSpace
from pipeline.space.generate import generate
from tests.known_gpus import gpu
from tests.rules.schedule import sketches as small
from tests.search.spaces import CONF

GRID = ("blockIdx.x", "blockIdx.y", "blockIdx.z")


def a100() -> Target:
    return gpu("a100")


@cache
def gpu_rules(*without: str) -> tuple[Rule, ...]:
    """The rules of a GPU, as the configuration lists them, but for some, by their class."""
    listed = yaml.safe_load((CONF / "rules" / "cuda.yaml").read_text(encoding="utf-8"))["schedule"]
    listed = [node for node in listed if node["_target_"].rpartition(".")[2] not in without]
    return tuple(
        Registry().build(Rule, Component.model_validate(node), f"rules.schedule[{i}]") for i, node in enumerate(listed)
    )


@dataclass(frozen=True, slots=True)
class Demand:
    """What one region asks of a GPU: its grid, the threads of a block, its bytes of shared memory."""

    grid: int
    threads: int
    shared: int


def demands(program: Program) -> list[Demand]:
    """Of each region of a program whose sizes are numbers."""
    return [_demand(region) for region in (*program.prologue.body, *program.body.body)]


def _demand(region: Stmt) -> Demand:
    loops = [stmt for stmt in walk(region) if isinstance(stmt, Loop)]
    grid = prod(_count(loop) for loop in loops if loop.kind in GRID)
    most = {
        kind: max((_count(loop) for loop in loops if loop.kind == f"threadIdx.{kind}"), default=1) for kind in "xyz"
    }
    if any(loop.kind in ("threadIdx.y", "threadIdx.z") for loop in loops):
        most["x"] = max(32, most["x"])
    return Demand(grid, prod(most.values()), _shared(region, 1))


def _count(loop: Loop) -> int:
    return prod(axis.extent.value for axis in loop.axes)


def _shared(stmt: Stmt, copies: int) -> int:
    match stmt:
        case Block():
            return 0
        case Seq(body):
            return max((_shared(child, copies) for child in body), default=0)
        case Loop():
            stages = stmt.annotation("software_pipeline")
            return _shared(stmt.body, copies * (stages if isinstance(stages, int) else 1))
        case Alloc(buffer, body):
            if buffer.scope != "shared":
                return _shared(body, copies)
            *outer, last = [extent.value for extent in buffer.shape] or [1]
            bytes_ = prod(outer) * (last + buffer.pad.value) * ITEM_BYTES[buffer.dtype]
            return copies * -(-bytes_ // 16) * 16 + _shared(body, copies)


def everything_is_bound(program: Program) -> None:
    """No loop is left for the cores of a CPU, every reduction is decomposed."""
    for stmt in walk(Seq((program.prologue, program.body))):
        assert not (isinstance(stmt, Loop) and stmt.kind == "parallel"), f"loop {stmt.axes[0].var} is parallel"
    for block in blocks(program):
        assert block.init is None or not block.iters, f"block {block.name} has an initial value"


def fits(program: Program, target: Target) -> None:
    """The program keeps every limit of the target."""
    assert target.gpu is not None
    for demand in demands(program):
        assert demand.threads <= target.gpu.threads_per_block, demand
        assert demand.shared <= target.gpu.shared_per_block, demand
        assert demand.grid < 2**31, demand


def rows(sketch: Sketch, n: int, seed: int = 0) -> Iterator[Program]:
    """Some candidates of a sketch."""
    space = ParameterSpace.of(sketch)
    for row in space.unique(space.draw(n if space.columns else 1, np.random.default_rng(seed))):
        yield sketch.candidate(space.values(row))


def right(program: Program, rules: tuple[Rule, ...], *, samples: int = 3, seed: int = 0) -> tuple[Sketch, ...]:
    """The sketches that rules make of a program for an A100: each is complete, keeps the limits and the meaning."""
    made = generate(program, rules, a100())
    assert made
    for sketch in made:
        everything_is_bound(sketch.program)
        for candidate in rows(sketch, 20, seed):
            fits(candidate, a100())
        small.keeps(program, sketch, samples=samples, seed=seed)
    return made
