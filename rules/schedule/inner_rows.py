"""The rule that vectorizes the elementwise work and the row reductions that share a nest with others."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.ir.expr import affine, variables
from pipeline.ir.poly import Poly
from pipeline.ir.target import Target
from pipeline.schedule.nest import block_at, loads_of, over_loops
from pipeline.schedule.sketch import Sketch
from pipeline.schedule.steps import DecomposeReduction, Reorder, Vectorize
from rules.schedule.inside_nest import own_loops
from rules.schedule.transpose import sides_of, turned


@dataclass(frozen=True, slots=True)
class InnerRows:
    """Lanes run along the loop, of those that are the block's own, where the most accesses step by one element.

    What reads along one loop and stores along another is turned, as `Transpose` does it.

    A reduction along that loop fills a vector of partial results. Its initial value becomes a block of its own.
    """

    def apply(self, sketch: Sketch, block: str, target: Target) -> list[Sketch]:
        found, _ = block_at(sketch.program, block)
        own = own_loops(sketch.program, block)
        if own is None:
            return []
        names = [loop.axes[0].var for loop in own]
        sides = sides_of(found, [loop.axes[0] for loop in own]) if found.combine is None else None
        if sides is not None and all(it.kind == "spatial" for it in found.iters):
            across = [axis.var for axis in sides]
            made = turned(sketch, (*(name for name in names if name not in across), *across))
            if made is not None:
                return [made]
        scores = {}
        for loop in own:
            var = loop.axes[0].var
            score = 0.0
            for indices in (found.indices, *(load.indices for load in loads_of(found))):
                forms = [affine(over_loops(found, index)) for index in indices]
                moving = [d for d, form in enumerate(forms) if form is None or form.coefficient(var).terms]
                last = forms[-1] if forms else None
                if moving:
                    side = moving == [len(forms) - 1] and last is not None and last.coefficient(var) == Poly.of(1)
                    score += 1.0 if side else -2.0
            scores[var] = score
        best = max(names, key=lambda name: scores[name], default=None)
        if best is not None and scores[best] > 0:
            if best != names[-1]:
                sketch = sketch.attempt(Reorder((*(name for name in names if name != best), best)))
            _, place = block_at(sketch.program, block)
            if place.loops[-1].axes[0].var == best and place.loops[-1].axes[0].extent != Poly.of(1):
                sketch = sketch.attempt(Vectorize(best))
        if found.combine is not None and found.init is not None:
            reduced = {name for it in found.iters if it.kind == "reduce" for name in variables(it.binding)}
            _, place = block_at(sketch.program, block)
            mine = [loop.axes[0].var for loop in place.loops if loop.axes[0].var in names]
            first = next((name for name in mine if name in reduced), None)
            if first is not None:
                sketch = sketch.apply(DecomposeReduction(block, first))
        return [sketch]
