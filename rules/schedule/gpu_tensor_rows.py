"""The rule that keeps the rows of a fused kernel in the registers of warps, with its products on tensor cores."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import gcd

from pipeline.ir.expr import Const, Load, loads, variables
from pipeline.ir.graph import ITEM_BYTES, DType
from pipeline.ir.poly import Poly, product
from pipeline.ir.program import Block, Loop
from pipeline.ir.target import Gpu, Target
from pipeline.schedule.constraint import AtMost, Divides
from pipeline.schedule.nest import block_at, blocks_in, find_block, find_buffer, loop_at, over_loops
from pipeline.schedule.sketch import Sketch
from pipeline.schedule.steps import (
    Bind,
    Blockize,
    CacheRead,
    DecomposeReduction,
    Privatize,
    Reorder,
    SoftwarePipeline,
    Split,
    Step,
    Tensorize,
    TransformLayout,
    Unroll,
)
from pipeline.schedule.variables import Choice
from rules.schedule.gpu_feasible import possible
from rules.schedule.gpu_tensor_fetch import (
    LANES,
    GpuTensorFetch,
    fetched,
    free_lanes,
    loaded,
    pieces,
    two_loops,
    wide_dims,
)
from rules.schedule.gpu_tensor_region import GpuTensorRegion, factors_of, loops_of, region_of, turned_region
from rules.schedule.gpu_tensor_units import COLUMNS, PIECE, ROWS, check_names

ADDRESSING = 48  # registers of a thread for indices, pointers and what the compiler keeps besides
HALVES: tuple[DType, ...] = ("float16", "bfloat16")


@dataclass(frozen=True, slots=True)
class GpuTensorRows:
    """In a kernel of several blocks whose tiles all have the same rows, each warp takes rows of its own through all of
    them: tiles, accumulators and the numbers of a row stay in its registers, and threads meet only for what they fetch
    into shared memory, which is done some iterations ahead.

    units    names of the units that may be used (see GpuTensorTiling): those of 16-bit factors
    stages   copies that are under way at a time, at most

    It is for products of a tile of rows with what is read from memory, and everything elementwise and row by row in
    between: attention, above all. Rows and columns are whole units, so that nothing sticks out; other kernels are left
    to other rules.
    """

    units: tuple[str, ...] = ("f16", "bf16", "f16_k8")
    stages: int = 3

    def __post_init__(self) -> None:
        check_names(tuple(self.units))

    def apply(self, sketch: Sketch, block: str, target: Target) -> list[Sketch]:
        if target.gpu is None:
            return []
        plan = region_of(sketch.program, block, tuple(self.units), target)
        if plan is None:
            turned = turned_region(sketch, block)
            sketch = sketch if turned is None else turned
            plan = None if turned is None else region_of(sketch.program, block, tuple(self.units), target)
        if plan is None:
            return []
        deep = self.stages if target.gpu.capability >= 80 else min(self.stages, 2)
        return possible(_Rows(sketch, plan, target.gpu, deep).made, f"rows of warps of {block}")


@dataclass(slots=True)
class _Rows:
    """A region on its way to warps: the sketch so far, and what its last steps will need.

    units    loops that become units, and their intrinsics
    tiles    buffers that become fragments: the tile of each dimension
    fetches  copies into shared memory, and the loop in which each is made
    lefts    copies of rows that become fragments for the whole kernel; seats, left_seats: loops in which the operands
             of a product are fetched; steps: the loop over the steps of its sum
    """

    sketch: Sketch
    plan: GpuTensorRegion
    gpu: Gpu
    stages: int
    units: list[tuple[str, str]] = field(default_factory=list)
    tiles: dict[str, tuple[int, ...]] = field(default_factory=dict)
    fetches: list[tuple[str, str]] = field(default_factory=list)
    lefts: list[str] = field(default_factory=list)
    seats: dict[str, str] = field(default_factory=dict)
    left_seats: dict[str, str] = field(default_factory=dict)
    steps: dict[str, str] = field(default_factory=dict)

    def made(self) -> Sketch:
        plan = self.plan
        for extent, whole in plan.divides:
            if extent.terms and not extent.is_constant:
                self.sketch = self.sketch.require(Divides(f"{extent} of {whole}", extent, whole))
        self.step(Bind(plan.root, "blockIdx.x"))
        inside = [block.name for block in blocks_in(loop_at(self.sketch.program, plan.root)[0])]
        for name in plan.products:
            self.operands(name)
        for name in inside:
            self.loose(name) if name in plan.loose else self.nest(name)
        for name in self.lefts:
            self.left(name)
        for buffer, tile in self.tiles.items():
            self.step(Privatize(buffer, "fragment"))
            rank = len(tile)
            outer = sorted(range(rank), key=lambda dim: tile[dim] > 1)
            inner = range(rank, rank + sum(side > 1 for side in tile))
            self.step(TransformLayout(buffer, tile, (*outer, *inner)))
        for name in plan.products:
            self.right(name)
        for loop, unit in self.units:
            self.step(Blockize(loop))
            self.step(Tensorize(loop, unit))
        self.limits()
        for name, _ in self.fetches:
            self.fetch(name)
        around = {loop: len(loop_at(self.sketch.program, loop)[1].path) for _, loop in self.fetches}
        for loop in sorted((loop for loop in around if loop != plan.root), key=lambda loop: -around[loop]):
            self.sketch = self.sketch.attempt(SoftwarePipeline(loop, f"t_{plan.root}_stages"))
        return self.sketch

    def step(self, step: Step) -> None:
        self.sketch = self.sketch.apply(step)

    def operands(self, name: str) -> None:
        """Copies of what a product reads from memory: rows in shared memory at first, to become fragments later."""
        block, place = block_at(self.sketch.program, name)
        own = loops_of(self.sketch.program, block)
        around = place.loops[: len(place.loops) - len(own)]
        left, right = factors_of(block, own[0].axes[0].var)
        assert left is not None and right is not None
        self.seats[name] = _seat(block, right, around)
        source = find_buffer(self.sketch.program, left.buffer)
        assert source is not None
        if source.scope == "global" and (seat := _seat(block, left, around)) != self.plan.root:
            self.left_seats[name] = seat
        elif source.scope == "global":
            self.step(CacheRead(name, left.buffer, "shared", seat, f"{name}_left", early=True))
            self.lefts.append(f"{name}_left")

    def nest(self, name: str) -> None:
        """One block as units of warps, each of which has rows of its own."""
        plan, program = self.plan, self.sketch.program
        block, _ = block_at(program, name)
        own = [loop.axes[0].var for loop in loops_of(program, block)]
        stored = find_buffer(program, block.buffer)
        assert stored is not None
        if block.init is not None:
            self.step(DecomposeReduction(name, own[0]))
            self.nest(f"{name}_init")
        if len(own) == 1:
            outer, inner = self.split(own[0])
            self.warps(outer, (inner,), "mma.map_rows_16")
            if stored.scope != "global":
                self.tiles.setdefault(block.buffer, (ROWS,))
            return
        (rows, row), halves = self.split(own[0]), stored.scope != "global" and stored.dtype in HALVES
        if len(own) == 3:
            (columns, column), (terms, term) = self.cut(own[1], COLUMNS), self.cut(own[2], plan.units.depth)
            self.warps((rows[0], *terms, *rows[1:], *columns), (row, column, term), plan.units.product)
            self.steps[name] = (terms or rows)[0]
            self.tiles.setdefault(block.buffer, (ROWS, COLUMNS))
            return
        columns, column = self.cut(own[1], COLUMNS, plan.units.depth // COLUMNS if halves else 1)
        unit = "mma.map_16x8"
        if block.combine is not None:
            unit = f"mma.row_{block.combine}_16x8"
        elif block.value == Const(0.0, "float32"):
            unit = "mma.fill_16x8_f32"
        self.warps((*rows, *columns), (row, column), unit)
        if block.combine is not None:
            self.tiles.setdefault(block.buffer, (ROWS,))
        elif stored.scope != "global":
            self.tiles.setdefault(block.buffer, (ROWS, plan.units.depth if halves else COLUMNS))

    def loose(self, name: str) -> None:
        """A block whose tile has no rows: all threads share its elements out."""
        self.sketch = decomposed_at(self.sketch, name)
        for part in (f"{name}_init", name):
            if find_block(self.sketch.program, part) is None:
                continue
            own = loops_of(self.sketch.program, block_at(self.sketch.program, part)[0])
            first = own[0].axes[0].var
            names = (f"{first}_s", f"{first}_w", f"{first}_x")
            self.step(Split(first, (self.plan.warps, LANES), names))
            self.step(Reorder((names[1], names[2], names[0])))
            self.step(Bind(names[2], "threadIdx.x"))
            self.step(Bind(names[1], "threadIdx.y"))

    def split(self, row: str) -> tuple[tuple[str, ...], str]:
        """The loop over rows: warps and, where there are several, fragments of each; and the rows of a fragment."""
        if self.plan.fragments == Poly.of(1):
            self.step(Split(row, (ROWS,), (f"{row}_w", f"{row}_i")))
            return (f"{row}_w",), f"{row}_i"
        self.step(Split(row, (self.plan.fragments, ROWS), (f"{row}_w", f"{row}_f", f"{row}_i")))
        return (f"{row}_w", f"{row}_f"), f"{row}_i"

    def cut(self, loop: str, side: int, group: int = 1) -> tuple[tuple[str, ...], str]:
        """A loop over columns or terms: units, where there are several, and what is in one; `group` units are one tile
        of a factor."""
        if loop_at(self.sketch.program, loop)[0].axes[0].extent == Poly.of(side):
            return (), loop
        outer = (f"{loop}_n", *((f"{loop}_h",) if group > 1 else ()))
        self.step(Split(loop, (*((group,) if group > 1 else ()), side), (*outer, f"{loop}_j")))
        return outer, f"{loop}_j"

    def warps(self, outer: tuple[str, ...], unit: tuple[str, ...], intrinsic: str) -> None:
        self.step(Reorder((*outer, *unit)))
        self.step(Bind(outer[0], "threadIdx.y"))
        for loop in outer[1:]:
            self.step(Unroll(loop))
        self.units.append((unit[0], intrinsic))

    def left(self, name: str) -> None:
        """Rows that a product reads from memory, as fragments."""
        depth = self.plan.units.depth
        self.sketch, (row, term), _ = two_loops(self.sketch, name)
        (rows, inner), (terms, last) = self.split(row), self.cut(term, depth)
        shape = self.sketch.program.buffer(name).shape
        self.warps((*rows, *terms), (inner, last), self.plan.units.load_left(transposed=False))
        dims = wide_dims(shape)
        self.tiles[name] = tuple({dims[0]: ROWS, dims[1]: depth}.get(dim, 1) for dim in range(len(shape)))

    def right(self, name: str) -> None:
        """What a product reads from memory anew in each iteration: fetched into shared memory, and from there into
        fragments that live for one step of the sum."""
        if name in self.left_seats:
            self.brought(name, "left", self.left_seats[name])
        self.brought(name, "right", self.seats[name])

    def brought(self, name: str, part: str, seat: str) -> None:
        units = self.plan.units
        block, place = block_at(self.sketch.program, name)
        known = {buffer.name for buffer in self.sketch.program.buffers}
        steps = self.steps[name]
        moving = _inner(block, place.loops, steps)
        row = {it.var for it in block.iters if variables(it.binding) & _rows_inside(place.loops)}
        summed = {it.var for it in block.iters if it.kind == "reduce"}
        for load in loads(block.value):
            used = {v for index in load.indices for v in variables(index)}
            if load.buffer not in known or bool(used & row) != (part == "left"):
                continue
            own_first = not variables(next(i for i in load.indices if variables(i) & moving)) & summed
            fragment, shared = f"{name}_{part}_fragment", f"{name}_{part}"
            self.step(CacheRead(name, load.buffer, "fragment", steps, fragment))
            self.step(CacheRead(fragment, load.buffer, "shared", seat, shared, early=True))
            self.fetches.append((shared, seat))
            unit, side = units.load_right(), COLUMNS
            if part == "left":
                unit, side = units.load_left(transposed=not own_first), ROWS
            self.sketch = loaded(self.sketch, fragment, unit, (side, units.depth), own_first=own_first,
                                 left=part == "left")  # fmt: skip
            return

    def fetch(self, name: str) -> None:
        buffer = self.sketch.program.buffer(name)
        source = next(load.buffer for load in loads(block_at(self.sketch.program, name)[0].value))
        stride = self.sketch.program.buffer(source).shape[-1].value
        size = ITEM_BYTES[buffer.dtype]
        vector = pieces(buffer.dtype, gcd(stride, ROWS))
        last = buffer.shape[-1]
        length = last.value if last.is_constant else LANES * PIECE
        self.sketch, lanes = free_lanes(self.sketch, name, length * size, vector * size)
        even = last.is_constant and length & (length - 1) == 0  # only rows of a power of two are swizzled
        self.sketch = fetched(self.sketch, GpuTensorFetch(name, vector, lanes), self.plan.warps, swizzled=even)

    def limits(self) -> None:
        """The parameter of the pipeline, and what registers and shared memory allow."""
        plan, gpu = self.plan, self.gpu
        symbol = f"t_{plan.root}_stages"
        self.sketch = self.sketch.declare(Choice(symbol, tuple(range(1, self.stages + 1))))
        registers = Poly.of(ADDRESSING)
        for name, tile in self.tiles.items():
            buffer = self.sketch.program.buffer(name)
            count = product(buffer.shape)
            if len(tile) == 1:
                registers = registers + plan.fragments * 2
            else:
                held = count.quotient(Poly.of(LANES * 4 // ITEM_BYTES[buffer.dtype]))
                registers = registers + (count if held is None else held)
        shared = Poly.of(0)
        for name, loop in self.fetches:
            buffer = self.sketch.program.buffer(name)
            depth = Poly.of(1) if loop == plan.root else Poly.symbol(symbol)
            shared = (
                shared + (product(buffer.shape) * ITEM_BYTES[buffer.dtype] + product(buffer.shape[:-1]) * PIECE) * depth
            )
        threads = plan.warps * LANES
        limits = ((threads, gpu.threads_per_block, "threads"), (shared, gpu.shared_per_block, "shared bytes"),
                  (registers, gpu.registers_per_thread, "registers of a thread"),
                  (registers * threads, gpu.registers, "registers"))  # fmt: skip
        for poly, limit, what in limits:
            self.sketch = self.sketch.require(AtMost(f"{plan.root}: {what}", poly, limit))


def decomposed_at(sketch: Sketch, name: str) -> Sketch:
    """A reduction with its initial value in a block of its own, where it has one."""
    block, _ = block_at(sketch.program, name)
    if block.init is None:
        return sketch
    return sketch.apply(DecomposeReduction(name, loops_of(sketch.program, block)[0].axes[0].var))


def _seat(block: Block, load: Load, around: tuple[Loop, ...]) -> str:
    """The innermost of the loops around a kernel's tiles with which what a block reads changes."""
    used = {name for index in load.indices for name in variables(over_loops(block, index))}
    inner = [loop for loop in around if used & {axis.var for axis in loop.axes}]
    return (inner or list(around[:1]))[-1].axes[0].var


def _inner(block: Block, loops: tuple[Loop, ...], outer: str) -> set[str]:
    """The iterations of a block that move while the loops inside `outer` do, or it does."""
    names = [loop.axes[0].var for loop in loops]
    moving = {axis.var for loop in loops[names.index(outer) :] for axis in loop.axes}
    return {it.var for it in block.iters if variables(it.binding) & moving}


def _rows_inside(loops: tuple[Loop, ...]) -> set[str]:
    """The loops over rows of a product that is in units already: warps, fragments, rows of one."""
    warps = next(loop.axes[0].var for loop in loops if loop.kind == "threadIdx.y")
    stem = warps.removesuffix("_w")
    return {warps, f"{stem}_f", f"{stem}_i"}
