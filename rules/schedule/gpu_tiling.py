"""The rule that tiles products for the ordinary units of a GPU, down to a register tile in each thread."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.ir.graph import ITEM_BYTES
from pipeline.ir.poly import Poly
from pipeline.ir.target import Gpu, Target
from pipeline.schedule.constraint import AtMost, MultipleOf
from pipeline.schedule.nest import find_buffer
from pipeline.schedule.sketch import Sketch
from pipeline.schedule.steps import (
    Bind,
    ComputeAt,
    DecomposeReduction,
    Frame,
    Fuse,
    Privatize,
    Reorder,
    ReverseComputeAt,
    SetScope,
    SoftwarePipeline,
    Split,
    StorageAlign,
    Unroll,
    Vectorize,
)
from pipeline.schedule.variables import Choice
from rules.schedule.gpu_allocated import ADDRESSING, ALIGNMENT
from rules.schedule.gpu_feasible import possible
from rules.schedule.gpu_fetch import fetched
from rules.schedule.gpu_framed_result import flat_result, result_loops
from rules.schedule.gpu_tensor_product import GpuTensorProduct, product_of
from rules.schedule.gpu_tile_sides import longest_side, upto
from rules.schedule.multi_level_tiling import epilogue

WARP = 32
UNROLLED = 1024  # multiply-adds in the innermost unrolled nest


@dataclass(frozen=True, slots=True)
class GpuTiling:
    """Each block of the grid computes a tile of the result, its threads share that out, and each keeps its part in
    registers while all of them fetch one tile of the operands after another into shared memory: structure SSSRRSRS.

    stages   copies that are under way at a time, at most
    beside   the sketch stays as it is, too, for other rules

    Threads and registers along rows and columns, the depth of a tile and of what is unrolled of it, the width of the
    accesses, the way in which threads share out a fetch, the room after the rows in shared memory and the stages of the
    pipeline are parameters. Tiles that stick out hold 0 where there is nothing, and only what there is gets stored, so
    every extent will do. Convolutions become products of matrices by their indices alone. What is computed from the
    result alone is computed where it is stored.
    """

    stages: int = 4
    beside: bool = False

    def apply(self, sketch: Sketch, block: str, target: Target) -> list[Sketch]:
        if target.gpu is None:
            return []
        found = product_of(sketch.program, block)
        if found is None:
            return []
        sides = {"km", found.left}
        gpu, made = target.gpu, []
        for side in sorted(sides):
            made += possible(lambda side=side: _tiled(sketch, found, side, gpu, self.stages), f"tiles of {block}")  # type: ignore[misc]
        return [sketch, *made] if self.beside and made else made


@dataclass(frozen=True, slots=True)
class _Sizes:
    """The parameters of a tile: threads along rows and columns, registers of a thread along rows, vectors along
    columns and their width, and the two parts of its depth."""

    down: Poly
    across: Poly
    rows: Poly
    vectors: Poly
    width: Poly
    depth: tuple[Poly, Poly]

    @property
    def threads(self) -> Poly:
        return self.down * self.across


def _tiled(sketch: Sketch, found: GpuTensorProduct, left: str, gpu: Gpu, stages: int) -> Sketch:
    name = found.block
    sketch, sizes = _parameters(sketch, found, gpu)
    tall, wide = sizes.down * sizes.rows, sizes.vectors * sizes.across * sizes.width
    deep = sizes.depth[0] * sizes.depth[1]
    sketch = sketch.apply(
        Frame(name, found.rows, found.columns, found.sums, (tall, wide, deep), left, "kn")  # type: ignore[arg-type]
    )
    sketch = epilogue(sketch, f"{name}_out")
    sketch = flat_result(sketch, found)
    m, n, k = (f"{name}_{letter}" for letter in "mnk")
    rows = (f"{m}_b", f"{m}_t", f"{m}_r")
    columns = (f"{n}_b", f"{n}_s", f"{n}_t", f"{n}_v")
    sums = (f"{k}_0", f"{k}_1", f"{k}_2")
    sketch = sketch.apply(Split(m, (sizes.down, sizes.rows), rows))
    sketch = sketch.apply(Split(n, (sizes.vectors, sizes.across, sizes.width), columns))
    sketch = sketch.apply(Split(k, sizes.depth, sums))
    grid = (*found.batch, rows[0], columns[0])
    last = (columns[0],)
    threads = (rows[1], columns[2])
    own = (rows[2], columns[1], columns[3])
    sketch = sketch.apply(Reorder((*grid, sums[0], *threads, sums[1], sums[2], *own)))
    out, batch = f"{name}_out", len(found.batch)
    row, column = result_loops(sketch, out, batch)
    sketch = sketch.apply(ReverseComputeAt(out, last[0]))
    sketch = sketch.apply(SetScope(f"{name}_tile", "shared", last[0]))
    sketch = sketch.apply(Fuse(threads))
    sketch = sketch.apply(DecomposeReduction(name, sums[0]))
    for part in ("left", "right"):
        sketch = sketch.apply(ComputeAt(f"{name}_{part}", sums[0], "shared"))
    sketch = sketch.apply(Fuse(grid)).apply(Bind(grid[0], "blockIdx.x"))
    for prefix in ("", f"{name}_i_"):
        sketch = sketch.apply(Bind(f"{prefix}{threads[0]}", "threadIdx.x"))
        for loop in own[:2]:
            sketch = sketch.apply(Unroll(f"{prefix}{loop}"))
        sketch = sketch.attempt(Vectorize(f"{prefix}{own[2]}"))
    sketch = sketch.apply(Unroll(sums[2]))
    sketch = _stored(sketch, row, column, sizes)
    sketch = sketch.apply(Privatize(f"{name}_tile"))
    return _fetches(sketch, found, left, sizes, gpu, stages)


def _parameters(sketch: Sketch, found: GpuTensorProduct, gpu: Gpu) -> tuple[Sketch, _Sizes]:
    """The parameters of a tile, without those of the fetches."""
    name = found.block
    rows, columns, terms = found.lengths
    wide = tuple(w for w in (1, 2, 4, 8) if w * ITEM_BYTES[found.factors] <= 16 and w <= columns)
    options = {
        "ty": upto((1, 2, 4, 8, 16, 32), rows),
        "tx": upto((1, 2, 4, 8, 16, 32, 64), columns),
        "rm": upto((1, 2, 3, 4, 5, 6, 7, 8, 12, 16), rows),
        "sn": upto((1, 2, 3, 4), columns),
        "vn": wide,
        "k1": upto((1, 2, 4, 8, 16, 32), terms),
        "k2": upto((1, 2, 4, 8), terms),
    }
    get: dict[str, Poly] = {}
    for key, choices in options.items():
        if len(choices) == 1:  # no parameter: what runs once is seen to run once
            get[key] = Poly.of(choices[0])
            continue
        sketch = sketch.declare(Choice(f"{name}_{key}", choices))
        get[key] = Poly.symbol(f"{name}_{key}")
    sizes = _Sizes(get["ty"], get["tx"], get["rm"], get["sn"], get["vn"], (get["k1"], get["k2"]))
    tall, across = sizes.down * sizes.rows, sizes.vectors * sizes.across * sizes.width
    sketch = sketch.require(AtMost(f"{name}: threads", sizes.threads, gpu.threads_per_block))
    if rows >= 8 and columns >= 16:
        sketch = sketch.require(MultipleOf(f"{name}: whole warps", sizes.threads, WARP))
    sketch = sketch.require(AtMost(f"{name}: rows", tall, longest_side(rows, least=8)))
    sketch = sketch.require(AtMost(f"{name}: columns", across, longest_side(columns, least=8)))
    sketch = sketch.require(AtMost(f"{name}: terms", get["k1"] * get["k2"], max(8, 2 * terms)))
    code = sizes.rows * sizes.vectors * sizes.width * get["k2"]
    return sketch.require(AtMost(f"{name}: unrolled", code, UNROLLED)), sizes


def _pads(straight: bool, size: int) -> tuple[int, ...]:
    """Elements that may be left free after a row in shared memory: one only where nothing is copied into it in whole
    vectors, as it lies in memory."""
    return (0, 16 // size) if straight or size >= 16 else tuple(sorted({0, 1, 16 // size}))


def _stored(sketch: Sketch, row: str, column: str, sizes: _Sizes) -> Sketch:
    """The nest that stores the result: what each thread has of it."""
    rows = (f"{row}_t", f"{row}_r")
    columns = (f"{column}_s", f"{column}_t", f"{column}_v")
    sketch = sketch.apply(Split(row, (sizes.rows,), rows))
    sketch = sketch.apply(Split(column, (sizes.across, sizes.width), columns))
    sketch = sketch.apply(Reorder((rows[0], columns[1], rows[1], columns[0], columns[2])))
    sketch = sketch.apply(Fuse((rows[0], columns[1]))).apply(Bind(rows[0], "threadIdx.x"))
    sketch = sketch.apply(Unroll(rows[1])).apply(Unroll(columns[0]))
    return sketch.attempt(Vectorize(columns[2]))


def _fetches(sketch: Sketch, found: GpuTensorProduct, left: str, sizes: _Sizes, gpu: Gpu, stages: int) -> Sketch:
    """The copies into shared memory, their pipeline, and the limits that all of it keeps."""
    name, size = found.block, ITEM_BYTES[found.factors]
    pads = {part: f"{name}_{part}_pad" for part in ("left", "right")}
    threads = []
    for number, (part, memory, order) in enumerate((("left", found.left, left), ("right", found.right, "kn"))):
        made = fetched(sketch, f"{name}_{part}", along=order.index(memory[1]), width=found.vector[number])
        sketch = made.sketch.declare(Choice(pads[part], _pads(order == memory, size)))
        sketch = sketch.apply(StorageAlign(f"{name}_{part}", Poly.symbol(pads[part])))
        threads.append(made.threads)
    loop = f"{name}_k_0"
    deepest = stages if gpu.capability >= 80 else min(stages, 2)
    sketch = sketch.declare(Choice(f"{name}_stages", tuple(range(1, deepest + 1))))
    sketch = sketch.apply(SoftwarePipeline(loop, f"{name}_stages"))
    shared = Poly.of(0)
    for part in pads:
        buffer = find_buffer(sketch.program, f"{name}_{part}")
        assert buffer is not None
        *outer, last = buffer.shape
        count = last + Poly.symbol(pads[part])
        for extent in outer:
            count = count * extent
        shared = shared + count * size
    shared = shared * Poly.symbol(f"{name}_stages") + 2 * ALIGNMENT * deepest
    sketch = sketch.require(AtMost(f"{name}: shared bytes", shared, gpu.shared_per_block))
    words = max(1, ITEM_BYTES[found.total] // 4)
    across = sizes.vectors * sizes.width
    registers = (sizes.rows * across + sizes.rows + across) * words + ADDRESSING
    sketch = sketch.require(AtMost(f"{name}: registers of a thread", registers, gpu.registers_per_thread))
    for who, count in (("", sizes.threads), (" of fetching left", threads[0]), (" of fetching right", threads[1])):
        if who:
            sketch = sketch.require(AtMost(f"{name}: threads{who}", count, gpu.threads_per_block))
        sketch = sketch.require(AtMost(f"{name}: registers{who}", registers * count, gpu.registers))
    return sketch
