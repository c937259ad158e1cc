"""The rule that keeps the rows of a fused kernel in the registers of warps, with its products on tensor cores."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import gcd

from pipeline.ir.expr import Const, Expr, Load, Op, affine, loads, variables
from pipeline.ir.graph import ITEM_BYTES, DType
from pipeline.ir.poly import Poly, product
from pipeline.ir.program import Block, Buffer, Loop, Program
from pipeline.ir.target import Gpu, Target
from pipeline.schedule.constraint import AtMost, Divides
from pipeline.schedule.nest import block_at, blocks_in, find_buffer, loop_at, over_loops
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
from rules.schedule.gpu_tensor_units import COLUMNS, PIECE, ROWS, GpuTensorUnits, check_names, units_for

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
        plan = _plan(sketch.program, block, tuple(self.units), target)
        if plan is None:
            return []
        deep = self.stages if target.gpu.capability >= 80 else min(self.stages, 2)
        return [_Rows(sketch, plan, target.gpu, deep).made()]


@dataclass(frozen=True, slots=True)
class _Plan:
    """A region whose tiles have the same rows.

    rows      of a tile, `fragments` times a unit's rows for each of `warps`
    products  names of the blocks that multiply
    divides   parameters and the extents that they have to divide, so that no tile sticks out
    """

    root: str
    rows: Poly
    warps: Poly
    fragments: Poly
    products: tuple[str, ...]
    units: GpuTensorUnits
    divides: tuple[tuple[Poly, int], ...]


def _plan(program: Program, name: str, names: tuple[str, ...], target: Target) -> _Plan | None:
    """What is known about the region of a block; None where it is not for this rule, or the block is not its last."""
    block, place = block_at(program, name)
    root = place.root
    if not isinstance(root, Loop) or root.kind != "parallel" or place.prologue:
        return None
    inside = blocks_in(root)
    if len(inside) < 2 or inside[-1] is not block:
        return None
    rows = _first_extent(program, inside)
    if rows is None or len(rows.terms) != 1:
        return None
    ((symbols, number),) = rows.terms
    if number != ROWS or len(symbols) != 2:
        return None
    warps, fragments = sorted(
        (Poly.symbol(symbol) for symbol in symbols), key=lambda symbol: not str(symbol).endswith("t1")
    )
    divides: dict[str, tuple[Poly, int]] = {}
    products = []
    units: GpuTensorUnits | None = None
    for found in inside:
        own = _own(program, found)
        kind = _kind(program, found, own, rows)
        if kind is None:
            return None
        for it in found.iters:
            form = affine(it.binding)
            assert form is not None
            mine = [loop for loop in own if form.coefficient(loop.axes[0].var) == Poly.of(1)]
            if mine and it.extent.is_constant and len(form.terms) > 1:
                extent = mine[0].axes[0].extent
                divides[f"{extent} {it.extent}"] = (extent, it.extent.value)
        if kind == "product":
            products.append(found.name)
            factor = loads(found.value)[0].dtype
            units = units_for(factor, "float32", names, target)
            if units is None or not _fits(program, found, own, units):
                return None
    if not products or units is None:
        return None
    for extent, whole in divides.values():
        if extent.terms and whole % extent.terms[0][1]:
            return None
    return _Plan(root.axes[0].var, rows, warps, fragments, tuple(products), units, tuple(divides.values()))


def _first_extent(program: Program, inside: list[Block]) -> Poly | None:
    """The rows of all tiles."""
    found = {
        buffer.shape[0]
        for buffer in (find_buffer(program, block.buffer) for block in inside)
        if buffer is not None and buffer.scope == "shared" and buffer.shape
    }
    return found.pop() if len(found) == 1 else None


def _own(program: Program, block: Block) -> tuple[Loop, ...]:
    """The loops around nothing but a block."""
    _, place = block_at(program, block.name)
    return tuple(loop for loop in place.loops if blocks_in(loop) == [block])


def _kind(program: Program, block: Block, own: tuple[Loop, ...], rows: Poly) -> str | None:
    """product, tile (elementwise, of rows and columns), row (of one number for each row), reduction (of a row); None
    for anything else."""
    if not own or any(loop.kind != "serial" or len(loop.axes) != 1 or loop.annotations for loop in own):
        return None
    if own[0].axes[0].extent != rows or block.where or any(affine(it.binding) is None for it in block.iters):
        return None
    stored = find_buffer(program, block.buffer)
    assert stored is not None
    row = own[0].axes[0].var
    for buffer, indices in _tiles(program, block):
        first = affine(over_loops(block, indices[0]))
        if first is None or first.terms != ((row, Poly.of(1)),) or first.constant.terms or buffer.shape[0] != rows:
            return None
    if len(own) == 3 and block.combine == "sum" and isinstance(block.value, Op) and block.value.fn == "mul":
        return "product" if stored.scope == "shared" and len(stored.shape) == 2 else None
    if block.combine is None:
        if len(own) == 2:
            return "tile"
        return "row" if len(own) == 1 and stored.scope == "shared" and len(stored.shape) == 1 else None
    if block.combine in ("sum", "max", "min") and len(own) == 2 and stored.scope == "shared" and block.init is None:
        return "reduction" if len(stored.shape) == 1 else None
    return None


def _tiles(program: Program, block: Block) -> list[tuple[Buffer, tuple[Expr, ...]]]:
    """The accesses of a block to what lives in the region."""
    pairs = [(block.buffer, block.indices), *((load.buffer, load.indices) for load in loads(block.value))]
    found = [(find_buffer(program, name), indices) for name, indices in pairs]
    return [(buffer, indices) for buffer, indices in found if buffer is not None and buffer.scope != "global"]


def _fits(program: Program, block: Block, own: tuple[Loop, ...], units: GpuTensorUnits) -> bool:
    """Whether the product is one of whole units, of a left factor with the rows and a right one from memory."""
    row, column, term = (loop.axes[0] for loop in own)
    left, right = _factors(block, row.var)
    if left is None or right is None or left.dtype != units.factors or right.dtype != units.factors:
        return False
    memory = find_buffer(program, right.buffer)
    if memory is None or memory.scope != "global":
        return False
    for axis, side in ((column, COLUMNS), (term, units.depth)):
        if axis.extent.quotient(Poly.of(side)) is None:
            return False
    return all(affine(over_loops(block, index)) is not None for load in (left, right) for index in load.indices)


def _factors(block: Block, row: str) -> tuple[Load | None, Load | None]:
    """The load of the factor that has the rows, and the other one."""
    found = loads(block.value)
    if len(found) != 2:
        return None, None
    with_row = [load for load in found if any(row in variables(over_loops(block, i)) for i in load.indices)]
    if len(with_row) != 1:
        return None, None
    return with_row[0], next(load for load in found if load is not with_row[0])


@dataclass(slots=True)
class _Rows:
    """A region on its way to warps: the sketch so far, and what its last steps will need.

    units    loops that become units, and their intrinsics
    tiles    buffers that become fragments: the tile of each dimension
    fetches  copies into shared memory, and the loop in which each is made
    """

    sketch: Sketch
    plan: _Plan
    gpu: Gpu
    stages: int
    units: list[tuple[str, str]] = field(default_factory=list)
    tiles: dict[str, tuple[int, ...]] = field(default_factory=dict)
    fetches: list[tuple[str, str]] = field(default_factory=list)
    lefts: list[str] = field(default_factory=list)
    seats: dict[str, str] = field(default_factory=dict)

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
            self.nest(name)
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
        for loop in dict.fromkeys(loop for _, loop in self.fetches if loop != plan.root):
            self.step(SoftwarePipeline(loop, f"t_{plan.root}_stages"))
        return self.sketch

    def step(self, step: Step) -> None:
        self.sketch = self.sketch.apply(step)

    def operands(self, name: str) -> None:
        """Copies of what a product reads from memory: rows in shared memory at first, to become fragments later."""
        block, place = block_at(self.sketch.program, name)
        own = _own(self.sketch.program, block)
        around = place.loops[: len(place.loops) - len(own)]
        left, right = _factors(block, own[0].axes[0].var)
        assert left is not None and right is not None
        self.seats[name] = _seat(block, right, around)
        source = find_buffer(self.sketch.program, left.buffer)
        assert source is not None
        if source.scope == "global":
            self.step(CacheRead(name, left.buffer, "shared", _seat(block, left, around), f"{name}_left", early=True))
            self.lefts.append(f"{name}_left")
        if block.init is not None:
            self.step(DecomposeReduction(name, own[0].axes[0].var))
            self.nest(f"{name}_init")

    def nest(self, name: str) -> None:
        """One block as units of warps, each of which has rows of its own."""
        plan, program = self.plan, self.sketch.program
        block, _ = block_at(program, name)
        own = [loop.axes[0].var for loop in _own(program, block)]
        stored = find_buffer(program, block.buffer)
        assert stored is not None
        if len(own) == 1:
            order, unit = self.split(own[0], ROWS), "mma.map_rows_16"
            self.warps((*order[:2],), order[2:], unit)
            self.tiles.setdefault(block.buffer, (ROWS,))
            return
        rows, halves = self.split(own[0], ROWS), stored.scope != "global" and stored.dtype in HALVES
        if len(own) == 3:
            columns, terms = self.cut(own[1], COLUMNS), self.cut(own[2], plan.units.depth)
            self.warps((rows[0], terms[0], rows[1], columns[0]), (rows[2], columns[1], terms[1]), plan.units.product)
            self.tiles.setdefault(block.buffer, (ROWS, COLUMNS))
            return
        columns = self.cut(own[1], COLUMNS, plan.units.depth // COLUMNS if halves else 1)
        unit = "mma.map_16x8"
        if block.combine is not None:
            unit = f"mma.row_{block.combine}_16x8"
        elif block.value == Const(0.0, "float32"):
            unit = "mma.fill_16x8_f32"
        self.warps((rows[0], rows[1], *columns[:-1]), (rows[2], columns[-1]), unit)
        if block.combine is not None:
            self.tiles.setdefault(block.buffer, (ROWS,))
        elif stored.scope != "global":
            self.tiles.setdefault(block.buffer, (ROWS, plan.units.depth if halves else COLUMNS))

    def split(self, row: str, side: int) -> tuple[str, str, str]:
        """The loop over rows: warps, fragments of each, rows of a fragment."""
        names = (f"{row}_w", f"{row}_f", f"{row}_i")
        self.step(Split(row, (self.plan.fragments, side), names))
        return names

    def cut(self, loop: str, side: int, group: int = 1) -> tuple[str, ...]:
        """A loop over columns or terms: units, and what is in one; `group` units are one tile of a factor."""
        names = (f"{loop}_n", *((f"{loop}_h",) if group > 1 else ()), f"{loop}_j")
        self.step(Split(loop, (*((group,) if group > 1 else ()), side), names))
        return names

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
        rows, terms = self.split(row, ROWS), self.cut(term, depth)
        shape = self.sketch.program.buffer(name).shape
        self.warps((rows[0], rows[1], terms[0]), (rows[2], terms[1]), self.plan.units.load_left(transposed=False))
        dims = wide_dims(shape)
        self.tiles[name] = tuple({dims[0]: ROWS, dims[1]: depth}.get(dim, 1) for dim in range(len(shape)))

    def right(self, name: str) -> None:
        """What a product reads from memory: fetched into shared memory, and from there into fragments that live for one
        step of the sum."""
        block, place = block_at(self.sketch.program, name)
        globals_ = {buffer.name for buffer in self.sketch.program.buffers}
        load = next(load for load in loads(block.value) if load.buffer in globals_)
        steps = next(loop.axes[0].var for loop in place.loops if loop.kind == "unrolled")
        summed = {it.var for it in block.iters if it.kind == "reduce"}
        moving = [index for index in load.indices if variables(index) & _inner(block, place.loops, steps)]
        own_first = not variables(moving[0]) & summed
        fragment, shared = f"{name}_right_fragment", f"{name}_right"
        self.step(CacheRead(name, load.buffer, "fragment", steps, fragment))
        self.step(CacheRead(fragment, load.buffer, "shared", self.seats[name], shared, early=True))
        self.fetches.append((shared, self.seats[name]))
        self.sketch = loaded(self.sketch, fragment, self.plan.units.load_right(),
                             (COLUMNS, self.plan.units.depth), own_first=own_first, left=False)  # fmt: skip

    def fetch(self, name: str) -> None:
        buffer = self.sketch.program.buffer(name)
        source = next(load.buffer for load in loads(block_at(self.sketch.program, name)[0].value))
        stride = self.sketch.program.buffer(source).shape[-1].value
        size = ITEM_BYTES[buffer.dtype]
        vector = pieces(buffer.dtype, gcd(stride, ROWS))
        last = buffer.shape[-1]
        length = last.value if last.is_constant else LANES * PIECE
        self.sketch, lanes = free_lanes(self.sketch, name, length * size, vector * size)
        even = not last.is_constant or length & (length - 1) == 0  # only rows of a power of two are swizzled
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
            shared = shared + product(buffer.shape) * ITEM_BYTES[buffer.dtype] * depth
        threads = plan.warps * LANES
        limits = ((threads, gpu.threads_per_block, "threads"), (shared, gpu.shared_per_block, "shared bytes"),
                  (registers, gpu.registers_per_thread, "registers of a thread"),
                  (registers * threads, gpu.registers, "registers"))  # fmt: skip
        for poly, limit, what in limits:
            self.sketch = self.sketch.require(AtMost(f"{plan.root}: {what}", poly, limit))


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
