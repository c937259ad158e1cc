"""The protocol of rules: what an expert adds to the search space."""

from __future__ import annotations

from typing import Protocol

from pipeline.ir.target import Target
from pipeline.schedule.sketch import Sketch


class Rule(Protocol):
    """Looks at one block of a sketch and says in which ways its structure could be."""

    def apply(self, sketch: Sketch, block: str, target: Target) -> list[Sketch]:
        """The sketches that take the place of this one; none: the rule has nothing to say about the block."""
        ...
