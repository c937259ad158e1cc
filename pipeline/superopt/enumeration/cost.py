"""The roofline model of a µGraph: seconds from bytes at each level, issue slots, barriers and balance.

It ranks topologies, so it knows the sizes of tiles but nothing of registers: its numbers are right to a factor of two.
Parameters (grid and loop extents) are chosen by descent along one axis after another over powers of two.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never

from pipeline.errors import CheckError
from pipeline.ir.graph import Shape
from pipeline.ir.target import Target
from pipeline.superopt.mugraph.graph import (
    Accumulate,
    BlockGraph,
    Concat,
    Contract,
    Fold,
    Map,
    MuGraph,
    Op,
    RescaledSum,
    Running,
    Scalar,
    Squeeze,
    TileOp,
    Transpose,
    Unsqueeze,
    depths,
)
from pipeline.superopt.mugraph.operator import result_shape

BARRIER = 4e-6  # seconds to hand a kernel to all cores and to wait for them
TILE_CYCLES = 40.0  # to start one operator on one tile
L2_BYTES_PER_CYCLE, L3_BYTES_PER_CYCLE = 32.0, 10.0  # of one core
SWEEPS = 3  # of a descent along all axes
START = 8  # pieces for each core of the axis at which a descent starts
SCRATCH_SHARE = 0.6  # of L2 that tiles may take
CONTRACT_EFFICIENCY = 0.7
UNHIDDEN = 0.2  # of the smaller of computing and waiting for memory
SLOTS: dict[str, float] = {  # issue slots of a vector, where an addition has one
    "div": 4, "sqrt": 6, "rsqrt": 6, "reciprocal": 4, "exp": 10, "log": 12, "sigmoid": 15, "tanh": 18, "erf": 18,
    "sin": 20, "cos": 20, "pow": 25, "mod": 10, "fmod": 10,
}  # fmt: skip
Extents = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Estimate:
    """Seconds of a µGraph at the extents of its parameters, by name, that the model likes best."""

    seconds: float
    extents: dict[str, int]


def slots(fn: str) -> float:
    """Issue slots of one scalar function on one vector."""
    return SLOTS.get(fn, 1.0)


def estimate(graph: MuGraph, inputs: Mapping[str, Shape], target: Target, *, item: int = 4) -> Estimate:
    """The best of a few dozen extents for every parameter; `inputs` are the shapes, elements have `item` bytes.

    One kernel after another: their axes have nothing to do with each other but through the shape of what is stacked.
    """
    tensors: list[Shape] = [tuple(inputs[name]) for name in graph.inputs]
    total = 0.0
    chosen: dict[str, int] = {}
    for node in graph.nodes:
        operands = [tensors[i] for i in node.inputs]
        if isinstance(node.op, BlockGraph):
            kernel = _Kernel(node.op, operands, target, item)
            best = kernel.best(chosen)
            chosen.update(best.extents)
            total += best.seconds
            tensors.extend(kernel.results(chosen))
        else:
            seconds, results = _predefined_seconds(node.op, operands, target, item)
            total += seconds
            tensors.extend(results)
    return Estimate(total, chosen)


def seconds_at(graph: MuGraph, inputs: Mapping[str, Shape], extents: Extents, target: Target, *, item: int = 4,
               ) -> float:  # fmt: skip
    """The model at given extents; infinite where an axis has more pieces than elements."""
    tensors: list[Shape] = [tuple(inputs[name]) for name in graph.inputs]
    total = 0.0
    for node in graph.nodes:
        operands = [tensors[i] for i in node.inputs]
        if isinstance(node.op, BlockGraph):
            kernel = _Kernel(node.op, operands, target, item)
            seconds, results = kernel.seconds(extents), kernel.results(extents)
        else:
            seconds, results = _predefined_seconds(node.op, operands, target, item)
        if math.isinf(seconds):
            return math.inf
        total += seconds
        tensors.extend(results)
    return total


class _Kernel:
    """A block on operands of given shapes, whose parameters are yet to be chosen."""

    def __init__(self, block: BlockGraph, operands: Sequence[Shape], target: Target, item: int) -> None:
        self.block, self.operands, self.target, self.item = block, operands, target, item
        self.depth = depths(block)
        self.whole = self._whole()

    def best(self, known: Extents) -> Estimate:
        """Of descents from several starts: nothing cut, and one axis after another cut for all cores."""
        sizes = _axis_sizes(self.block, self.operands, known)
        uncut = {name: size if fixed else 1 for name, (size, fixed) in sizes.items()}
        starts = [uncut]
        for name, (size, fixed) in sizes.items():
            if not fixed:
                starts.append({**uncut, name: min(size, START * self.target.cores)})
        found = [self._descent(sizes, start) for start in starts]
        return min(found, key=lambda one: (one.seconds, sorted(one.extents.items())))

    def _descent(self, sizes: Mapping[str, tuple[int, bool]], best: dict[str, int]) -> Estimate:
        """Along one axis after another, from extents that may be poor."""
        seconds = self.seconds(best)
        for _ in range(SWEEPS):
            before = seconds
            for name, (size, fixed) in sizes.items():
                for extent in () if fixed else _powers(size):
                    trial = {**best, name: extent}
                    found = self.seconds(trial)
                    if found < seconds:
                        best, seconds = trial, found
            if seconds > 0.99 * before:
                break
        return Estimate(seconds, best)

    def _whole(self) -> list[Shape]:
        """The shapes of what the block gives, nothing stacked and nothing rounded up: with all that is a parameter
        left whole."""
        uncut = {axis.name: axis.extent or 1 for axis in (*self.block.grid, *self.block.loops)}
        tiles, _ = _tiles(self.block, self.operands, uncut)
        found = []
        for out in self.block.outputs:
            whole = list(tiles[out.value])
            for axis, place in zip(self.block.grid, out.omap, strict=True):
                if isinstance(place, int):
                    whole[place] *= uncut[axis.name]
            found.append(tuple(whole))
        return found

    def results(self, extents: Extents) -> list[Shape]:
        """The shapes of what the block gives."""
        return [
            (*(extents[axis.name] for axis, place in zip(self.block.grid, out.omap, strict=True) if place == "stack"),
             *whole)
            for out, whole in zip(self.block.outputs, self.whole, strict=True)
        ]  # fmt: skip

    def seconds(self, extents: Extents) -> float:
        """At given extents; infinite where an axis has more pieces than elements."""
        block, target, depth = self.block, self.target, self.depth
        try:
            shapes, fits = _tiles(block, self.operands, extents)
        except CheckError:
            fits = False
        if not fits:
            return math.inf
        points = math.prod(extents[axis.name] for axis in block.grid)
        runs = [points]
        for axis in block.loops:
            runs.append(runs[-1] * extents[axis.name])
        cycles = scratch = memory = 0.0
        for number, whole in enumerate(self.operands):
            dram, moved = _reads(block, number, whole, shapes[number], runs[depth[number]], extents, target, self.item)
            memory += dram
            cycles += moved
        for number, node in enumerate(block.nodes, len(block.inputs)):
            inner = max((depth[i] for i in node.inputs), default=0)
            times = runs[inner] if not isinstance(node.op, Scalar | Squeeze | Unsqueeze) else 0
            if isinstance(node.op, Accumulate) and runs[inner] == runs[node.op.level]:
                times = 0  # of one value
            sizes = [math.prod(shapes[i]) for i in node.inputs]
            cycles += times * (
                TILE_CYCLES + _tile_slots(node.op, sizes, [shapes[i] for i in node.inputs]) / target.lanes(self.item)
            )
            if not isinstance(node.op, Map | Scalar | Squeeze | Unsqueeze):
                scratch += self.item * math.prod(shapes[number])
        for out, result in zip(block.outputs, self.results(extents), strict=True):
            size = self.item * math.prod(result)
            parts = math.prod(extents[a.name] for a, place in zip(block.grid, out.omap, strict=True)
                              if place in ("sum", "max"))  # fmt: skip
            cycles += (size * (2 * parts if parts > 1 else 1)) / L3_BYTES_PER_CYCLE
            memory += size if size > _beyond(target) else 0
        room = SCRATCH_SHARE * (target.cache(2) or math.inf)
        spill = max(1.0, scratch / room)
        waves = -(-points // target.cores)
        busy = cycles * spill / points * waves / (target.clock_ghz * 1e9)
        memory /= target.bandwidth_gbs * 1e9 * min(points, target.cores) / target.cores
        return max(busy, memory) + UNHIDDEN * min(busy, memory) + BARRIER


def _powers(size: int) -> list[int]:
    return sorted({1 << i for i in range(size.bit_length()) if 1 << i <= size} | {size})


def _axis_sizes(block: BlockGraph, operands: Sequence[Shape], known: Extents) -> dict[str, tuple[int, bool]]:
    """For each axis the size of the dimension that it cuts, or its extent, and whether that is fixed."""
    found: dict[str, tuple[int, bool]] = {}
    for number, axis in enumerate((*block.grid, *block.loops)):
        extent = known.get(axis.name, axis.extent)
        if extent is not None:
            found[axis.name] = (extent, True)
            continue
        cut = [
            shape[dim]
            for tile, shape in zip(block.inputs, operands, strict=True)
            if (dim := (*tile.imap, *tile.fmap)[number]) is not None
        ]
        found[axis.name] = (min(cut, default=1), False)
    return found


def _tiles(block: BlockGraph, operands: Sequence[Shape], extents: Extents) -> tuple[list[Shape], bool]:
    """The shape of every tile, and whether every piece has an element.

    Pieces that do not divide are rounded up, which two operands may do differently: 1,009 in two and each of those in
    four loops is 4 x 127, and in two alone 505. CheckError where they no longer fit one another.
    """
    axes = [extents[axis.name] for axis in (*block.grid, *block.loops)]
    loops = axes[len(block.grid) :]
    shapes: list[Shape] = []
    fits = True
    for tile, shape in zip(block.inputs, operands, strict=True):
        pieces = [1] * len(shape)
        for dim, extent in zip((*tile.imap, *tile.fmap), axes, strict=True):
            if dim is not None:
                pieces[dim] *= extent
        fits = fits and all(cut <= max(1, size) for cut, size in zip(pieces, shape, strict=True))
        shapes.append(tuple(-(-size // cut) for size, cut in zip(shape, pieces, strict=True)))
    for node in block.nodes:
        trips = math.prod(loops[node.op.level :]) if isinstance(node.op, Accumulate) else 1
        shapes.append(result_shape(node.op, [shapes[i] for i in node.inputs], trips))
    return shapes, fits


def _beyond(target: Target) -> float:
    """Bytes from which on a tensor is taken to come from memory."""
    return (max((cache.size for cache in target.caches), default=0) or 8 << 20) / 2


def _reads(block: BlockGraph, number: int, whole: Shape, tile: Shape, times: int, extents: Extents, target: Target,
           item: int) -> tuple[float, float]:  # fmt: skip
    """Bytes from memory, and cycles (of all cores together) to bring the tiles of one input from the caches."""
    size, moved = item * math.prod(whole), float(item * math.prod(tile) * times)
    near = (target.cache(2) or 1 << 20) / 2
    if size <= near:
        return 0.0, moved / L2_BYTES_PER_CYCLE
    imap = block.inputs[number].imap
    points = math.prod(extents[axis.name] for axis in block.grid)
    repeats = 1  # by consecutive points that read the same tiles
    for axis, dim in zip(reversed(block.grid), reversed(imap), strict=True):
        if dim is not None:
            break
        repeats *= extents[axis.name]
    far = moved / repeats if moved / points <= near else moved
    if size <= _beyond(target):
        return 0.0, (moved - far) / L2_BYTES_PER_CYCLE + far / L3_BYTES_PER_CYCLE
    return far, moved / L2_BYTES_PER_CYCLE


def _tile_slots(op: Op, sizes: Sequence[int], operands: Sequence[Shape]) -> float:
    """Issue slots of scalars, to be divided by the lanes: a multiply-add of a product counts a half."""
    match op:
        case Map(fn):
            return slots(fn) * math.prod(result_shape(op, operands))
        case Contract(subscripts):
            left, right, _ = _letters(subscripts)
            extent = {**dict(zip(left, operands[0], strict=True)), **dict(zip(right, operands[1], strict=True))}
            return 0.5 * math.prod(extent.values()) / CONTRACT_EFFICIENCY
        case Fold():
            return 0.5 * sizes[0]
        case Concat() | Transpose() | Running():
            return float(sum(sizes))
        case Accumulate():
            return 1.5 * sizes[0]
        case RescaledSum():
            return 2.5 * sizes[0] + slots("exp") * sizes[1]
        case Scalar() | Squeeze() | Unsqueeze():
            return 0.0
        case _:
            assert_never(op)


def _letters(subscripts: str) -> tuple[str, str, str]:
    operands, _, out = subscripts.partition("->")
    left, _, right = operands.partition(",")
    return left, right, out


def _predefined_seconds(op: TileOp, operands: Sequence[Shape], target: Target, item: int,
                        ) -> tuple[float, list[Shape]]:  # fmt: skip
    """An operator on whole tensors, on all cores."""
    result = result_shape(op, operands)
    moved = item * (sum(math.prod(shape) for shape in operands) + math.prod(result))
    work = _tile_slots(op, [math.prod(shape) for shape in operands], operands) / target.lanes(item)
    memory = moved / (target.bandwidth_gbs * 1e9) if moved > _beyond(target) else 0.0
    busy = (work + moved / L3_BYTES_PER_CYCLE) / (target.clock_ghz * 1e9 * target.cores)
    return max(busy, memory) + BARRIER, [result]
