"""The rule that computes elementwise blocks where they are used, or where their operand is made."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.ir.expr import Op, walk
from pipeline.ir.program import Block, Program
from pipeline.ir.target import Target
from pipeline.schedule.nest import block_at, find_buffer, loads_of, readers, writers
from pipeline.schedule.sketch import Sketch
from pipeline.schedule.steps import Inline

COSTLY = frozenset({"exp", "log", "tanh", "erf", "sigmoid", "pow", "sin", "cos", "tan", "asin", "acos", "atan", "sinh",
                    "cosh", "asinh", "acosh", "atanh", "mod", "fmod", "guard"})  # fmt: skip


@dataclass(frozen=True, slots=True)
class AutoInline:
    """Inline a producer into its consumers where nothing costly is computed twice by it.

    A block that only moves or cheaply changes elements goes into every consumer; one with a costly function only where
    it is used once. A reduction that reads its operands many times takes in nothing but moves.
    """

    def apply(self, sketch: Sketch, block: str, target: Target) -> list[Sketch]:
        del target
        program = sketch.program
        found, _ = block_at(program, block)
        buffer = find_buffer(program, found.buffer)
        if found.combine is not None or buffer is None or buffer.role != "intermediate":
            return []
        if len(writers(program, found.buffer)) != 1:
            return []
        users = [user for user, _ in readers(program, found.buffer)]
        if not users or not self._worth(program, found, users):
            return []
        step = Inline(block)
        return [sketch.apply(step)] if step.why_not(program) is None else []

    def _worth(self, program: Program, block: Block, users: list[Block]) -> bool:
        costly = any(isinstance(node, Op) and node.fn in COSTLY for node in walk(block.value))
        moves = not any(isinstance(node, Op) and node.dtype != "int64" for node in walk(block.value))
        if moves:
            return True
        if any(_reuses(user) for user in users):
            return False
        return not costly or (len(users) == 1 and sum(load.buffer == block.buffer for load in loads_of(users[0])) == 1)


def _reuses(block: Block) -> bool:
    """Does the reduction read some operand more than once? A product does, a sum over rows does not."""
    return block.combine is not None and len({load.buffer for load in loads_of(block)}) > 1
