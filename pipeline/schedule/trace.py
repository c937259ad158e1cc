"""The trace: what built a sketch, as data that can be replayed and survives JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, cast

from pipeline.ir.program import Program
from pipeline.schedule.codec import decode, encode
from pipeline.schedule.constraint import CONSTRAINTS, AtMost, Divides, MultipleOf
from pipeline.schedule.sketch import Entry, Sketch
from pipeline.schedule.steps import STEPS
from pipeline.schedule.variables import VARIABLES, Choice, Tile

KINDS: dict[str, type] = {**STEPS, **VARIABLES, **CONSTRAINTS}


def replay(program: Program, trace: Iterable[Entry]) -> Sketch:
    """The sketch that a trace builds from a program."""
    sketch = Sketch(program)
    for entry in trace:
        match entry:
            case Tile() | Choice():
                sketch = sketch.declare(entry)
            case AtMost() | Divides() | MultipleOf():
                sketch = sketch.require(entry)
            case _:
                sketch = sketch.apply(entry)
    return sketch


def to_json(trace: Iterable[Entry]) -> str:
    """One line of JSON, the same for equal traces."""
    return json.dumps([encode(entry) for entry in trace], separators=(",", ":"))


def from_json(text: str) -> tuple[Entry, ...]:
    data: list[dict[str, Any]] = json.loads(text)
    return tuple(cast(Entry, decode(entry, KINDS)) for entry in data)
