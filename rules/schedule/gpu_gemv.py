"""The rule for products with a few rows on a GPU: the large operand is read once, at the speed of memory."""

from __future__ import annotations

from dataclasses import dataclass, field

from pipeline.ir.expr import Var, variables
from pipeline.ir.graph import ITEM_BYTES
from pipeline.ir.poly import Poly
from pipeline.ir.target import Gpu, Target
from pipeline.schedule.constraint import AtMost
from pipeline.schedule.nest import block_at, find_buffer, loop_at, readers
from pipeline.schedule.rewrite import reduce_variables
from pipeline.schedule.sketch import Sketch
from pipeline.schedule.steps import (
    Bind,
    Blockize,
    CacheWrite,
    ComputeAt,
    DecomposeReduction,
    Fuse,
    Reorder,
    ReverseComputeAt,
    Rfactor,
    SetScope,
    Split,
    Tensorize,
    Unroll,
    Vectorize,
)
from pipeline.schedule.variables import Choice
from rules.schedule.gpu_allocated import ADDRESSING, GpuAllocated
from rules.schedule.gpu_decompose import decomposed
from rules.schedule.gpu_feasible import possible
from rules.schedule.gpu_tensor_product import GpuTensorProduct, product_of

FEW = 16
LANES = 32
MANY = (1, 2, 4, 8, 16, 32)


@dataclass(frozen=True, slots=True)
class GpuGemv:
    """A product with at most 16 rows (or columns): each thread adds up for all of them what it reads of the other
    operand, in vectors.

    Where that operand lies along the sum, the lanes of a warp share the terms of a few columns, and a reduction over
    lanes adds them up. Where it lies along the columns, lanes have columns of their own, and warps share the terms.
    Columns of a block, warps that share the terms of one and the width of the accesses are parameters.

    beside   the sketch stays as it is, too, for other rules
    """

    beside: bool = True

    def apply(self, sketch: Sketch, block: str, target: Target) -> list[Sketch]:
        if target.gpu is None:
            return []
        found = product_of(sketch.program, block, vectors=True)
        plan = None if found is None else _plan(sketch, found, target.gpu)
        if plan is None:
            return []
        made = possible(plan.along_sum if plan.summed else plan.along_columns, f"few rows of {block}")
        return [sketch, *made] if self.beside and made else made


def _plan(sketch: Sketch, found: GpuTensorProduct, gpu: Gpu) -> _Plan | None:
    """What is few and what is many of a product, where that is what it is."""
    block, place = block_at(sketch.program, found.block)
    extents = {axis.var: axis.extent.value for axis in place.axes}
    if found.lengths[1] > FEW >= found.lengths[0]:
        few, many, along, width = found.rows, found.columns, found.right == "nk", found.vector[1]
    elif found.lengths[0] > FEW >= found.lengths[1]:
        few, many, along, width = found.columns, found.rows, found.left == "mk", found.vector[0]
    else:
        return None
    dims = {
        variables(index).__iter__().__next__(): d for d, index in enumerate(block.indices) if isinstance(index, Var)
    }
    loops = {it.binding.name: dims[it.var] for it in block.iters if isinstance(it.binding, Var) and it.var in dims}
    wide = [loop for loop in many if extents[loop] > 1]
    sums = [loop for loop in found.sums if extents[loop] > 1]
    if len(wide) != 1 or not sums or len(loops) != sum(it.kind == "spatial" for it in block.iters):
        return None
    if extents[sums[-1]] < LANES or extents[wide[0]] < LANES:
        return None
    rows = tuple(sorted(loops[loop] for loop in few if extents[loop] > 1))
    size = ITEM_BYTES[found.factors]
    widths = tuple(w for w in (1, 2, 4, 8) if w * size <= 16 and width % w == 0)
    return _Plan(sketch, found, gpu, len(loops), loops[wide[0]], rows, sums[-1], along, widths)


