"""The rule that computes whole rows at a time on a GPU: softmax, normalisation, norms."""

from __future__ import annotations

from dataclasses import dataclass, field

from pipeline.ir.expr import Var
from pipeline.ir.poly import Poly
from pipeline.ir.program import Alloc, Block, Program, walk
from pipeline.ir.target import Gpu, Target
from pipeline.schedule.constraint import AtMost
from pipeline.schedule.nest import all_blocks, block_at, loop_at
from pipeline.schedule.rewrite import reduce_variables
from pipeline.schedule.sketch import Sketch
from pipeline.schedule.steps import (
    Bind,
    Blockize,
    CacheWrite,
    ComputeAt,
    DecomposeReduction,
    Fuse,
    Privatize,
    Reorder,
    Rfactor,
    Split,
    Tensorize,
    Unroll,
    Vectorize,
)
from pipeline.schedule.variables import Choice
from rules.schedule.gpu_allocated import ADDRESSING, GpuAllocated
from rules.schedule.gpu_decompose import decomposed
from rules.schedule.gpu_feasible import feasible, legal
from rules.schedule.gpu_lane import vector_widths
from rules.schedule.scheduled import is_row_reduction, is_scheduled

LANES = 32
SHORTEST = 16  # terms of a row for which lanes pay where it is reduced once
SHORT = 2  # and where it is reduced again, which would take a kernel for each time
WARPS = (1, 2, 4, 8, 16, 32)
HELD = 128  # registers of a thread for what it keeps of a row


@dataclass(frozen=True, slots=True)
class GpuRowReduction:
    """Reductions along contiguous rows, and what is computed from them, in one kernel: some rows in each block.

    A row is shared out among the lanes of one warp, or of several: each thread reduces its part, a warp adds up what
    its lanes have, one thread what the warps have. What is made of a row element by element stays with the thread that
    made it, in registers, where all that read it share rows out in the same way, else in shared memory.

    Rows of a block, warps of a row and the width of the accesses are parameters.
    """

    def apply(self, sketch: Sketch, block: str, target: Target) -> list[Sketch]:
        if target.gpu is None:
            return []
        every = [found for found, place in all_blocks(sketch.program) if not place.prologue]
        made: list[Sketch] = []
        if every and every[-1].name == block:
            ends = (_together(sketch, every[first:], target.gpu) for first in range(len(every)))
            made = next((found for found in ends if found), [])
        alone = [found for found in every if found.name == block]
        return made or _together(sketch, alone, target.gpu)


def _together(sketch: Sketch, every: list[Block], gpu: Gpu) -> list[Sketch]:
    """The ways to compute some blocks, the last of which needs all others, in one kernel."""
    program = sketch.program
    if any(is_scheduled(block_at(program, found.name)[1]) for found in every):
        return []
    reductions = [found for found in every if found.combine is not None]
    if not reductions or not all(found.init is not None and is_row_reduction(found) for found in reductions):
        return []
    ranks = {sum(it.kind == "spatial" for it in found.iters) for found in reductions}
    if len(ranks) != 1 or not all(_plain(program, found) for found in every):
        return []
    rank = ranks.pop()
    if rank == 0 or any(sum(it.kind == "spatial" for it in found.iters) < rank for found in every):
        return []
    if max(_last(found) for found in reductions) < (SHORTEST if len(reductions) == 1 else SHORT):
        return []
    several = any(it.extent.value > 1 for it in every[-1].iters[:rank])
    names = [found.name for found in every]
    ways = (False, True) if several else (True,)
    made: list[Sketch] = []
    for wide in ways:
        made += legal(_Rows(sketch, gpu, rank, [*names], several, wide).schedule, f"rows of {names[-1]}")
    return made


