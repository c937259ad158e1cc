"""How a block graph cuts dimensions: the parameters of its tiles and the extents of its grid and loops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pipeline.ir.expr import Affine
from pipeline.ir.poly import Poly, product
from pipeline.ir.program import Derived
from pipeline.ir.target import Target
from pipeline.schedule.register_tile import row_multiple, vector_multiple
from pipeline.schedule.variables import Tile
from pipeline.superopt.lowering.row_blocks import RowBlocks
from pipeline.superopt.lowering.tile import (
    Dim,
    Tensor,
    cannot,
    contiguous,
)
from pipeline.superopt.mugraph.graph import (
    Axis,
    BlockGraph,
    Contract,
)

LARGEST_TILE = 512  # elements of a tile along one axis
LARGEST_REGISTER_ROWS = 12  # of a register tile
LARGEST_BLOCK = 8  # register tiles of a block of rows
TENSOR_TILE = 16  # rows, columns or summands of a tensor core's product


@dataclass(slots=True)
class Cuts:
    """The dimensions of the operands of one block graph, by the axes that cut them.

    tiles    axes -> the tile and the whole extent
    extents  of grid axes and loops
    """

    block: BlockGraph
    name: str
    operands: Sequence[Tensor]
    target: Target
    tiles: dict[tuple[str, ...], tuple[Poly, int]] = field(default_factory=dict)
    extents: dict[str, Poly] = field(default_factory=dict)
    variables: list[Tile] = field(default_factory=list)
    derived: list[Derived] = field(default_factory=list)
    rows: tuple[str, ...] | None = None
    block_of_rows: Poly = field(default_factory=lambda: Poly.of(1))
    blocks_of_rows: Poly = field(default_factory=lambda: Poly.of(1))

    def find(self) -> None:
        """The tile of each group of dimensions that are cut by the same axes; every axis cuts one length."""
        found: dict[tuple[str, ...], int] = {}
        for tile, tensor in zip(self.block.inputs, self.operands, strict=True):
            for dim, extent in enumerate(tensor.dims):
                axes = self.axes_of(tile.imap, tile.fmap, dim)
                if not axes:
                    continue
                if not extent.is_constant:
                    raise cannot(self.name, f"axis {axes[0]} cuts a dimension whose extent is a parameter")
                if found.setdefault(axes, extent.value) != extent.value:
                    raise cannot(self.name, f"axis {axes[0]} cuts dimensions of {found[axes]} and {extent.value}")
        owner: dict[str, tuple[str, ...]] = {}
        for axes in found:
            for axis in axes:
                if owner.setdefault(axis, axes) != axes:
                    raise cannot(self.name, f"axis {axis} cuts dimensions that other axes cut in different ways")
        every = [*self.block.grid, *self.block.loops]
        self.rows = self.chained_rows(found)
        for known in every:
            if known.name not in owner:
                if known.extent is None:
                    raise cannot(self.name, f"axis {known.name} cuts nothing")
                self.extents[known.name] = Poly.of(known.extent)
        for cut, length in found.items():
            self.cut(cut, length, {axis.name: axis for axis in every})

    def axes_of(self, imap: Sequence[int | None], fmap: Sequence[int | None], dim: int) -> tuple[str, ...]:
        grid = [axis.name for axis, to in zip(self.block.grid, imap, strict=True) if to == dim]
        loops = [axis.name for axis, to in zip(self.block.loops, fmap, strict=True) if to == dim]
        return (*grid, *loops)

    def cut(self, axes: tuple[str, ...], extent: int, known: dict[str, Axis]) -> None:
        """Parameters for the inner axes and for the tile, and the extent of the outermost axis that follows."""
        fixed = [known[name].extent for name in axes]
        if all(n is not None for n in fixed):
            count = 1
            for name, n in zip(axes, fixed, strict=True):
                assert n is not None
                self.extents[name], count = Poly.of(n), count * n
            self.tiles[axes] = (Poly.of(-(-extent // count)), extent)
            return
        if len(axes) == 1 and self.is_batch(axes[0]):
            self.extents[axes[0]] = Poly.of(extent)
            self.tiles[axes] = (Poly.of(1), extent)
            return
        if any(n is not None for n in fixed):
            raise cannot(self.name, f"of the axes {', '.join(axes)} some are fixed and some are parameters")
        stem = f"{self.name}_{axes[0]}"
        symbols, multiple, most = [], [], []
        for name in axes[1:]:
            symbols.append(f"n_{self.name}_{name}")
            multiple.append(1)
            most.append(max(1, extent))
            self.extents[name] = Poly.symbol(symbols[-1])
        lanes = self.target.lanes(4)
        unit, register = self.register(axes, extent, lanes)
        blocked = self.rows == axes
        if blocked:
            symbols.append(f"{stem}_t2")
            multiple.append(1)
            most.append(max(1, min(LARGEST_TILE, extent)))
        symbols += [f"{stem}_t1", f"{stem}_t0"]
        if self.target.gpu is not None:  # in units, so that rules can split a tile into them
            self.cut_units(axes, extent, symbols, unit, max(1, register // unit))
            return
        multiple += [1, unit]
        middle = LARGEST_BLOCK if blocked else LARGEST_TILE
        most += [max(1, min(middle, extent)), max(unit, min(register, -(-extent // unit) * unit))]
        self.variables.append(Tile(tuple(symbols), extent, tuple(multiple), tuple(most)))
        tile = Poly.symbol(symbols[-2]) * Poly.symbol(symbols[-1])
        if blocked:
            self.block_of_rows, self.blocks_of_rows = tile, Poly.symbol(symbols[-3])
            tile = self.blocks_of_rows * tile
        outermost = f"n_{self.name}_{axes[0]}"
        inner = product([Poly.symbol(s) for s in symbols])
        self.derived.append(Derived(outermost, Poly.of(extent), inner))
        self.extents[axes[0]] = Poly.symbol(outermost)
        self.tiles[axes] = (tile, extent)

    def chained_rows(self, found: dict[tuple[str, ...], int]) -> tuple[str, ...] | None:
        """The grid axis that cuts the rows of products of which one reads what another one made: all of it is done for
        a block of rows before the next, while the operands that do not depend on the rows stay where they are."""
        chained = [False] * len(self.block.inputs)
        chain = False
        for node in self.block.nodes:
            above = any(chained[i] for i in node.inputs)
            shares = isinstance(node.op, Contract) and not _rows_alone(node.op)
            chain |= above and shares
            chained.append(above or shares)
        if not chain or self.target.gpu is not None:
            return None  # the threads of a GPU's block take rows of their own
        lanes = self.target.lanes(4)
        for axis in self.block.grid:
            axes = (axis.name,)
            cut = axis.extent is None and found.get(axes, 1) > 1 and not self.is_batch(axis.name)
            if cut and self.register(axes, found[axes], lanes)[0] < lanes:
                return axes
        return None

    def row_blocks(self) -> RowBlocks | None:
        if self.rows is None or self.rows not in self.tiles:
            return None
        return RowBlocks(self.loop_var(self.rows[0]), self.tiles[self.rows][0], self.block_of_rows, self.blocks_of_rows)

    def cut_units(self, axes: tuple[str, ...], extent: int, symbols: list[str], unit: int, register: int) -> None:
        """A tile of so many units; of the parameters of the inner axes (at first), those of the tile come last."""
        whole = -(-extent // unit)
        most = [max(1, whole)] * (len(symbols) - 2) + [max(1, min(LARGEST_TILE // unit, whole)), min(register, whole)]
        self.variables.append(Tile(tuple(symbols), whole, (1,) * len(symbols), tuple(most)))
        outermost = f"n_{self.name}_{axes[0]}"
        factors = [Poly.symbol(symbol) for symbol in symbols]
        self.derived.append(Derived(outermost, Poly.of(extent), product(factors) * unit))
        self.extents[axes[0]] = Poly.symbol(outermost)
        self.tiles[axes] = (product(factors[-2:]) * unit, extent)

    def is_batch(self, axis: str) -> bool:
        """Does the grid axis run through both operands of a product, or through every input? Then that product shares
        nothing between its elements, and a tile has one of them."""
        names = [known.name for known in self.block.grid]
        if axis not in names:
            return False
        number = names.index(axis)
        varies = [tile.imap[number] is not None for tile in self.block.inputs]
        batch = False
        for node in self.block.nodes:
            operands = [varies[i] for i in node.inputs]
            batch |= isinstance(node.op, Contract) and all(operands) and not _rows_alone(node.op)
            varies.append(any(operands))
        return batch or all(varies[: len(self.block.inputs)])

    def register(self, axes: tuple[str, ...], extent: int, lanes: int) -> tuple[int, int]:
        """What a register tile of the axis is a multiple of, and the most of it: vectors where neighbours in memory
        lie along it, rows elsewhere."""
        if self.target.gpu is not None:  # whole tiles of the tensor cores
            return (TENSOR_TILE, 4 * TENSOR_TILE) if extent >= TENSOR_TILE else (1, TENSOR_TILE)
        if extent < lanes:
            return 1, LARGEST_REGISTER_ROWS
        registers = self.target.vector_registers
        vectors = lanes * vector_multiple(extent, 4 * lanes, registers)
        beside: dict[int, bool] = {}  # number of an operand's dimensions -> is there one that lies so?
        for tile, tensor in zip(self.block.inputs, self.operands, strict=True):
            rank = sum(n != Poly.of(1) for n in tensor.dims)
            for dim in range(len(tensor.dims)):
                if self.axes_of(tile.imap, tile.fmap, dim) == axes:
                    beside[rank] = beside.get(rank, False) or contiguous(tensor, dim)
        # one number for each row lies side by side along the rows, and lanes run across those that have more of each
        if (beside and beside[max(beside)]) or self.ends_product(axes):
            return vectors, 4 * lanes
        return row_multiple(extent, registers), LARGEST_REGISTER_ROWS

    def ends_product(self, axes: tuple[str, ...]) -> bool:
        """Is the dimension that the axes cut the last one of a product of two inputs?"""
        for node in self.block.nodes:
            if not isinstance(node.op, Contract) or _rows_alone(node.op):
                continue
            letters, _, result = node.op.subscripts.partition("->")
            for operand, own in zip(node.inputs, letters.split(","), strict=True):
                if operand < len(self.block.inputs) and result and result[-1] in own:
                    tile = self.block.inputs[operand]
                    if self.axes_of(tile.imap, tile.fmap, own.index(result[-1])) == axes:
                        return True
        return False

    def dim(self, axes: tuple[str, ...], extent: Poly) -> Dim:
        """The dimension of a tile, and where it begins."""
        if not axes:
            return Dim(extent, None, extent)
        tile, whole = self.tiles[axes]
        step, base = tile, Affine((), Poly.of(0))
        for name in reversed(axes):
            base = base + Affine(((self.loop_var(name), step),), Poly.of(0))
            step = step * self.extents[name]
        return Dim(tile, base, Poly.of(whole), axes)

    def loop_var(self, axis: str) -> str:
        return f"{self.name}_{axis}"


def _rows_alone(op: Contract) -> bool:
    """Are rows multiplied with rows and summed up, each by itself? A sum of squares is no product that shares anything,
    and lanes run along its rows."""
    inputs, _, result = op.subscripts.partition("->")
    return all(set(result) <= set(letters) for letters in inputs.split(","))
