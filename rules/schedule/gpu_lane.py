"""Along which loop of a block neighbouring threads run, and how many elements each of them can move at a time."""

from __future__ import annotations

from collections.abc import Iterable

from pipeline.ir.expr import Expr, affine, variables
from pipeline.ir.graph import ITEM_BYTES
from pipeline.ir.poly import Poly
from pipeline.ir.program import Block, Loop, Program
from pipeline.schedule.nest import affine_over_loops, find_buffer, loads_of, over_loops

WIDEST = 16  # bytes of one access of a thread
WIDTHS = (1, 2, 4, 8)  # elements of one access
SAME, NEAR, FAR, UNKNOWN = 0.5, 1.0, -1.0, -0.5


def lane_loop(block: Block, loops: Iterable[Loop]) -> Loop | None:
    """The loop along which the store, and as many loads as can be, step by one element; the innermost of equals."""
    best: tuple[float, Loop] | None = None
    for loop in loops:
        var = loop.axes[0].var
        score = 2.0 * _step(block, block.indices, var)
        score += sum(_step(block, load.indices, var) for load in loads_of(block))
        if best is None or score >= best[0]:
            best = (score, loop)
    return None if best is None else best[1]


def vector_widths(program: Program, block: Block, var: str, extent: int) -> tuple[int, ...]:
    """So many elements along a loop may be one access of a thread: whole vectors, aligned wherever they begin."""
    stored = find_buffer(program, block.buffer)
    assert stored is not None
    accesses = [(block.buffer, block.indices)] + [(load.buffer, load.indices) for load in loads_of(block)]
    widest, together = 1, False
    for name, indices in accesses:
        buffer = find_buffer(program, name)
        if buffer is not None and _step(block, indices, var) == NEAR:
            widest, together = max(widest, ITEM_BYTES[buffer.dtype]), True
    most = WIDEST // widest if together else 1
    aligned = _step(block, block.indices, var) != NEAR or _pitch(program, block, block.buffer, block.indices, var)
    return tuple(w for w in WIDTHS if w <= most and extent % w == 0 and (w == 1 or aligned is True or aligned % w == 0))


def _pitch(program: Program, block: Block, name: str, indices: tuple[Expr, ...], var: str) -> int:
    """The largest power of two, up to 8, that divides every place in a buffer where a vector along `var` can begin;
    `var` itself is taken to move in whole vectors."""
    buffer = find_buffer(program, name)
    assert buffer is not None
    steps = [buffer.shape[-1]] if len(indices) > 1 else []
    form = affine_over_loops(block, indices[-1])
    if form is None:
        return 1
    steps += [coefficient for other, coefficient in form.terms if other != var] + [form.constant]
    for width in reversed(WIDTHS):
        if all(step.quotient(Poly.of(width)) is not None for step in steps if step.terms):
            return width
    return 1


def _step(block: Block, indices: tuple[Expr, ...], var: str) -> float:
    """NEAR where neighbours along the loop are neighbours in memory, SAME where they are one element."""
    over = [over_loops(block, index) for index in indices]
    moving = [d for d, index in enumerate(over) if var in variables(index)]
    if not moving:
        return SAME
    form = affine(over[moving[0]])
    if form is None:
        return UNKNOWN
    return NEAR if moving == [len(over) - 1] and form.coefficient(var) == Poly.of(1) else FAR
