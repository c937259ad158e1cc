"""The step that gives the code generator a hint about a loop."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pipeline.ir.annotation import wrong
from pipeline.ir.program import Program
from pipeline.schedule.nest import loop_at, no_loop, put, settled


@dataclass(frozen=True, slots=True)
class Annotate:
    """Give the code generator a hint about a loop; what the program computes stays the same.

    loop    name of the loop
    key     prefetch: at the start of each iteration, ask for what the iteration `value` later reads of global buffers ·
            prefetch_next: ask for what this iteration reads when the loop `value` around it is one on
    value   of the hint

    for i in range(n): s  ->  for i in range(n) with prefetch=4: s

    Hints go with their loop when it is reordered. A loop is split, fused, unrolled, vectorized or shared out before it
    gets one, for then there would be another loop, or none, to which it applies.

    Legal when the loop is serial, not fused, not part of a unit, and has no hint yet; the loop that `prefetch_next`
    names is a serial one around it, not fused, and stays that from then on. (The annotations blockize and tensorize are
    made by the steps of those names.)
    """

    loop: str
    key: str
    value: int | str

    def why_not(self, program: Program) -> str | None:
        if (reason := no_loop(program, self.loop) or wrong(self.key, self.value)) is not None:
            return reason
        if self.key not in ("prefetch", "prefetch_next"):
            return f"the annotation {self.key} is not a hint: the step {self.key.capitalize()} makes it"
        loop, place = loop_at(program, self.loop)
        if self.key == "prefetch_next":
            outer = [found for found in place.loops if found.axes[0].var == self.value]
            if not outer or outer[0].kind != "serial" or len(outer[0].axes) != 1:
                return (
                    f"there is no serial loop {self.value} around loop {self.loop}, whose next iteration could be meant"
                )
        if loop.kind != "serial":
            return f"loop {self.loop} is {loop.kind}: only a serial loop has a next iteration"
        if len(loop.axes) != 1:
            return f"loop {self.loop} is fused of {', '.join(a.var for a in loop.axes)}: it has no one variable"
        return settled(loop, "annotated again")

    def apply(self, program: Program) -> Program:
        loop, _ = loop_at(program, self.loop)
        return put(program, loop, replace(loop, annotations=(*loop.annotations, (self.key, self.value))))