@dataclass(slots=True)
class _Rows:
    """One way to schedule all blocks of a program in one kernel.

    names     of the blocks, the last one that which needs all others
    several   there are several rows
    wide      several warps to a row
    """

    sketch: Sketch
    gpu: Gpu
    rank: int
    names: list[str]
    several: bool
    wide: bool
    width: Poly = field(default_factory=lambda: Poly.of(1))
    rows: Poly = field(default_factory=lambda: Poly.of(1))
    warps: Poly = field(default_factory=lambda: Poly.of(1))
    partials: list[str] = field(default_factory=list)  # each thread's
    sums: list[str] = field(default_factory=list)  # of the lanes of a warp
    passes: list[str] = field(default_factory=list)  # loops of a thread along its part of a row

    @property
    def root(self) -> str:
        return self.names[-1]

    def schedule(self) -> Sketch | None:
        """The sketch with all of it, which has a candidate; None where there is none."""
        self.parameters(self.names)
        for name in tuple(self.names):
            if block_at(self.sketch.program, name)[0].combine is not None and not self.factored(name):
                return None
        row = self.grid()
        for name in reversed(self.names[:-1]):
            step = ComputeAt(name, row, "shared")
            if step.why_not(self.sketch.program) is not None:
                return None
            self.sketch = self.sketch.apply(step)
        self.sketch = self.sketch.apply(Bind(row, "blockIdx.x"))
        for name in self.names:
            self.threads(name, row)
        for held in (self.held(row), self.sketch):
            made = self.limited(held, row)
            if feasible(made):
                return made
        return None

    def held(self, row: str) -> Sketch:
        """What one thread makes and the same one reads, in its registers."""
        sketch = self.sketch
        for buffer in [s.buffer.name for s in walk(loop_at(sketch.program, row)[0]) if isinstance(s, Alloc)]:
            sketch = sketch.attempt(Privatize(buffer))
        if sketch is not self.sketch:  # registers have no addresses: what counts through them is unrolled
            for passes in self.passes:
                sketch = sketch.attempt(Unroll(passes))
        return sketch

    def parameters(self, every: list[str]) -> None:
        """Rows of a block, warps of a row, and elements of an access."""
        program = self.sketch.program
        widths = [
            frozenset(vector_widths(program, block, loop.axes[0].var, loop.axes[0].extent.value))
            for block in (block_at(program, name)[0] for name in every)
            for loop in block_at(program, block.name)[1].loops[-1:]
            if len(block.iters) > self.rank and loop.axes[0].extent.value > 1
        ]
        shared = sorted(frozenset.intersection(*widths)) if widths else [1]
        self.sketch = self.sketch.declare(Choice(f"{self.root}_v", tuple(shared)))
        self.width = Poly.symbol(f"{self.root}_v")
        if self.several:
            self.sketch = self.sketch.declare(Choice(f"{self.root}_r", WARPS[:5]))
            self.rows = Poly.symbol(f"{self.root}_r")
        if self.wide:
            self.sketch = self.sketch.declare(Choice(f"{self.root}_w", WARPS[1:]))
            self.warps = Poly.symbol(f"{self.root}_w")
        self.sketch = self.sketch.require(AtMost(f"{self.root}: warps of a block", self.rows * self.warps, 32))

    def parts(self, loop: str) -> tuple[str, ...]:
        """A loop along the row, in passes, warps, lanes and elements of an access."""
        middle = (f"{loop}_w", f"{loop}_l") if self.wide else (f"{loop}_l",)
        names = (f"{loop}_c", *middle, f"{loop}_v")
        factors = (self.warps, Poly.of(LANES), self.width) if self.wide else (Poly.of(LANES), self.width)
        self.sketch = self.sketch.apply(Split(loop, factors, names))
        self.passes.append(names[0])
        return names

    def factored(self, name: str) -> bool:
        """A reduction in two or three: by threads, by lanes of a warp, by warps."""
        block, place = block_at(self.sketch.program, name)
        last = place.loops[-1].axes[0].var
        if last not in reduce_variables(block):
            return False
        names = self.parts(last)
        axis, middle = self.rank, names[1:-1]
        source = name
        for loop in middle:
            step = Rfactor(source, loop, axis)
            if step.why_not(self.sketch.program) is not None:
                return False
            self.sketch = self.sketch.apply(step)
            self.names.insert(self.names.index(source), f"{source}_rf")
            source, axis = f"{source}_rf", axis + 1
        self.partials.append(source)
        self.sums.append(source.removesuffix("_rf"))
        return True

    def grid(self) -> str:
        """The loop over blocks of rows, with the rows of a block inside it."""
        _, place = block_at(self.sketch.program, self.root)
        outer = list(place.loops[: self.rank])
        cut = max(outer, key=lambda loop: loop.axes[0].extent.value)
        name = cut.axes[0].var
        grid = [*(loop.axes[0].var for loop in outer if loop is not cut), name]
        if self.several:
            self.sketch = self.sketch.apply(Split(name, (self.rows,), (f"{name}_b", f"{name}_r")))
            grid[-1] = f"{name}_b"
            self.sketch = self.sketch.apply(Reorder((*grid, f"{name}_r")))
        if len(grid) > 1:
            self.sketch = self.sketch.apply(Fuse(tuple(grid)))
        return grid[0]

    def threads(self, name: str, row: str) -> None:
        """The threads of one block."""
        block, place = block_at(self.sketch.program, name)
        around = loop_at(self.sketch.program, row)[0]
        own = [loop for loop in place.inside(around) if loop.axes[0].extent != Poly.of(1)]
        mine = [loop.axes[0].var for loop in own]
        rows = [loop.axes[0].var for loop in own if loop.axes[0].extent == self.rows][:1]
        reduced = [var for var in mine if var in reduce_variables(block)]
        along = [var for var in mine if var not in rows and var not in reduced]
        if name in self.sums:
            self.lanes(name, rows, along, reduced)
        elif name in self.partials:
            self.bind([*rows, *along[:-1]], along[-1], reduced)
            self.sketch = self.sketch.attempt(CacheWrite(name, "local", along[-1]))
            self.sketch = self.sketch.attempt(Vectorize(reduced[-1]))
        elif along and not reduced:
            *others, last = along
            parts = self.parts(last)
            self.bind([*rows, *parts[1:-2]], parts[-2], [*others, parts[0], parts[-1]])
            self.sketch = self.sketch.attempt(Vectorize(parts[-1]))
        elif rows:
            self.sketch = self.sketch.apply(Bind(rows[0], "threadIdx.x"))
        self.sketch = decomposed(self.sketch, name)

    def bind(self, warps: list[str], lane: str, inner: list[str]) -> None:
        """Warps and lanes outside, everything else inside."""
        if len(wanted := (*warps, lane, *inner)) > 1:
            self.sketch = self.sketch.apply(Reorder(wanted))
        if len(warps) > 1:
            self.sketch = self.sketch.apply(Fuse(tuple(warps)))
        self.sketch = self.sketch.apply(Bind(lane, "threadIdx.x"))
        if warps:
            self.sketch = self.sketch.apply(Bind(warps[0], "threadIdx.y"))

    def lanes(self, name: str, rows: list[str], along: list[str], reduced: list[str]) -> None:
        """What the lanes of a warp have, added up: by the warp together where it can."""
        block, _ = block_at(self.sketch.program, name)
        warps = [*rows, *along]
        if len(warps) > 1:
            self.sketch = self.sketch.apply(Fuse(tuple(warps)))
        self.sketch = self.sketch.apply(DecomposeReduction(name, warps[0]))
        self.sketch = self.sketch.apply(Bind(f"{name}_i_{warps[0]}", "threadIdx.x"))
        unit = self.sketch.attempt(Blockize(reduced[-1]))
        step = Tensorize(reduced[-1], f"warp.{block.combine}_{LANES}")
        if step.why_not(unit.program) is None:
            self.sketch = unit.apply(step).apply(Bind(warps[0], "threadIdx.y"))
        else:
            self.sketch = self.sketch.apply(Bind(warps[0], "threadIdx.x"))

    def limited(self, sketch: Sketch, row: str) -> Sketch:
        """The limits that all of it keeps."""
        found = GpuAllocated.of(loop_at(sketch.program, row)[0])
        sketch = sketch.require(AtMost(f"{self.root}: shared bytes", found.shared, self.gpu.shared_per_block))
        sketch = sketch.require(AtMost(f"{self.root}: bytes of a row in registers", found.held, 4 * HELD))
        registers = (found.held + 4 * ADDRESSING) * self.rows * self.warps * LANES
        return sketch.require(AtMost(f"{self.root}: registers", registers, 4 * self.gpu.registers))


def _plain(program: Program, block: Block) -> bool:
    _, place = block_at(program, block.name)
    loops = len(place.path) == len(place.loops) == len(block.iters)
    return loops and not block.where and all(isinstance(it.binding, Var) and it.kind != "scan" for it in block.iters)


def _last(block: Block) -> int:
    return next((it.extent.value for it in reversed(block.iters) if it.kind == "reduce"), 1)
