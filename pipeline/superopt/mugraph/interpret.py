"""The interpreter of µGraphs in any algebra.

All points of a grid are computed at once: a tile of a block has one leading dimension for each grid axis, of extent one
where it does not depend on the axis. Only the loops are walked.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar, assert_never

from pipeline.errors import CheckError, PipelineError, UserError, listed
from pipeline.ir.algebra import COMBINE, Algebra, IndivisibleError, split_subscripts
from pipeline.ir.graph import Shape
from pipeline.superopt.mugraph.graph import (
    Accumulate,
    BlockGraph,
    BlockOutput,
    Concat,
    Contract,
    Fold,
    LoopOp,
    Map,
    MuGraph,
    RescaledSum,
    Running,
    Scalar,
    Squeeze,
    TileOp,
    Transpose,
    Unsqueeze,
    depths,
)
from pipeline.superopt.mugraph.shapes import extent_of

V = TypeVar("V")
SPARE = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"  # letters of grid axes; those that a contraction uses itself are skipped


def run_mugraph(
    graph: MuGraph, feeds: Mapping[str, V], algebra: Algebra[V], extents: Mapping[str, int] | None = None,
    *, once: bool = False,
) -> tuple[V, ...]:  # fmt: skip
    """The results of the µGraph, in order.

    feeds    a value of the algebra for each input, by name
    extents  of grid axes and loops by name; they come before those that the µGraph fixes
    once     walk one iteration of each loop only, where the values are mere shapes

    CheckError, with the kernel and the node, for a µGraph whose parts do not fit together.
    """
    missing = set(graph.inputs) - set(feeds)
    if missing:
        raise UserError("an input is missing", where=listed(missing))
    values: list[V] = [feeds[name] for name in graph.inputs]
    for number, kernel in enumerate(graph.nodes):
        try:
            operands = [values[i] for i in kernel.inputs]
            if isinstance(kernel.op, BlockGraph):
                values += _Block(kernel.op, algebra, extents or {}, once).run(operands)
            else:
                values.append(_tile_op(kernel.op, operands, algebra, 0))
        except PipelineError as error:
            error.where = f"kernel {number}" + (f", {error.where}" if error.where else "")
            raise
        except (ValueError, IndexError, KeyError) as error:
            raise CheckError("the operands do not fit", where=f"kernel {number}", why=str(error)) from None
    return tuple(values[i] for i in graph.outputs)


@dataclass(frozen=True, slots=True)
class Turn:
    """When a node of a block runs: inside `depth` loops, before those further in or after them."""

    depth: int
    after: bool


def turns(block: BlockGraph) -> tuple[Turn, ...]:
    """The turn of each node; CheckError where an accumulator is read inside its loops, or adds up what they keep."""
    depth = depths(block)
    late = [False] * len(block.inputs)  # known only after the loops that are further in
    found: list[Turn] = []
    for position, node in enumerate(block.nodes):
        here = max((depth[i] for i in node.inputs), default=0)
        if isinstance(node.op, LoopOp) and node.op.level >= here:
            raise CheckError("the operand does not vary in the loops", where=_place(position, node.op),
                             why=f"it lives in {here} loops, its loops begin at {node.op.level}")  # fmt: skip
        for operand in node.inputs:
            if late[operand] and depth[operand] < here:
                raise CheckError("an accumulator is read inside its own loops", where=_place(position, node.op),
                                 why=f"value {operand} is known only after them")  # fmt: skip
        turn = Turn(here, any(late[i] for i in node.inputs))
        found.append(turn)
        late.append(turn.after or isinstance(node.op, Accumulate | RescaledSum))
    for output in block.outputs:
        if depth[output.value]:
            raise CheckError("an output is inside the loops", where=f"value {output.value}",
                             why=f"it lives in {depth[output.value]} loops", todo="Accumulate it")  # fmt: skip
    return tuple(found)


class _Block(Generic[V]):
    """One run of a block graph, for all points of its grid at once."""

    def __init__(self, block: BlockGraph, algebra: Algebra[V], extents: Mapping[str, int], once: bool) -> None:
        self.block = block
        self.once = once
        self.algebra = algebra
        self.grid = tuple(extent_of(axis, extents) for axis in block.grid)
        self.loops = tuple(extent_of(axis, extents) for axis in block.loops)
        self.depth = depths(block)
        self.turns = turns(block)
        self.values: dict[int, V] = {}
        self.before: dict[int, V] = {}  # the maximum of the last iteration, of rescaled sums
        self.tiles: dict[int, list[V]] = {}  # of concatenating accumulators
        self.pieces: list[V] = []
        self.position = [0] * len(self.loops)

    def run(self, operands: Sequence[V]) -> list[V]:
        if len(operands) != len(self.block.inputs):
            raise CheckError("the number of operands is wrong", why=f"{len(operands)} for {len(self.block.inputs)}")
        self.pieces = [self._cut(number, x) for number, x in enumerate(operands)]
        self._walk(0)
        return [self._leave(output) for output in self.block.outputs]

    def _walk(self, level: int) -> None:
        for number in range(len(self.block.inputs)):
            if self.depth[number] == level:
                self.values[number] = self._tile(number)
        self._nodes(Turn(level, False))
        if level < len(self.loops):
            own = [
                position + len(self.block.inputs)
                for position, node in enumerate(self.block.nodes)
                if isinstance(node.op, LoopOp) and node.op.level == level
            ]
            for value in own:
                self.values.pop(value, None)
                self.before.pop(value, None)
                self.tiles.pop(value, None)
            for i in range(1 if self.once else self.loops[level]):
                self.position[level] = i
                self._walk(level + 1)
            for value in own:
                if value in self.tiles:
                    op = self.block.nodes[value - len(self.block.inputs)].op
                    assert isinstance(op, Accumulate) and op.axis is not None
                    times = math.prod(self.loops[level : self.turns[value - len(self.block.inputs)].depth])
                    tiles = self.tiles[value] * (times if self.once else 1)
                    self.values[value] = self.algebra.concat(tiles, op.axis + len(self.grid))
        self._nodes(Turn(level, True))

    def _nodes(self, turn: Turn) -> None:
        for position, node in enumerate(self.block.nodes):
            if self.turns[position] != turn:
                continue
            number = position + len(self.block.inputs)
            operands = [self.values[i] for i in node.inputs]
            try:
                if isinstance(node.op, LoopOp):
                    self._loop_op(number, node.op, operands)
                else:
                    self.values[number] = _tile_op(node.op, operands, self.algebra, len(self.grid))
            except PipelineError as error:
                error.where = _place(position, node.op)
                raise
            except (ValueError, IndexError, KeyError) as error:
                raise CheckError("the operands do not fit", where=_place(position, node.op), why=str(error)) from None

    def _loop_op(self, number: int, op: LoopOp, operands: list[V]) -> None:
        x = operands[0]
        old = self.values.get(number)
        match op:
            case Accumulate(kind="concat"):
                if op.axis is None:
                    raise CheckError("a concatenating accumulator needs an axis")
                self.tiles.setdefault(number, []).append(x)
            case Accumulate(kind="last"):
                self.values[number] = x
            case Accumulate(kind=kind) | Running(kind=kind):
                self.values[number] = x if old is None else self.algebra.elementwise(COMBINE[kind], old, x)
            case RescaledSum():
                if old is not None:
                    change = self._map("sub", self.before[number], operands[1])
                    x = self._map("add", self._map("mul", old, self._map("exp", change)), x)
                self.values[number] = x
                self.before[number] = operands[1]
            case _:
                assert_never(op)

    def _map(self, fn: str, *operands: V) -> V:
        return _tile_op(Map(fn), operands, self.algebra, len(self.grid))

    def _cut(self, number: int, x: V) -> V:
        """The operand as (grid axes, loops, tile), of extent one for the axes that do not partition it."""
        tile = self.block.inputs[number]
        shape = self.algebra.shape(x)
        axes = [*zip(self.grid, tile.imap, strict=True), *zip(self.loops, tile.fmap, strict=True)]
        split: list[int] = []
        places: dict[int, int] = {}  # of each axis, then (from -1 down) of each tile dimension
        for dim, size in enumerate(shape):
            own = [axis for axis, (_, partitioned) in enumerate(axes) if partitioned == dim]
            pieces = math.prod(axes[axis][0] for axis in own)
            if size % pieces:
                raise IndivisibleError(f"input {number}", dim, shape, pieces)
            for axis in own:
                places[axis] = len(split)
                split.append(axes[axis][0])
            places[-1 - dim] = len(split)
            split.append(size // pieces)
        if any(dim is not None and not 0 <= dim < len(shape) for _, dim in axes):
            raise CheckError("a map names a dimension that is not there", where=f"input {number}", why=f"{shape}")
        order = [*(axis for axis in range(len(axes)) if axis in places), *(-1 - dim for dim in range(len(shape)))]
        cut = self.algebra.transpose(self.algebra.reshape(x, tuple(split)), [places[axis] for axis in order])
        whole = [axes[axis][0] if axis in places else 1 for axis in range(len(axes))]
        return self.algebra.reshape(cut, (*whole, *(split[places[-1 - dim]] for dim in range(len(shape)))))

    def _tile(self, number: int) -> V:
        piece = self.pieces[number]
        shape = self.algebra.shape(piece)
        first, last = len(self.grid), len(self.grid) + len(self.loops)
        here = [slice(None)] * len(shape)
        for loop, position in enumerate(self.position):
            if self.block.inputs[number].fmap[loop] is not None:
                here[first + loop] = slice(position, position + 1)
        tile = self.algebra.index(piece, tuple(here)) if self.depth[number] else piece
        return self.algebra.reshape(tile, (*shape[:first], *shape[last:]))

    def _leave(self, output: BlockOutput) -> V:
        """The tiles of all grid points put together."""
        grid = len(self.grid)
        x = self.values[output.value]
        tile = self.algebra.shape(x)[grid:]
        if len(output.omap) != grid:
            raise CheckError("an omap needs one entry for each grid axis", where=f"value {output.value}")
        x = self.algebra.broadcast_to(x, (*self.grid, *tile))
        for axis, how in enumerate(output.omap):
            if how in ("sum", "max"):
                x = self.algebra.fold(str(how), x, [axis])
        stacked = [axis for axis, how in enumerate(output.omap) if how == "stack"]
        order = [*(axis for axis, how in enumerate(output.omap) if how in ("sum", "max")), *stacked]
        shape = [self.grid[axis] for axis in stacked]
        for dim, size in enumerate(tile):
            beside = [axis for axis, how in enumerate(output.omap) if how == dim]
            order += [*beside, grid + dim]
            shape.append(size * math.prod(self.grid[axis] for axis in beside))
        if len(order) != grid + len(tile):
            raise CheckError("an omap names a dimension that is not there", where=f"value {output.value}",
                             why=f"{output.omap} for tiles of shape {tile}")  # fmt: skip
        return self.algebra.reshape(self.algebra.transpose(x, order), tuple(shape))


def _tile_op(op: TileOp, operands: Sequence[V], algebra: Algebra[V], grid: int) -> V:
    """One operator on tiles with `grid` leading dimensions."""
    shapes = [algebra.shape(x) for x in operands]
    match op:
        case Scalar(value):
            return algebra.reshape(algebra.scalar(value), (1,) * grid)
        case Map(fn):
            rank = max(len(shape) for shape in shapes)
            aligned = [
                x if len(shape) == rank else algebra.reshape(x, _aligned(shape, rank, grid))
                for x, shape in zip(operands, shapes, strict=True)
            ]
            return algebra.elementwise(fn, *aligned)
        case Contract(subscripts):
            return _contract(subscripts, operands, algebra, grid)
        case Fold(kind, axes, keep):
            return algebra.fold(kind, operands[0], _axes(axes, shapes[0], grid), keep)
        case Transpose(perm):
            return algebra.transpose(operands[0], [*range(grid), *(grid + p for p in perm)])
        case Unsqueeze(axes):
            shape = list(shapes[0])
            for axis in axes:
                shape.insert(grid + axis, 1)
            return algebra.reshape(operands[0], tuple(shape))
        case Squeeze(axes):
            gone = _axes(axes, shapes[0], grid)
            if any(shapes[0][axis] != 1 for axis in gone):
                raise CheckError(
                    "a dimension that is taken out is not of extent one", why=f"{axes} of {shapes[0][grid:]}"
                )
            return algebra.reshape(operands[0], tuple(n for axis, n in enumerate(shapes[0]) if axis not in gone))
        case Concat(axis):
            whole = [max(shape[i] for shape in shapes) for i in range(grid)]
            parts = [
                algebra.broadcast_to(x, (*whole, *shape[grid:])) for x, shape in zip(operands, shapes, strict=True)
            ]
            return algebra.concat(parts, _axes((axis,), shapes[0], grid)[0])
    assert_never(op)


def _aligned(shape: Shape, rank: int, grid: int) -> Shape:
    return (*shape[:grid], *(1,) * (rank - len(shape)), *shape[grid:])


def _axes(axes: Sequence[int], shape: Shape, grid: int) -> list[int]:
    if any(not 0 <= axis < len(shape) - grid for axis in axes):
        raise CheckError("an axis is not there", why=f"{tuple(axes)} of a tile of shape {shape[grid:]}")
    return [grid + axis for axis in axes]


def _contract(subscripts: str, operands: Sequence[V], algebra: Algebra[V], grid: int) -> V:
    """The grid axes are batches: of both operands, of one, or of none."""
    left, right, out = split_subscripts(subscripts)
    spare = [letter for letter in SPARE if letter not in subscripts][:grid]
    letters, values = [], []
    for own, x in zip((left, right), operands, strict=True):
        shape = algebra.shape(x)
        here = [axis for axis in range(grid) if shape[axis] != 1]
        values.append(x if len(here) == grid else algebra.reshape(x, (*(shape[a] for a in here), *shape[grid:])))
        letters.append("".join(spare[axis] for axis in here) + own)
    both = [axis for axis in range(grid) if spare[axis] in letters[0] + letters[1]]
    value = algebra.contract(f"{letters[0]},{letters[1]}->{''.join(spare[axis] for axis in both)}{out}", *values)
    shape = algebra.shape(value)
    sizes = dict(zip(both, shape, strict=False))
    return algebra.reshape(value, (*(sizes.get(axis, 1) for axis in range(grid)), *shape[len(both) :]))


def _place(position: int, op: TileOp | LoopOp) -> str:
    return f"node {position} ({type(op).__name__})"
