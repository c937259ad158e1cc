"""The shapes of a µGraph at given extents: of every tensor and every tile, with what has to divide what checked."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipeline.errors import CheckError, listed
from pipeline.ir.graph import Shape
from pipeline.superopt.mugraph.graph import (
    Accumulate,
    Axis,
    BlockGraph,
    BlockInput,
    BlockOutput,
    MuGraph,
    depths,
)
from pipeline.superopt.mugraph.operator import result_shape


@dataclass(frozen=True, slots=True)
class BlockShapes:
    """Of one block graph at given extents; shapes are in elements.

    grid, loops  the extent of each axis, in their order
    tiles        of each value: the inputs, then the nodes
    results      of the tensor that each output makes
    """

    grid: tuple[int, ...]
    loops: tuple[int, ...]
    tiles: tuple[Shape, ...]
    results: tuple[Shape, ...]

    @property
    def points(self) -> int:
        """How often the block runs."""
        return math.prod(self.grid)

    def tile_bytes(self, item: int = 4) -> tuple[int, ...]:
        """The size of each tile in bytes, where an element has `item` of them."""
        return tuple(item * math.prod(shape) for shape in self.tiles)


@dataclass(frozen=True, slots=True)
class Shapes:
    """Of a µGraph at given extents.

    tensors  the shape of each: the inputs, then the results of the kernels
    blocks   for each kernel what is inside; None for an operator on whole tensors
    """

    tensors: tuple[Shape, ...]
    blocks: tuple[BlockShapes | None, ...]


def shapes(graph: MuGraph, inputs: Mapping[str, Shape], extents: Mapping[str, int] | None = None) -> Shapes:
    """The shapes of a µGraph that `mugraph_check` accepts, on inputs of these shapes, by name.

    extents  of the axes, by name; they come before those that the µGraph fixes. CheckError where one is missing,
             where something does not divide, and where an operator has no result.
    """
    if missing := [name for name in graph.inputs if name not in inputs]:
        raise CheckError("inputs have no shape", where="µGraph", why=f"{listed(missing)} not given")
    tensors: list[Shape] = [tuple(inputs[name]) for name in graph.inputs]
    blocks: list[BlockShapes | None] = []
    for number, node in enumerate(graph.nodes):
        operands = [tensors[i] for i in node.inputs]
        try:
            if isinstance(node.op, BlockGraph):
                block = block_shapes(node.op, operands, extents or {})
                tensors.extend(block.results)
                blocks.append(block)
            else:
                tensors.append(result_shape(node.op, operands))
                blocks.append(None)
        except CheckError as error:
            where = f"kernel {number}, {error.where}"
            raise CheckError(error.what, where=where, why=error.why, todo=error.todo) from None
    return Shapes(tuple(tensors), tuple(blocks))


def block_shapes(block: BlockGraph, operands: Sequence[Shape], extents: Mapping[str, int]) -> BlockShapes:
    """The shapes of one block graph on whole tensors of these shapes; errors as in `shapes`."""
    grid = tuple(extent_of(axis, extents) for axis in block.grid)
    loops = tuple(extent_of(axis, extents) for axis in block.loops)
    tiles = [_cut(block, tile, shape, grid, loops) for tile, shape in zip(block.inputs, operands, strict=True)]
    depth = depths(block)
    for value, node in enumerate(block.nodes, len(block.inputs)):
        trips = 1
        if isinstance(node.op, Accumulate):
            trips = math.prod(loops[node.op.level : depth[node.inputs[0]]])
        try:
            tiles.append(result_shape(node.op, [tiles[i] for i in node.inputs], trips))
        except CheckError as error:
            raise CheckError(error.what, where=f"value {value}, {error.where}", why=error.why) from None
    return BlockShapes(grid, loops, tuple(tiles), tuple(_joined(out, tiles[out.value], grid) for out in block.outputs))


def extent_of(axis: Axis, extents: Mapping[str, int]) -> int:
    """The extent that is given for the axis, or else its own: a µGraph of fixed extents runs at shrunken ones too."""
    size = extents.get(axis.name, axis.extent)
    if size is None:
        raise CheckError("an axis has no extent", where=f"axis {axis.name}", why="It is a parameter",
                         todo=f"Give it one; there are {listed(extents) or 'none'}")  # fmt: skip
    if size < 1:
        raise CheckError("an axis has no points", where=f"axis {axis.name}", why=f"Its extent is {size}")
    return size


def _cut(block: BlockGraph, tile: BlockInput, shape: Shape, grid: Shape, loops: Shape) -> Shape:
    sizes = list(shape)
    axes = [*zip(block.grid, grid, tile.imap, strict=True), *zip(block.loops, loops, tile.fmap, strict=True)]
    for axis, extent, dim in axes:
        if dim is None:
            continue
        if sizes[dim] % extent:
            raise CheckError("a dimension does not divide", where=f"axis {axis.name}",
                             why=f"{sizes[dim]} (dimension {dim} of {shape}) is no multiple of {extent}")  # fmt: skip
        sizes[dim] //= extent
    return tuple(sizes)


def _joined(out: BlockOutput, tile: Shape, grid: Shape) -> Shape:
    sizes = list(tile)
    for how, extent in zip(out.omap, grid, strict=True):
        if isinstance(how, int):
            sizes[how] *= extent
    return (*(extent for how, extent in zip(out.omap, grid, strict=True) if how == "stack"), *sizes)
