"""The space of a task: rules applied block by block, from the outputs to the inputs, give its sketches."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.errors import CheckError
from pipeline.ir.program import Program, blocks
from pipeline.ir.program_check import check
from pipeline.ir.program_text import to_text
from pipeline.ir.target import Target
from pipeline.schedule.rule import Rule
from pipeline.schedule.sketch import Sketch

MOST = 24  # sketches of one task: each wants measurements of its own


def generate(program: Program, rules: Sequence[Rule], target: Target) -> tuple[Sketch, ...]:
    """Different sketches, each checked; the rules stand in the order in which they are applied."""
    sketches = [Sketch(program)]
    for rule in rules:
        sketches = [made for sketch in sketches for made in _through(rule, sketch, target)][:MOST]
    different: dict[str, Sketch] = {}
    for sketch in sketches:
        _legal(sketch, rules)
        different.setdefault(to_text(sketch.program), sketch)
    return tuple(different.values())


def _through(rule: Rule, sketch: Sketch, target: Target) -> list[Sketch]:
    """The sketches that one rule makes of one, every block having had its turn."""
    frontier = [sketch]
    for name in reversed([block.name for block in blocks(sketch.program)]):
        following: list[Sketch] = []
        for current in frontier:
            alive = any(block.name == name for block in blocks(current.program))
            following.extend((rule.apply(current, name, target) if alive else None) or [current])
        frontier = following
    return frontier


def _legal(sketch: Sketch, rules: Sequence[Rule]) -> None:
    """A sketch that breaks an invariant is a defect of a rule: name them."""
    try:
        check(sketch.program)
    except CheckError as error:
        names = ", ".join(type(rule).__name__ for rule in rules)
        raise CheckError(
            f"a rule made a program that is not legal: {error}", where=sketch.program.name, why=f"rules: {names}"
        ) from error