@dataclass(slots=True)
class _Plan:
    """A product as it is being scheduled.

    rank, column, rows   dimensions of the result: how many, that of the many, those of the few
    sums                 the innermost loop of the sum
    summed               neighbours of the large operand lie along the sum
    """

    sketch: Sketch
    found: GpuTensorProduct
    gpu: Gpu
    rank: int
    column: int
    rows: tuple[int, ...]
    sums: str
    summed: bool
    widths: tuple[int, ...]
    symbols: dict[str, Poly] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.found.block

    def declare(self, key: str, options: tuple[int, ...]) -> Poly:
        self.sketch = self.sketch.declare(Choice(f"{self.name}_{key}", options))
        self.symbols[key] = Poly.symbol(f"{self.name}_{key}")
        return self.symbols[key]

    def along_sum(self) -> Sketch | None:
        """Lanes share the terms."""
        name, loop = self.name, self.sums
        wide, warps, columns = self.declare("v", self.widths), self.declare("w", MANY), self.declare("r", MANY)
        parts = (f"{loop}_c", f"{loop}_w", f"{loop}_l", f"{loop}_v")
        self.sketch = self.sketch.apply(Split(loop, (warps, Poly.of(LANES), wide), parts))
        source = name
        for number, part in enumerate(parts[1:3]):
            step = Rfactor(source, part, self.rank + number)
            if step.why_not(self.sketch.program) is not None:
                return None
            self.sketch = self.sketch.apply(step)
            source = f"{source}_rf"
        row = self.grid((columns,), ("r",))
        for part in (f"{name}_rf", f"{name}_rf_rf"):
            self.sketch = self.sketch.apply(ComputeAt(part, row, "shared"))
        self.sketch = self.sketch.apply(Bind(row, "blockIdx.x"))
        self.partial(f"{name}_rf_rf", [self.column, self.rank], self.rank + 1)
        self.lanes(f"{name}_rf")
        few = self.few(name, final=True)
        own = f"{name}_f_{self.column}_r"
        self.ordered([own, *few, *self.reduced(name)])
        self.sketch = self.sketch.apply(Bind(own, "threadIdx.x"))
        self.sketch = decomposed(self.sketch, name)
        self.after(row)
        self.sketch = self.sketch.require(AtMost(f"{name}: warps", columns * warps, 32))
        return self.limited(row, columns * warps * LANES)

    def along_columns(self) -> Sketch | None:
        """Lanes have columns of their own."""
        name, loop = self.name, self.sums
        wide, warps, deep = self.declare("v", self.widths), self.declare("w", MANY), self.declare("u", (1, 2, 4, 8))
        parts = (f"{loop}_c", f"{loop}_w", f"{loop}_u")
        self.sketch = self.sketch.apply(Split(loop, (warps, deep), parts))
        step = Rfactor(name, parts[1], self.rank)
        if step.why_not(self.sketch.program) is not None:
            return None
        self.sketch = self.sketch.apply(step)
        row = self.grid((Poly.of(LANES), wide), ("l", "v"))
        part = f"{name}_rf"
        self.sketch = self.sketch.apply(ComputeAt(part, row, "shared")).apply(Bind(row, "blockIdx.x"))
        column, warp = f"{part}_{self.column}", f"{part}_{self.rank}"
        pair = (f"{column}_l", f"{column}_v")
        self.sketch = self.sketch.apply(Split(column, (wide,), pair))
        few = self.few(part)
        self.ordered([warp, pair[0], *self.reduced(part), *few, pair[1]])
        self.sketch = self.sketch.apply(Bind(pair[0], "threadIdx.x")).apply(Bind(warp, "threadIdx.y"))
        for inner in (parts[2], *few):
            self.sketch = self.sketch.apply(Unroll(inner))
        self.sketch = self.sketch.attempt(Vectorize(pair[1]))
        self.sketch = self.sketch.attempt(CacheWrite(part, "local", pair[0]))
        self.sketch = decomposed(self.sketch, part)
        few = self.few(name, final=True)
        lane, own = f"{name}_f_{self.column}_l", f"{name}_f_{self.column}_v"
        self.ordered([*few, lane, *self.reduced(name), own])
        self.sketch = self.sketch.attempt(CacheWrite(name, "local", lane)).apply(Bind(lane, "threadIdx.x"))
        if few:
            self.sketch = self.sketch.apply(Bind(few[0], "threadIdx.y"))
        self.sketch = decomposed(self.sketch.attempt(Vectorize(own)), name)
        self.after(row)
        few_ = max([1, *(buffer.value for buffer in self.extents())])
        return self.limited(row, warps * LANES, least=few_ * LANES)

    def extents(self) -> list[Poly]:
        """Of the dimensions of the few."""
        buffer = find_buffer(self.sketch.program, f"{self.name}_rf")
        assert buffer is not None
        return [buffer.shape[d] for d in self.rows]

    def few(self, name: str, *, final: bool = False) -> list[str]:
        """The loops of a block over the few."""
        return [f"{name}_f_{d}" if final else f"{name}_{d}" for d in self.rows]

    def reduced(self, name: str) -> list[str]:
        block, place = block_at(self.sketch.program, name)
        sums = reduce_variables(block)
        return [loop.axes[0].var for loop in place.loops if loop.axes[0].var in sums]

    def ordered(self, loops: list[str]) -> None:
        if len(loops) > 1:
            self.sketch = self.sketch.apply(Reorder(tuple(loops)))

    def grid(self, factors: tuple[Poly, ...], suffixes: tuple[str, ...]) -> str:
        """The loop over blocks of columns, in which all the rest is."""
        name = self.name
        column = f"{name}_f_{self.column}"
        parts = (f"{column}_b", *(f"{column}_{suffix}" for suffix in suffixes))
        self.sketch = self.sketch.apply(Split(column, factors, parts))
        others = [f"{name}_f_{d}" for d in range(self.rank) if d != self.column and d not in self.rows]
        grid = (*others, parts[0])
        _, place = block_at(self.sketch.program, name)
        rest = [loop.axes[0].var for loop in place.loops if loop.axes[0].var not in grid]
        self.sketch = self.sketch.apply(Reorder((*grid, *rest)))
        if len(grid) > 1:
            self.sketch = self.sketch.apply(Fuse(grid))
        return grid[0]

    def partial(self, name: str, warps: list[int], lane: int) -> None:
        """What each thread adds up."""
        outer, few, sums = [f"{name}_{d}" for d in warps], self.few(name), self.reduced(name)
        self.ordered([*outer, f"{name}_{lane}", *sums[:-1], *few, sums[-1]])
        self.sketch = self.sketch.apply(Fuse(tuple(outer))).apply(Bind(f"{name}_{lane}", "threadIdx.x"))
        self.sketch = self.sketch.apply(Bind(outer[0], "threadIdx.y"))
        for loop in few:
            self.sketch = self.sketch.apply(Unroll(loop))
        self.sketch = self.sketch.attempt(CacheWrite(name, "local", f"{name}_{lane}"))
        self.sketch = decomposed(self.sketch.attempt(Vectorize(sums[-1])), name)

    def lanes(self, name: str) -> None:
        """What the lanes of a warp have, added up."""
        outer, few, sums = [f"{name}_{self.column}", f"{name}_{self.rank}"], self.few(name), self.reduced(name)
        self.ordered([*outer, *few, *sums])
        self.sketch = self.sketch.apply(Fuse(tuple(outer))).apply(DecomposeReduction(name, outer[0]))
        self.sketch = self.sketch.apply(Bind(f"{name}_i_{outer[0]}", "threadIdx.x"))
        unit = self.sketch.attempt(Blockize(sums[-1]))
        step = Tensorize(sums[-1], f"warp.sum_{LANES}")
        if step.why_not(unit.program) is None:
            self.sketch = unit.apply(step)
            for loop in few:
                self.sketch = self.sketch.apply(Unroll(loop))
            self.sketch = self.sketch.apply(Bind(outer[0], "threadIdx.y"))
        else:
            self.sketch = self.sketch.apply(Bind(outer[0], "threadIdx.x"))

    def after(self, row: str) -> None:
        """What is computed from the result alone, in the same block."""
        target = block_at(self.sketch.program, self.name)[0].buffer
        made = find_buffer(self.sketch.program, target)
        if made is None or made.scope != "global":  # the result is collected in registers first
            target = block_at(self.sketch.program, f"{self.name}_write")[0].buffer
        users = readers(self.sketch.program, target)
        if len(users) != 1:
            return
        user = users[0][0].name
        step = ReverseComputeAt(user, row)
        if step.why_not(self.sketch.program) is not None:
            return
        self.sketch = self.sketch.apply(step).attempt(SetScope(target, "shared", row))
        _, place = block_at(self.sketch.program, user)
        own = [loop for loop in place.inside(loop_at(self.sketch.program, row)[0]) if loop.axes[0].extent != Poly.of(1)]
        column = f"{user}_{self.number(user)}"
        if not any(loop.axes[0].var == column for loop in own):
            return
        if not self.summed:
            pair = (f"{column}_l", f"{column}_v")
            self.sketch = self.sketch.apply(Split(column, (self.symbols["v"],), pair))
            rest = [loop.axes[0].var for loop in own if loop.axes[0].var != column]
            self.ordered([pair[0], *rest, pair[1]])
            self.sketch = self.sketch.apply(Bind(pair[0], "threadIdx.x")).attempt(Vectorize(pair[1]))
            return
        self.ordered([column, *(loop.axes[0].var for loop in own if loop.axes[0].var != column)])
        self.sketch = self.sketch.apply(Bind(column, "threadIdx.x"))

    def number(self, user: str) -> int:
        """Which iteration of a consumer runs along the columns."""
        block, place = block_at(self.sketch.program, user)
        wide = {loop.axes[0].var for loop in place.loops if loop.axes[0].extent.symbols()}
        wide |= {loop.axes[0].var for loop in place.loops if loop.axes[0].extent == Poly.of(LANES)}
        for number in range(len(block.iters)):
            if f"{user}_{number}" in wide:
                return number
        return len(block.iters)

    def limited(self, row: str, threads: Poly, least: int = LANES) -> Sketch:
        """The limits that all of it keeps."""
        name, found = self.name, GpuAllocated.of(loop_at(self.sketch.program, row)[0])
        sketch = self.sketch.require(AtMost(f"{name}: threads", threads, self.gpu.threads_per_block))
        sketch = sketch.require(AtMost(f"{name}: shared bytes", found.shared, self.gpu.shared_per_block))
        sketch = sketch.require(AtMost(f"{name}: bytes of registers", found.held, 4 * 128))
        for count in (threads, Poly.of(least)):
            registers = (found.held + 4 * ADDRESSING) * count
            sketch = sketch.require(AtMost(f"{name}: registers", registers, 4 * self.gpu.registers))
        return sketch
