"""The rule that offers to compute a producer inside the loops of its consumers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from pipeline.ir.expr import variables
from pipeline.ir.poly import Poly
from pipeline.ir.program import Block, Loop, Program
from pipeline.ir.target import Target
from pipeline.schedule.nest import Place, block_at, blocks_in, find_buffer, loads_of, loop_at, over_loops, readers
from pipeline.schedule.rewrite import reduce_variables
from pipeline.schedule.sketch import Sketch
from pipeline.schedule.steps import ComputeAt, Fuse, Parallel, Split
from pipeline.schedule.variables import Tile
from rules.schedule.innermost import contiguous, contiguous_last, vectorized
from rules.schedule.scheduled import is_scheduled, lanes_of

VECTORS = 16  # of a piece of a row that is computed and used at once
AGAIN = 4  # times the work of a producer, where that is known: more is not offered


@dataclass(frozen=True, slots=True)
class RandomComputeLocation:
    """Compute what AutoInline has not inlined, and no rule has scheduled, where it is used: in a loop of its consumers.

    The sketch stays as it is, too: which place is best is for the search to find out. Offered are, of the loops around
    all consumers, at most

    - the outermost, where an iteration's share is computed at once and stays in the cache of its core, and
    - the innermost that is not reduced over: of consumers without a schedule yet, a piece of the row as long as a
      parameter says; of others, the innermost loop that the producer depends on.

    A consumer's nest without a schedule gets one: threads share its outer spatial loops, and the innermost loop of each
    block is vectorized. Where the buffer shrinks, it is a core's own.
    """

    def apply(self, sketch: Sketch, block: str, target: Target) -> list[Sketch]:
        found, place = block_at(sketch.program, block)
        users = readers(sketch.program, found.buffer)
        buffer = find_buffer(sketch.program, found.buffer)
        if place.prologue or is_scheduled(place) or not users or buffer is None or buffer.role != "intermediate":
            return []
        root = users[0][1].root
        if buffer.scope != "global" or root is place.root or not isinstance(root, Loop):
            return []
        if any(where.root is not root or where.prologue for _, where in users):
            return []
        if all(is_scheduled(where) for _, where in users):
            made = self._in_schedule(sketch, found, [where for _, where in users])
        elif len(blocks_in(root)) == len(users) == 1:
            made = self._with_schedule(sketch, found, *users[0], target)
        else:
            made = []
        return [sketch, *made] if made else []

    def _in_schedule(self, sketch: Sketch, block: Block, users: Sequence[Place]) -> list[Sketch]:
        """Of consumers whose loops have their kinds."""
        shared = [
            loop
            for loop in users[0].loops
            if loop.kind in ("serial", "parallel") and all(any(loop is o for o in user.loops) for user in users)
        ]
        needed = _moving(sketch.program, block)
        wanted = [loop for loop in shared if any(axis.var in needed for axis in loop.axes)]
        reduced = set().union(*(reduce_variables(user) for user, _ in readers(sketch.program, block.buffer)))
        inner = [loop for loop in wanted if not any(axis.var in reduced for axis in loop.axes)]
        places = [loop.axes[0].var for loop in (shared[:1] + inner[-1:])]
        made = []
        for loop in dict.fromkeys(places):
            moved = _moved(sketch, block, loop)
            if moved is not None:
                made.append(vectorized(contiguous_last(moved, block.name, loop), block.name, loop))
        return made

    def _with_schedule(self, sketch: Sketch, block: Block, user: Block, place: Place, target: Target) -> list[Sketch]:
        """Of a consumer that has no schedule yet."""
        reduced = reduce_variables(user)
        names = [loop.axes[0].var for loop in place.loops]
        spatial = []
        for name in names:
            if name in reduced:
                break
            spatial.append(name)
        if not spatial:
            return []
        made = [self._scheduled(_moved(sketch, block, spatial[0]), block.name, user.name, spatial[:1])]
        last = spatial[-1]
        extent = loop_at(sketch.program, last)[0].axes[0].extent.value
        lanes = lanes_of(sketch.program, user, target)
        if last == names[-1] and extent > lanes and contiguous(user, last):
            symbol, parts = f"t_{last}_1", (f"{last}_0", f"{last}_1")
            cut = sketch.declare(Tile((symbol,), extent, (lanes,), (min(VECTORS * lanes, extent),)))
            cut = cut.apply(Split(last, (Poly.symbol(symbol),), parts))
            outer = [*spatial[:-1], parts[0]]
            made.append(self._scheduled(_moved(cut, block, parts[0]), block.name, user.name, outer))
        elif len(spatial) > 1:
            inner = spatial[:-1] if last == names[-1] else spatial
            if inner != spatial[:1]:
                made.append(self._scheduled(_moved(sketch, block, inner[-1]), block.name, user.name, inner))
        return [found for found in made if found is not None]

    def _scheduled(self, sketch: Sketch | None, producer: str, user: str, outer: list[str]) -> Sketch | None:
        """Threads over the outer loops, at the last of which the producer is; lanes inside."""
        if sketch is None:
            return None
        for name in (producer, user):
            sketch = vectorized(contiguous_last(sketch, name, outer[-1]), name, outer[-1])
        if len(outer) > 1:
            step = Fuse(tuple(outer))
            if step.why_not(sketch.program) is not None:
                return None
            sketch = sketch.apply(step)
        shared = Parallel(outer[0])
        return sketch.apply(shared) if shared.why_not(sketch.program) is None else None


def _moved(sketch: Sketch, block: Block, loop: str) -> Sketch | None:
    """The producer at a loop, its buffer as small as can be; None where that is not legal or far too much work."""
    _, before = block_at(sketch.program, block.name)
    step = ComputeAt(block.name, loop, "shared")
    if step.why_not(sketch.program) is not None:
        return None
    made = sketch.apply(step)
    found, after = block_at(made.program, block.name)
    work = [axis.extent for place in (before, after) for axis in place.axes]
    if all(extent.is_constant for extent in work):
        old, new = (prod(axis.extent.value for axis in place.axes) for place in (before, after))
        if new > AGAIN * old:
            return None
    # where extents are parameters, loops that the producer does not depend on do all of its work over again
    own = frozenset().union(*(variables(it.binding) for it in found.iters))
    repeated = [axis.extent for axis in after.axes if axis.var not in own and axis.extent.is_constant]
    return made if prod(extent.value for extent in repeated) <= AGAIN else None


def _moving(program: Program, block: Block) -> frozenset[str]:
    """The loops around the consumers that say which elements of the producer they read."""
    names: frozenset[str] = frozenset()
    for user, _ in readers(program, block.buffer):
        for load in loads_of(user):
            if load.buffer == block.buffer:
                names = names.union(*(variables(over_loops(user, index)) for index in load.indices))
    return names
