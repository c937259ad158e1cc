"""The innermost loop of a block as a vector, where memory is contiguous along it, and its initial value split off."""

from __future__ import annotations

from pipeline.ir.expr import Expr, affine, loads
from pipeline.ir.poly import Poly
from pipeline.ir.program import Block, Loop
from pipeline.schedule.nest import block_at, find_loop, over_loops
from pipeline.schedule.sketch import Sketch
from pipeline.schedule.steps import DecomposeReduction, Reorder, Vectorize


def vectorized(sketch: Sketch, block: str, row: str) -> Sketch:
    """The innermost serial loop inside `row` as lanes; a reduction begins before the first of its loops."""
    found, place = block_at(sketch.program, block)
    inside = [loop for loop in place.loops if loop.kind == "serial" and loop.axes[0].var != row]
    if inside:
        last = inside[-1].axes[0]
        if last.extent != Poly.of(1) and contiguous(found, last.var):
            sketch = sketch.attempt(Vectorize(last.var))
    if found.combine is not None and found.init is not None:
        reduced = {n for it in found.iters if it.kind == "reduce" for n in _names(it.binding)}
        first = next((loop.axes[0].var for loop in place.loops if loop.axes[0].var in reduced), None)
        if first is not None and find_loop(sketch.program, first) is not None:
            sketch = sketch.apply(DecomposeReduction(block, first))
    return sketch


def contiguous_last(sketch: Sketch, block: str, row: str) -> Sketch:
    """The loops of a block inside `row` with one last along which memory is contiguous, where there is one."""
    found, place = block_at(sketch.program, block)
    names = [loop.axes[0].var for loop in place.loops]
    own: list[Loop] = list(place.loops[names.index(row) + 1 :])
    own = [loop for loop in own if loop.kind == "serial" and len(loop.axes) == 1]
    for loop in reversed(own):
        name = loop.axes[0].var
        if loop.axes[0].extent == Poly.of(1) or not contiguous(found, name):
            continue
        if loop is own[-1]:
            return sketch
        return sketch.attempt(Reorder((*(other.axes[0].var for other in own if other is not loop), name)))
    return sketch


def contiguous(block: Block, loop: str) -> bool:
    """Does at least one access step by one element along the loop, and none by more?"""
    unit = False
    indices = [load.indices for load in loads(block.value)] + [block.indices]
    for index in indices:
        forms = [affine(over_loops(block, i)) for i in index]
        if any(form is None for form in forms):
            return False
        moving = [d for d, form in enumerate(forms) if form is not None and form.coefficient(loop).terms]
        if not moving:
            continue
        last = forms[-1]
        if moving != [len(forms) - 1] or last is None or last.coefficient(loop) != Poly.of(1):
            return False
        unit = True
    return unit


def _names(binding: Expr) -> list[str]:
    form = affine(binding)
    return [] if form is None else [name for name, _ in form.terms]
