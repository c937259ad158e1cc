"""The rule that lets the threads of a block share the work of each block of a kernel that several blocks are in."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.ir.lockstep import THREADS
from pipeline.ir.poly import Poly
from pipeline.ir.program import Loop, walk
from pipeline.ir.target import Target
from pipeline.schedule.constraint import AtMost
from pipeline.schedule.nest import Place, block_at, blocks_in
from pipeline.schedule.sketch import Sketch
from pipeline.schedule.steps import Bind, Fuse, Reorder, Split
from pipeline.schedule.steps.parallel import carried_by
from pipeline.schedule.variables import Choice
from rules.schedule.gpu_decompose import decomposed
from rules.schedule.gpu_lane import lane_loop

LANES = (32, 64, 128, 256)  # threads along the loop along which memory is contiguous
OTHERS = (1, 2, 4, 8)  # threads along the one before it


@dataclass(frozen=True, slots=True)
class GpuInnerThreads:
    """Inside a grid or parallel loop that several blocks share, threads share the loops that are one block's own.

    A reduction stays inside a thread. The threads meet after each block.
    """

    def apply(self, sketch: Sketch, block: str, target: Target) -> list[Sketch]:
        if target.gpu is None:
            return []
        _, place = block_at(sketch.program, block)
        root = place.root
        if not isinstance(root, Loop) or root.kind not in ("parallel", "blockIdx.x") or len(blocks_in(root)) < 2:
            return []
        if any(loop.kind in THREADS for loop in place.loops):
            return []
        if root.kind == "parallel":
            sketch = sketch.apply(Bind(root.axes[0].var, "blockIdx.x"))
        return [decomposed(bound_inside(sketch, block, target.gpu.threads_per_block), block)]


def bound_inside(sketch: Sketch, block: str, most: int) -> Sketch:
    """The loops around nothing but the block, as far as they are free, given to threads."""
    found, place = block_at(sketch.program, block)
    own = _own(place)
    free = [loop for loop in own if carried_by(loop, reductions=False) is None]
    lane = lane_loop(found, [loop for loop in free if loop.axes[0].extent != Poly.of(1)] or free)
    if lane is None:
        return sketch
    order = [*(loop for loop in free if loop is not lane), lane]
    rest = [loop for loop in own if not any(loop is other for other in free)]
    names = [loop.axes[0].var for loop in (*order, *rest)]
    if len(names) > 1 and names != [loop.axes[0].var for loop in own]:
        step = Reorder(tuple(names))
        if step.why_not(sketch.program) is not None:
            order = [free[0]] if free[0] is own[0] else []
            rest = [loop for loop in own if loop not in order]
        else:
            sketch = sketch.apply(step)
    outer: list[str] = []
    threads: list[str] = []
    count, least = Poly.of(1), 1
    most_x = min(most, _width(place))
    for number, loop in enumerate(reversed(order)):
        name, extent = loop.axes[0].var, loop.axes[0].extent
        if (
            extent.is_constant
            and least * extent.value <= (most_x if number == 0 else most_x // 4)
            and count.is_constant
        ):
            threads.insert(0, name)
            count, least = count * extent, least * extent.value
            continue
        if number > 1:
            outer.insert(0, name)
            continue
        top = extent.value if extent.is_constant else most_x
        options = tuple(n for n in (LANES if number == 0 else OTHERS) if n <= min(most_x // least, max(top, 1)))
        if not options or options == (1,):
            outer.insert(0, name)
            continue
        symbol = f"t_{name}_t"
        sketch = sketch.declare(Choice(symbol, options))
        sketch = sketch.apply(Split(name, (Poly.symbol(symbol),), (f"{name}_s", f"{name}_t")))
        outer.insert(0, f"{name}_s")
        threads.insert(0, f"{name}_t")
        count, least = count * Poly.symbol(symbol), least * options[0]
    if not threads:
        return sketch
    if not count.is_constant:
        sketch = sketch.require(AtMost(f"threads for {block}", count, most_x))
    inner = [loop.axes[0].var for loop in rest]
    wanted = (*threads, *outer, *inner)
    if len(wanted) > 1:
        sketch = sketch.apply(Reorder(wanted))
    if len(threads) > 1:
        sketch = sketch.apply(Fuse(tuple(threads)))
    return sketch.attempt(Bind(threads[0], "threadIdx.x"))


def _own(place: Place) -> list[Loop]:
    """The serial loops around nothing but the block that follow one another without anything in between."""
    own: list[Loop] = []
    for stmt in place.path:
        if isinstance(stmt, Loop) and stmt.kind == "serial" and len(blocks_in(stmt)) == 1 and not stmt.annotations:
            if own and own[-1].body is not stmt:
                break
            if len(stmt.axes) == 1:
                own.append(stmt)
        elif own:
            break
    return own


def _width(place: Place) -> int:
    """The most threads that a loop of threadIdx.x may have: a warp where others say which warp it is."""
    warps = any(isinstance(s, Loop) and s.kind in ("threadIdx.y", "threadIdx.z") for s in walk(place.root))
    return 32 if warps else 1024
