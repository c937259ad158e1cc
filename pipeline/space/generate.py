"""The space of a task: rules applied block by block, from the outputs to the inputs, give its sketches."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import islice

from pipeline.errors import CheckError
from pipeline.ir.program import Program, blocks
from pipeline.ir.program_check import check
from pipeline.ir.program_text import to_text
from pipeline.ir.target import Target
from pipeline.schedule.rule import Rule
from pipeline.schedule.sketch import Sketch

log = logging.getLogger("pipeline")

MOST = 24  # sketches of one task: each wants measurements of its own


def generate(start: Program | Sketch, rules: Sequence[Rule], target: Target) -> tuple[Sketch, ...]:
    """Different sketches, each checked; the rules stand in the order in which they are applied.

    start  the program of a task, or a sketch whose outer structure is fixed already
    """
    first = start if isinstance(start, Sketch) else Sketch(start)
    different: dict[str, Sketch] = {}
    for sketch in _applied(first, rules, target, checked=False):
        if _illegal(sketch) is not None:
            _applied(first, rules, target, checked=True)  # again, to find the rule that did it
        check(sketch.program)
        different.setdefault(to_text(sketch.program), sketch)
    return tuple(different.values())


def _applied(first: Sketch, rules: Sequence[Rule], target: Target, *, checked: bool) -> list[Sketch]:
    sketches = [first]
    for rule in rules:
        sketches = [made for sketch in sketches for made in _through(rule, sketch, target, checked)][:MOST]
    return sketches


def _through(rule: Rule, sketch: Sketch, target: Target, checked: bool) -> list[Sketch]:
    """The sketches that one rule makes of one, every block having had its turn."""
    frontier = [sketch]
    for name in reversed([block.name for block in blocks(sketch.program)]):
        following: list[Sketch] = []
        for current in frontier:
            alive = any(block.name == name for block in blocks(current.program))
            following.extend((_turn(rule, current, name, target, checked) if alive else None) or [current])
        frontier = following[:MOST]  # the first ones stay the first ones, whatever becomes of the others
    return frontier


def _turn(rule: Rule, sketch: Sketch, block: str, target: Target, checked: bool) -> list[Sketch]:
    """What the rule makes of the sketch; whatever goes wrong in it is told with its name and the block's."""
    try:
        made = list(islice(rule.apply(sketch, block, target) or (), MOST))
    except KeyboardInterrupt:
        log.warning("interrupted while %s looked at block %s of %s", _name(rule), block, sketch.program.name)
        raise
    except Exception as error:  # a user's code
        said = str(error).rstrip(".") or "no message"
        raise _defect(rule, block, sketch, f"it raised {type(error).__name__}: {said}") from error
    for one in made:
        if not isinstance(one, Sketch):
            raise _defect(rule, block, sketch, f"it gave {one!r:.60} where a Sketch was expected")
        reason = _illegal(one) if checked else None
        if reason is not None:
            raise _defect(rule, block, sketch, f"it made a program that is not legal: {reason}")
    return made


def _illegal(sketch: Sketch) -> str | None:
    try:
        check(sketch.program)
    except CheckError as error:
        return str(error)
    return None


def _defect(rule: Rule, block: str, sketch: Sketch, why: str) -> CheckError:
    return CheckError(
        f"the rule {_name(rule)} does not work on block '{block}'",
        where=sketch.program.name,
        why=why,
        todo="Correct the rule, or take it out of the configuration",
    )


def _name(rule: Rule) -> str:
    return f"{type(rule).__module__}.{type(rule).__qualname__}"
