"""The rule that computes products on the tensor cores of a GPU, a tile of fragments for each warp."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pipeline.ir.graph import ITEM_BYTES
from pipeline.ir.poly import Poly, product
from pipeline.ir.target import Gpu, Target
from pipeline.schedule.constraint import AtMost
from pipeline.schedule.sketch import Sketch
from pipeline.schedule.steps import (
    Bind,
    Blockize,
    CacheRead,
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
    Tensorize,
    TransformLayout,
    Unroll,
)
from pipeline.schedule.variables import Choice, Tile
from rules.schedule.gpu_allocated import ADDRESSING
from rules.schedule.gpu_feasible import possible
from rules.schedule.gpu_framed_result import flat_result, result_loops
from rules.schedule.gpu_tensor_fetch import LANES, GpuTensorFetch, fetched, free_lanes, loaded, pieces, room_bytes
from rules.schedule.gpu_tensor_operands import with_casts
from rules.schedule.gpu_tensor_product import GpuTensorProduct, product_of
from rules.schedule.gpu_tensor_units import COLUMNS, PIECE, ROWS, GpuTensorUnits, check_names, units_for
from rules.schedule.gpu_tile_sides import longest_side, upto
from rules.schedule.multi_level_tiling import epilogue

PIECES = 32  # that a thread fetches of each operand at a time, at most: the code of each is written out


@dataclass(frozen=True, slots=True)
class GpuTensorTiling:
    """Each block of the grid computes a tile of the result, its warps share that out, and each warp keeps its part in
    fragments while all of them fetch one tile of the operands after another into shared memory.

    units    names of the units that may be used: f16 and bf16 (sums in float32), f16_k8 (the same before sm_80),
             s8 (sums in int32), tf32 (float32 whose factors are rounded to 10 bits: only where that loss is wanted)
    stages   copies that are under way at a time, at most
    beside   the sketch stays as it is, too, for other rules

    Warps, fragments of a warp, depth of a tile, stages of the pipeline, how lanes share out a fetch and the order of
    the blocks are parameters. Tiles that stick out hold 0 where there is nothing, and only what there is gets stored,
    so every extent will do. Convolutions become products of matrices by their indices alone. What is computed from the
    result alone is computed where it is stored.
    """

    units: tuple[str, ...] = ("f16", "bf16", "f16_k8", "s8")
    stages: int = 5
    beside: bool = False

    def __post_init__(self) -> None:
        check_names(tuple(self.units))

    def apply(self, sketch: Sketch, block: str, target: Target) -> list[Sketch]:
        if target.gpu is None:
            return []
        made = self._tiled(with_casts(sketch, block), block, target)
        return [*made, sketch] if self.beside and made else made

    def _tiled(self, sketch: Sketch, block: str, target: Target) -> list[Sketch]:
        found = product_of(sketch.program, block)
        units = None if found is None else units_for(found.factors, found.total, tuple(self.units), target)
        gpu = target.gpu
        if found is None or units is None or gpu is None:
            return []
        across = found.left == "km" and not units.turns
        seen = replace(found, left="mk", vector=(1, found.vector[1]), turned=True) if across else found
        return possible(lambda: _tiled(sketch, seen, units, gpu, self.stages), f"tensor tiles of {block}")


@dataclass(frozen=True, slots=True)
class _Sizes:
    """The parameters of a tile: warps and fragments along rows and columns, units along the sum, groups of rows."""

    warps: tuple[Poly, Poly]
    fragments: tuple[Poly, Poly]
    steps: Poly
    group: Poly

    @property
    def rows(self) -> Poly:
        """Of a block of the grid."""
        return self.warps[0] * self.fragments[0] * ROWS

    @property
    def columns(self) -> Poly:
        return self.warps[1] * self.fragments[1] * COLUMNS


def _tiled(sketch: Sketch, found: GpuTensorProduct, units: GpuTensorUnits, gpu: Gpu, stages: int) -> Sketch:
    name = found.block
    sketch, sizes, fetches = _parameters(sketch, found, units, gpu, stages)
    depth = sizes.steps * units.depth
    sketch = sketch.apply(
        Frame(name, found.rows, found.columns, found.sums, (sizes.group * sizes.rows, sizes.columns, depth),
              found.left, found.right)
    )  # fmt: skip
    sketch = epilogue(sketch, f"{name}_out")
    sketch = flat_result(sketch, found)
    m, n, k = (f"{name}_{letter}" for letter in "mnk")
    rows = (f"{m}_g", f"{m}_0", f"{m}_w", f"{m}_f", f"{m}_i")
    columns = (f"{n}_0", f"{n}_w", f"{n}_f", f"{n}_i")
    sums = (f"{k}_0", f"{k}_1", f"{k}_i")
    sketch = sketch.apply(Split(m, (sizes.group, sizes.warps[0], sizes.fragments[0], ROWS), rows))
    sketch = sketch.apply(Split(n, (sizes.warps[1], sizes.fragments[1], COLUMNS), columns))
    sketch = sketch.apply(Split(k, (sizes.steps, units.depth), sums))
    grid = (*found.batch, rows[0], columns[0], rows[1])
    tail = (rows[2], columns[1], sums[1], rows[3], columns[2], rows[4], columns[3], sums[2])
    sketch = sketch.apply(Reorder((*grid, sums[0], *tail)))
    out, batch = f"{name}_out", len(found.batch)
    row, column = result_loops(sketch, out, batch)
    sketch = sketch.apply(ReverseComputeAt(out, rows[1]))
    sketch = sketch.apply(SetScope(f"{name}_tile", "shared", rows[1]))
    sketch = sketch.apply(DecomposeReduction(name, sums[0]))
    for part in ("left", "right"):
        sketch = sketch.apply(CacheRead(name, f"{name}_{part}", "fragment", sums[1], f"{name}_{part}_fragment"))
    for part in ("left", "right"):
        sketch = sketch.apply(ComputeAt(f"{name}_{part}", sums[0], "shared"))
    sketch = sketch.apply(Fuse(grid)).apply(Bind(grid[0], "blockIdx.x"))
    sketch = _warps(sketch, (rows[2], columns[1]), (sums[1], rows[3], columns[2]))
    init = [f"{name}_i_{loop}" for loop in (rows[2], columns[1], rows[3], columns[2], rows[4])]
    sketch = _warps(sketch, (init[0], init[1]), (init[2], init[3]))
    sketch = _stored(sketch, out, row, column, sizes)
    sketch = sketch.apply(Privatize(f"{name}_tile", "fragment"))
    tiles = (*(1 for _ in found.batch), ROWS, COLUMNS)
    sketch = sketch.apply(TransformLayout(f"{name}_tile", tiles, tuple(range(batch + 4))))
    sketch = loaded(sketch, f"{name}_left_fragment", units.load_left(transposed=found.left == "km"),
                    (ROWS, units.depth), own_first=found.left == "mk", left=True)  # fmt: skip
    sketch = loaded(sketch, f"{name}_right_fragment", units.load_right(), (COLUMNS, units.depth),
                    own_first=found.right == "nk", left=False)  # fmt: skip
    for loop, unit in ((rows[4], units.product), (init[4], units.fill()), (f"{row}_i", units.store())):
        sketch = sketch.apply(Blockize(loop)).apply(Tensorize(loop, unit))
    for fetch, turned in zip(fetches, (False, _across(found, units)), strict=True):
        sketch = fetched(sketch, fetch, product(sizes.warps), swizzled=not turned)
    return sketch.apply(SoftwarePipeline(sums[0], f"t_{name}_stages"))


def _parameters(
    sketch: Sketch, found: GpuTensorProduct, units: GpuTensorUnits, gpu: Gpu, stages: int
) -> tuple[Sketch, _Sizes, list[GpuTensorFetch]]:
    """The parameters of a tile, and the limits that they keep."""
    name, size = found.block, ITEM_BYTES[units.factors]
    rows, columns, terms = found.lengths
    symbols = {key: f"t_{name}_{key}" for key in ("wm", "wn", "fm", "fn", "steps", "group", "stages")}
    sketch = sketch.declare(Choice(symbols["wm"], upto((1, 2, 4, 8), rows / ROWS)))
    sketch = sketch.declare(Choice(symbols["wn"], upto((1, 2, 4, 8), columns / COLUMNS)))
    heights = (1, 2, 4, 8) if found.left == "km" else (1, 2, 3, 4, 6, 8)  # a swizzled row is a power of two
    sketch = sketch.declare(Choice(symbols["fm"], upto(heights, rows / ROWS)))
    sketch = sketch.declare(Choice(symbols["fn"], upto((1, 2, 4, 8, 16), columns / COLUMNS)))
    vectors = [pieces(units.factors, width) for width in found.vector]
    tied = [vector * size == 16 and order.endswith("k")
            for vector, order in zip(vectors, (found.left, found.right), strict=True)]  # fmt: skip
    deepest = upto((1, 2, 4, 8), terms / units.depth)[-1]
    fetches: list[GpuTensorFetch] = []
    lanes: tuple[Poly, Poly] | None = None
    if any(tied):
        down = f"t_{name}_y"
        each = units.depth * size // PIECE  # pieces along one unit
        most = LANES // each
        sketch = sketch.declare(Tile((down, symbols["steps"]), most, (1, 1), (most, deepest), exact=True))
        across = Poly.symbol(symbols["steps"])
        sketch = sketch.require(AtMost(f"{name}: all lanes", Poly.symbol(down) * across * -1, -most))
        lanes = (Poly.symbol(down), across * each)
    else:
        sketch = sketch.declare(Choice(symbols["steps"], upto((1, 2, 4, 8), terms / units.depth)))
    for part, order, vector, whole in zip(("left", "right"), (found.left, found.right), vectors, tied, strict=True):
        own = lanes
        if not whole or own is None:
            turned = part == "left" and found.turned
            length = found.lengths["mnk".index(order[0] if turned else order[-1])]
            sketch, own = free_lanes(sketch, f"{name}_{part}", length * size, vector * size)
            own = own[::-1] if turned else own
        fetches.append(GpuTensorFetch(f"{name}_{part}", vector, own, part == "left" and found.turned))
    sketch = sketch.declare(Choice(symbols["group"], (1, 2, 4, 8)))
    deep = stages if gpu.capability >= 80 else min(stages, 2)
    sketch = sketch.declare(Choice(symbols["stages"], tuple(range(1, deep + 1))))
    get = {key: Poly.symbol(symbol) for key, symbol in symbols.items()}
    sizes = _Sizes((get["wm"], get["wn"]), (get["fm"], get["fn"]), get["steps"], get["group"])
    threads = product(sizes.warps) * LANES
    depth = sizes.steps * units.depth
    accumulators = product(sizes.fragments) * 4
    factors = (sizes.fragments[0] * 4 + sizes.fragments[1] * 2) * 2
    registers = accumulators + factors + ADDRESSING
    room = depth * room_bytes(size) if _across(found, units) else Poly.of(0)  # after each row of the right operand
    shared = ((sizes.rows + sizes.columns) * depth * size + room) * get["stages"]
    sketch = sketch.require(AtMost(f"{name}: threads", threads, gpu.threads_per_block))
    sketch = sketch.require(AtMost(f"{name}: shared bytes", shared, gpu.shared_per_block))
    sketch = sketch.require(AtMost(f"{name}: registers of a thread", registers, gpu.registers_per_thread))
    sketch = sketch.require(AtMost(f"{name}: registers", registers * threads, gpu.registers))
    for side, vector in zip((sizes.rows, sizes.columns), vectors, strict=True):
        copied = side * depth - threads * (PIECES * vector)
        sketch = sketch.require(AtMost(f"{name}: pieces that a thread fetches", copied, 0))
    sketch = sketch.require(
        AtMost(f"{name}: rows", sizes.rows * sizes.group, longest_side(rows, unit=ROWS, least=ROWS))
    )
    return (
        sketch.require(AtMost(f"{name}: columns", sizes.columns, longest_side(columns, unit=COLUMNS, least=COLUMNS))),
        sizes,
        fetches,
    )


def _across(found: GpuTensorProduct, units: GpuTensorUnits) -> bool:
    """Whether the right operand is read across its rows, number by number: rows then begin in different banks."""
    return found.right == "kn" and not units.turns


def _warps(sketch: Sketch, warps: tuple[str, str], unrolled: tuple[str, ...]) -> Sketch:
    """A nest of units: warps outside, then fragments, unrolled."""
    sketch = sketch.apply(Fuse(warps)).apply(Bind(warps[0], "threadIdx.y"))
    for loop in unrolled:
        sketch = sketch.apply(Unroll(loop))
    return sketch


def _stored(sketch: Sketch, out: str, row: str, column: str, sizes: _Sizes) -> Sketch:
    """The nest that stores the result: what each warp has of it."""
    rows, columns = ((f"{loop}_w", f"{loop}_f", f"{loop}_i") for loop in (row, column))
    sketch = sketch.apply(Split(row, (sizes.fragments[0], ROWS), rows))
    sketch = sketch.apply(Split(column, (sizes.fragments[1], COLUMNS), columns))
    sketch = sketch.apply(Reorder((rows[0], columns[0], rows[1], columns[1], rows[2], columns[2])))
    return _warps(sketch, (rows[0], columns[0]), (rows[1], columns[1]))
