"""A µGraph into a sketch: outer loops and scratch of each block graph fixed, its inner blocks left to the rules.

A block graph becomes one region: a parallel loop over its grid, inside it the nest of its sequential loops, inside that
one block for each operator that is kept as a tile. Nothing is staged that can be read where it lies: inputs are read
from memory through their access maps, elementwise operators are computed where they are used, a sum over a loop adds
up in the scratch of its accumulator, and the tile of an elementwise operator takes the place of its operand's when that
is not needed any more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from pipeline.errors import CodegenError, listed
from pipeline.ir.expr import ZERO, Affine, Const, Expr, Load, Op, Var, add, dtype_of, from_affine, loads, mul, size
from pipeline.ir.graph import AffineMap, DType
from pipeline.ir.poly import Poly, product
from pipeline.ir.program import Alloc, Block, Buffer, Combine, Derived, Iter, Loop, Program, Seq, Stmt, sequence
from pipeline.ir.program import Axis as LoopAxis
from pipeline.ir.target import Target
from pipeline.schedule.constraint import AtMost
from pipeline.schedule.rewrite import neutral
from pipeline.schedule.sketch import Sketch
from pipeline.schedule.variables import Tile
from pipeline.space.lower import argument_name, output_name
from pipeline.superopt.mugraph import (
    Accumulate,
    Axis,
    BlockGraph,
    BlockNode,
    BlockOutput,
    Concat,
    Contract,
    Fold,
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
from pipeline.superopt.spec import Spec

DTYPE: DType = "float32"
LARGEST_TILE = 512  # elements of a tile along one axis
LARGEST_REGISTER_ROWS = 12
CHEAP = frozenset({"add", "sub", "mul", "neg", "max", "min", "identity", "cast", "abs"})
LOWEST = Const(-3.4028234663852886e38, DTYPE)  # a running maximum begins here: exp of a difference with it is no NaN


@dataclass(frozen=True, slots=True)
class Index:
    """Where an element lies along one dimension: in its tile, and in the whole tensor."""

    local: Expr
    whole: Expr


@dataclass(frozen=True, slots=True)
class Dim:
    """A dimension of a tile.

    extent   of the tile
    base     where the tile begins in the whole tensor, over the loops around it; None: it is not cut
    whole    extent of the tensor; elements beyond it do not exist
    cut      the axes that cut it, by name: dimensions that are cut alike have equal tiles
    """

    extent: Poly
    base: Affine | None = None
    whole: Poly = field(default_factory=lambda: Poly.of(0))
    cut: tuple[str, ...] = ()

    @property
    def single(self) -> bool:
        return self.extent == Poly.of(1) and self.base is None


Read = Callable[[tuple[Index, ...]], Expr]  # the element of a value at one index per dimension


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of the kernel graph: its dimensions, and how an element is read and where it is stored."""

    dims: tuple[Poly, ...]
    buffer: str
    place: Callable[[tuple[Expr, ...]], tuple[Expr, ...]]
    dtype: DType = DTYPE

    def read(self, at: tuple[Expr, ...]) -> Expr:
        return Load(self.buffer, self.place(at), self.dtype)


@dataclass(frozen=True, slots=True)
class Value:
    """A value of a block: its dimensions and how an element is read; `buffer` where it lies in scratch."""

    dims: tuple[Dim, ...]
    read: Read
    buffer: str | None = None


def lower_mugraph(spec: Spec, graph: MuGraph, name: str, arguments: Sequence[str], target: Target) -> Sketch:
    """The sketch of a µGraph of the specification, its trace empty.

    arguments  the name of the graph input behind each input of the specification; two may be the same one

    CodegenError where the µGraph has a form that cannot be lowered; it says which.
    """
    return _Lowering(spec, graph, tuple(arguments), target).sketch(name)


def cannot(where: str, why: str) -> CodegenError:
    return CodegenError("a µGraph cannot be lowered", where=where, why=why, todo="Use another one that was found")


@dataclass(slots=True)
class _Lowering:
    spec: Spec
    graph: MuGraph
    arguments: tuple[str, ...]
    target: Target
    buffers: list[Buffer] = field(default_factory=list)
    regions: list[Stmt] = field(default_factory=list)
    variables: list[Tile] = field(default_factory=list)
    derived: list[Derived] = field(default_factory=list)
    constraints: list[AtMost] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)

    def sketch(self, name: str) -> Sketch:
        if len(self.graph.outputs) != 1 or self.graph.outputs[0] < len(self.graph.inputs):
            raise cannot(name, "its result is not one tensor that a kernel makes")
        for given, tensor in zip(self.arguments, self.spec.inputs, strict=True):
            buffer = argument_name(given)
            if tensor.dtype not in (DTYPE, "bool"):
                raise cannot(f"input {tensor.name}", f"{tensor.dtype} is not lowered, only {DTYPE} and bool")
            role: Literal["constant", "input"] = "constant" if tensor.key is not None else "input"
            if all(known.name != buffer for known in self.buffers):
                shape = tuple(Poly.of(n) for n in tensor.shape)
                self.buffers.append(Buffer(buffer, shape, tensor.dtype, "global", role))
            dims = tuple(Poly.of(self.spec.extents[label]) for label in tensor.labels)
            self.tensors.append(Tensor(dims, buffer, _access(tensor.access, tensor.labels), tensor.dtype))
        for number, node in enumerate(self.graph.nodes):
            operands = [self.tensors[i] for i in node.inputs]
            results = [self.result(len(self.tensors) + k) for k in range(node.results)]
            if isinstance(node.op, BlockGraph):
                BlockLowering(self, node.op, f"k{number}", operands, results).run()
            else:
                self.predefined(node.op, f"k{number}", operands, results[0])
        params = tuple(symbol for variable in self.variables for symbol in variable.symbols)
        program = Program(name, tuple(self.buffers), Seq(tuple(self.regions)), Seq(()), params, tuple(self.derived))
        return Sketch(program, tuple(self.variables), tuple(self.constraints))

    def result(self, number: int) -> tuple[str, Callable[[tuple[Expr, ...]], tuple[Expr, ...]] | None]:
        """The buffer of a tensor, and where its elements lie in it; None: row by row."""
        if number == self.graph.outputs[0]:
            shape = tuple(Poly.of(n) for n in self.spec.shape)
            self.buffers.append(Buffer(output_name(0), shape, DTYPE, "global", "output"))
            return output_name(0), _access(self.spec.store, self.spec.labels(self.spec.output))
        return f"t{number}", None

    def place(
        self, result: tuple[str, Callable[[tuple[Expr, ...]], tuple[Expr, ...]] | None], dims: tuple[Poly, ...]
    ) -> Tensor:
        """The tensor of a result, now that its dimensions are known."""
        buffer, at = result
        if at is None:
            self.buffers.append(Buffer(buffer, dims, DTYPE))
            at = _same
        tensor = Tensor(dims, buffer, at)
        self.tensors.append(tensor)
        return tensor

    def predefined(
        self, op: TileOp, name: str, operands: list[Tensor],
        result: tuple[str, Callable[[tuple[Expr, ...]], tuple[Expr, ...]] | None],
    ) -> None:  # fmt: skip
        """An operator on whole tensors: a nest of its own, which the ordinary rules schedule."""
        values = [_whole(tensor) for tensor in operands]
        made = apply_tile_op(op, values, name)
        spatial = made.dims if isinstance(made, Value) else made.spatial
        tensor = self.place(result, tuple(dim.extent for dim in spatial))

        def store(s: tuple[Index, ...]) -> tuple[Expr, ...]:
            return tensor.place(tuple(i.whole for i in s))

        if isinstance(made, Value):
            region = nest(name, tensor.buffer, spatial, (), lambda s, _: made.read(s), store)
        else:
            start = neutral(made.combine, DTYPE)
            region = nest(name, tensor.buffer, spatial, made.reduced, made.read, store, made.combine, start)
        self.regions.append(region)


@dataclass(frozen=True, slots=True)
class Summed:
    """A value that is a combination over dimensions of its own: it needs a block."""

    spatial: tuple[Dim, ...]
    reduced: tuple[Dim, ...]
    read: Callable[[tuple[Index, ...], tuple[Index, ...]], Expr]
    combine: Combine


@dataclass(slots=True)
class BlockLowering:
    """One block graph into one region (and one more for each output that is combined over the grid)."""

    owner: _Lowering
    block: BlockGraph
    name: str
    operands: list[Tensor]
    results: list[tuple[str, Callable[[tuple[Expr, ...]], tuple[Expr, ...]] | None]]
    cuts: dict[tuple[str, ...], tuple[Poly, int]] = field(default_factory=dict)  # axes -> (tile, whole extent)
    extents: dict[str, Poly] = field(default_factory=dict)  # of grid axes and loops
    before: list[list[Stmt]] = field(default_factory=list)
    after: list[list[Stmt]] = field(default_factory=list)
    scratch: list[list[Buffer]] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    late: list[bool] = field(default_factory=list)  # value depends on an accumulator that leaves the loop at its depth
    uses: list[int] = field(default_factory=list)
    depth: tuple[int, ...] = ()
    rescales: dict[int, str] = field(default_factory=dict)  # running maximum -> scratch of exp(before - now)
    pending: dict[int, Summed] = field(default_factory=dict)  # sums that only an accumulator wants

    # ------------------------------------------------------------------ sizes

    def run(self) -> None:
        block = self.block
        levels = len(block.loops) + 1
        self.before, self.after = [[] for _ in range(levels)], [[] for _ in range(levels)]
        self.scratch = [[] for _ in range(levels)]
        self.find_cuts()
        self.count_uses()
        depth = self.depth = depths(block)
        for tile, tensor in zip(block.inputs, self.operands, strict=True):
            self.values.append(self.load(tile.imap, tile.fmap, tensor))
            self.late.append(False)
        for number, node in enumerate(block.nodes, len(block.inputs)):
            self.node(number, node, depth)
        self.outputs(depth)

    def find_cuts(self) -> None:
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
            self.cuts[axes] = (Poly.of(-(-extent // count)), extent)
            return
        if len(axes) == 1 and self.is_batch(axes[0]):
            self.extents[axes[0]] = Poly.of(extent)
            self.cuts[axes] = (Poly.of(1), extent)
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
        lanes = self.owner.target.lanes(4)
        unit, register = self.register(axes, extent, lanes)
        symbols += [f"{stem}_t1", f"{stem}_t0"]
        multiple += [1, unit]
        most += [max(1, min(LARGEST_TILE, extent)), max(unit, min(register, -(-extent // unit) * unit))]
        self.owner.variables.append(Tile(tuple(symbols), extent, tuple(multiple), tuple(most)))
        tile = Poly.symbol(symbols[-2]) * Poly.symbol(symbols[-1])
        outermost = f"n_{self.name}_{axes[0]}"
        inner = product([Poly.symbol(s) for s in symbols])
        self.owner.derived.append(Derived(outermost, Poly.of(extent), inner))
        self.extents[axes[0]] = Poly.symbol(outermost)
        self.cuts[axes] = (tile, extent)

    def is_batch(self, axis: str) -> bool:
        """Does the grid axis cut every input? Then nothing is read twice for it, and a tile has one element of it."""
        names = [known.name for known in self.block.grid]
        if axis not in names:
            return False
        number = names.index(axis)
        return all(tile.imap[number] is not None for tile in self.block.inputs)

    def register(self, axes: tuple[str, ...], extent: int, lanes: int) -> tuple[int, int]:
        """What a register tile of the axis is a multiple of, and the most of it: vectors where neighbours in memory
        lie along it, rows elsewhere."""
        if extent < lanes:
            return 1, LARGEST_REGISTER_ROWS
        for tile, tensor in zip(self.block.inputs, self.operands, strict=True):
            for dim in range(len(tensor.dims)):
                if self.axes_of(tile.imap, tile.fmap, dim) == axes and _contiguous(tensor, dim):
                    return lanes, 4 * lanes
        return (lanes, 4 * lanes) if self.ends_product(axes) else (1, LARGEST_REGISTER_ROWS)

    def ends_product(self, axes: tuple[str, ...]) -> bool:
        """Is the dimension that the axes cut the last one of a product of two inputs?"""
        for node in self.block.nodes:
            if not isinstance(node.op, Contract):
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
        tile, whole = self.cuts[axes]
        step, base = tile, Affine((), Poly.of(0))
        for name in reversed(axes):
            base = base + Affine(((self.loop_var(name), step),), Poly.of(0))
            step = step * self.extents[name]
        return Dim(tile, base, Poly.of(whole), axes)

    def loop_var(self, axis: str) -> str:
        return f"{self.name}_{axis}"

    # ------------------------------------------------------------------ values

    def count_uses(self) -> None:
        self.uses = [0] * (len(self.block.inputs) + len(self.block.nodes))
        for node in self.block.nodes:
            for i in node.inputs:
                self.uses[i] += 1
        for output in self.block.outputs:
            self.uses[output.value] += 1

    def load(self, imap: Sequence[int | None], fmap: Sequence[int | None], tensor: Tensor) -> Value:
        dims = tuple(self.dim(self.axes_of(imap, fmap, d), extent) for d, extent in enumerate(tensor.dims))
        return Value(dims, lambda at: tensor.read(tuple(i.whole for i in at)))

    def node(self, number: int, node: BlockNode, depth: Sequence[int]) -> None:
        name = f"{self.name}_v{number}"
        operands = [self.values[i] for i in node.inputs]
        here = depth[number]
        late = any(self.late[i] and depth[i] == here for i in node.inputs)
        match node.op:
            case Accumulate() | RescaledSum() | Running():
                inner = depth[node.inputs[0]]
                known_late = any(self.late[i] and depth[i] == inner for i in node.inputs)
                into = (self.after if known_late else self.before)[inner]
                self.values.append(self.carried(number, node, name, inner, into))
                self.late.append(known_late if isinstance(node.op, Running) else True)
            case _:
                made = apply_tile_op(node.op, operands, name)
                into = (self.after if late else self.before)[here]
                self.values.append(self.kept(number, node, made, name, here, into))
                self.late.append(late)

    def readers(self, number: int) -> list[BlockNode]:
        return [node for node in self.block.nodes if number in node.inputs]

    def kept(
        self, number: int, node: BlockNode, made: Value | Summed, name: str, depth: int, into: list[Stmt]
    ) -> Value:
        """The value as a tile in scratch, or as it is where it is computed as cheaply by whoever reads it."""
        readers = self.readers(number)
        if isinstance(made, Summed):
            only = readers[0] if len(readers) == 1 and self.uses[number] == 1 else None
            kinds = {"sum": (Accumulate, RescaledSum), "max": (Accumulate, Running), "min": (Accumulate, Running),
                     "prod": (Accumulate,)}[made.combine]  # fmt: skip
            if only is not None and isinstance(only.op, kinds) and only.inputs[0] == number:
                same = isinstance(only.op, RescaledSum) or only.op.kind == made.combine  # type: ignore[union-attr]
                if same:
                    self.pending[number] = made
                    return Value(made.spatial, _never)
            value = self.tile(name, made.spatial, depth)
            assert value.buffer is not None
            around = {self.loop_var(loop.name) for loop in self.block.loops} | {
                self.loop_var(axis.name) for axis in self.block.grid
            }
            place = _in_tile(made.spatial)
            begin: Const | None = neutral(made.combine, DTYPE)
            if any(name_ in around for dim in made.reduced if dim.base for name_, _ in dim.base.terms):
                # the sum begins anew in each iteration of a loop that cuts it, not only in the first one
                first = neutral(made.combine, DTYPE)
                into.append(nest(f"{name}_start", value.buffer, made.spatial, (), lambda s, _: first, place))
                begin = None
            into.append(nest(name, value.buffer, made.spatial, made.reduced, made.read, place, made.combine, begin))
            return value
        if not isinstance(node.op, Map) or self.inlined(number, node, readers, made):
            return made
        kind = dtype_of(made.read(tuple(Index(ZERO, ZERO) for _ in made.dims)))
        value = self.in_place(number, made) or self.tile(name, made.dims, depth, dtype=kind)
        assert value.buffer is not None
        into.append(nest(name, value.buffer, made.dims, (), lambda s, _: made.read(s), _in_tile(made.dims)))
        return value

    def inlined(self, number: int, node: BlockNode, readers: list[BlockNode], made: Value) -> bool:
        """Is the operator computed where it is used? Where each of its elements is read once, or is cheap to make."""
        assert isinstance(node.op, Map)
        if any(isinstance(reader.op, Contract) for reader in readers):
            return False  # a product reads its operands many times
        if any(made_of.buffer is not None and self.sum_of(i) for i, made_of in self.operands_of(node)):
            return self.uses[number] == 1 and not readers  # the end of a product's register tile, kept apart for it
        if self.uses[number] == 1:
            return not readers or not self.widened(readers[0], made)
        return node.op.fn in CHEAP and all(self.values[i].buffer is None for i in node.inputs)

    def operands_of(self, node: BlockNode) -> list[tuple[int, Value]]:
        return [(i, self.values[i]) for i in node.inputs]

    def sum_of(self, number: int) -> bool:
        """Is the value a product or a sum that lies in scratch only for this use?"""
        position = number - len(self.block.inputs)
        return position >= 0 and isinstance(self.block.nodes[position].op, Contract) and self.uses[number] == 1

    def widened(self, reader: BlockNode, made: Value) -> bool:
        """Does the reader broadcast the value, and so compute each element many times?"""
        if not isinstance(reader.op, Map):
            return False
        others = [self.values[i] for i in reader.inputs if i < len(self.values)]
        return any(
            not dim.single and (position >= len(made.dims) or made.dims[-1 - position].single)
            for other in others
            for position, dim in enumerate(reversed(other.dims))
        )

    def in_place(self, number: int, made: Value) -> Value | None:
        """The tile of an operand that nobody reads later, where it has the same dimensions."""
        at = tuple(Index(Var(f"l{d}"), Var(f"g{d}")) for d in range(len(made.dims)))
        mine = _in_tile(made.dims)(at)
        found = loads(made.read(at))
        for load in found:
            owner = next((i for i, value in enumerate(self.values) if value.buffer == load.buffer), None)
            if owner is None or self.values[owner].dims != made.dims or load.buffer.endswith("_acc"):
                continue
            elsewhere = any(other.buffer == load.buffer and other.indices != mine for other in found)
            if elsewhere or self.depth[owner] != self.depth[number] or load.dtype != dtype_of(made.read(at)):
                continue  # read at other places too, or again in the next iteration, or of another kind
            if not self.read_later(load.buffer, number):
                return _scratch(load.buffer, made.dims, load.dtype)
        return None

    def read_later(self, buffer: str, number: int) -> bool:
        """Is a tile read after this value is made, also by what is computed where it is used?"""
        count = len(self.block.inputs)
        wanted = {output.value for output in self.block.outputs}
        for other, node in enumerate(self.block.nodes, count):
            if other > number or (other < number and self.turn(other) > self.turn(number)):
                wanted |= {*node.inputs}
        for i in wanted & set(range(len(self.values))):
            value = self.values[i]
            if value.buffer == buffer:
                return True
            if value.buffer is None and i not in self.pending and buffer in self.sources(value):
                return True
        zero = Index(ZERO, ZERO)
        return any(
            buffer
            in {load.buffer for load in loads(made.read((zero,) * len(made.spatial), (zero,) * len(made.reduced)))}
            for made in self.pending.values()
        )

    def turn(self, number: int) -> int:
        """When a node has its turn: the deeper the later before the loops further in, the earlier after them."""
        node = self.block.nodes[number - len(self.block.inputs)]
        depth = max((self.depth[i] for i in node.inputs), default=0)
        late = any(self.late[i] and self.depth[i] == depth for i in node.inputs)
        return 2 * len(self.block.loops) + 1 - depth if late else depth

    def sources(self, value: Value) -> set[str]:
        return {load.buffer for load in loads(value.read(tuple(Index(ZERO, ZERO) for _ in value.dims)))}

    def tile(self, name: str, dims: tuple[Dim, ...], depth: int, suffix: str = "_tile", dtype: DType = DTYPE) -> Value:
        buffer = f"{name}{suffix}"
        self.scratch[depth].append(Buffer(buffer, _kept(dims), dtype, "shared"))
        return _scratch(buffer, dims, dtype)

    # ------------------------------------------------------------------ accumulators

    def carried(self, number: int, node: BlockNode, name: str, inner: int, into: list[Stmt]) -> Value:
        """What a loop carries along: its scratch lives outside the loop, and begins with the neutral element."""
        op = node.op
        assert isinstance(op, Accumulate | RescaledSum | Running)
        source = node.inputs[0]
        operand, made = self.values[source], self.pending.pop(source, None)
        if isinstance(op, Accumulate) and op.kind == "last":
            last = self.block.nodes[source - len(self.block.inputs)].op if source >= len(self.block.inputs) else None
            if not isinstance(last, Running) or last.level > op.level:
                raise cannot(name, "only the last value of a running maximum is kept")
            return operand
        if isinstance(op, Accumulate) and op.kind == "concat":
            raise cannot(name, "tiles that a loop puts side by side are not kept")
        combine: Combine = "sum" if isinstance(op, RescaledSum) else op.kind  # type: ignore[assignment]
        given = made.spatial if made is not None else operand.dims
        own = {axis.name for axis in self.block.loops[op.level :]}
        # of a dimension that its own loops cut, each place in the tile has an element of the accumulator
        dims = tuple(Dim(dim.extent, None, dim.extent) if own & set(dim.cut) else dim for dim in given)
        over = frozenset(self.loop_var(loop) for loop in own)
        value = self.tile(name, dims, op.level, "_acc")
        assert value.buffer is not None
        buffer, store = value.buffer, _in_tile(dims)
        start: Const = LOWEST if isinstance(op, Running) and combine == "max" else neutral(combine, DTYPE)
        self.before[op.level].append(nest(f"{name}_start", buffer, dims, (), lambda s, _: start, store))
        if isinstance(op, RescaledSum):
            factor = self.rescale(node.inputs[1], name)

            def scaled(s: tuple[Index, ...], _: tuple[Index, ...]) -> Expr:
                return Op("mul", (Load(buffer, store(s), DTYPE), factor.read(_aligned(s, factor.dims))), DTYPE)

            outer = self.depth[node.inputs[1]]  # where the maximum changes; its operand may live further in
            rescaling = into if outer == inner else self.before[outer]
            rescaling.append(nest(f"{name}_rescale", buffer, dims, (), scaled, store))
        if isinstance(op, Running):
            before = self.tile(name, dims, inner, "_before")
            change = self.tile(name, dims, inner, "_change")
            assert before.buffer is not None and change.buffer is not None
            into.append(nest(f"{name}_keep", before.buffer, dims, (), lambda s, _: value.read(s), store))
        if made is not None:
            into.append(nest(name, buffer, made.spatial, made.reduced, made.read, store, combine, over=over))
        else:
            into.append(nest(name, buffer, given, (), lambda s, _: operand.read(s), store, combine, over=over))
        if isinstance(op, Running):
            self.rescales[number] = change.buffer  # type: ignore[assignment]
            into.append(
                nest(
                    f"{name}_change", change.buffer or "", dims, (),
                    lambda s, _: Op("exp", (Op("sub", (before.read(s), value.read(s)), DTYPE),), DTYPE), store,
                )
            )  # fmt: skip
        return value

    def rescale(self, number: int, name: str) -> Value:
        """exp(before - now) of a running maximum, seen through what adds and takes away dimensions of one element."""
        if number in self.rescales:
            return _scratch(self.rescales[number], self.values[number].dims)
        position = number - len(self.block.inputs)
        if position < 0 or not isinstance(self.block.nodes[position].op, Transpose | Squeeze | Unsqueeze):
            raise cannot(name, "the second operand of a rescaled sum is no running maximum")
        view = self.block.nodes[position]
        made = apply_tile_op(view.op, [self.rescale(view.inputs[0], name)], name)
        assert isinstance(made, Value)
        return made

    # ------------------------------------------------------------------ the region

    def outputs(self, depth: Sequence[int]) -> None:
        block = self.block
        combined: list[tuple[str, Tensor, Tensor, tuple[Combine, ...]]] = []
        for position, (output, result) in enumerate(zip(block.outputs, self.results, strict=True)):
            value = self.values[output.value]
            name = f"{self.name}_out{position}"
            self.check_omap(name, value, output)
            stacked = [axis for axis, to in zip(block.grid, output.omap, strict=True) if to == "stack"]
            folded = [(axis, to) for axis, to in zip(block.grid, output.omap, strict=True) if to in ("sum", "max")]
            dims = tuple(dim.whole for dim in value.dims)
            lead = tuple(self.extents[axis.name] for axis in stacked)
            tensor = self.owner.place(result, (*lead, *dims)) if not folded else None
            if folded:
                parts = tuple(self.extents[axis.name] for axis, _ in folded)
                buffer = f"{name}_parts"
                self.owner.buffers.append(Buffer(buffer, (*parts, *lead, *dims), DTYPE))
                tensor = Tensor((*parts, *lead, *dims), buffer, _same)
                final = self.owner.place(result, (*lead, *dims))
                combined.append((name, tensor, final, tuple(to for _, to in folded)))  # type: ignore[misc]
            assert tensor is not None
            first = tuple(
                Iter(f"p{k}", self.extents[axis.name], "spatial", Var(self.loop_var(axis.name)))
                for k, axis in enumerate([*(axis for axis, _ in folded), *stacked])
            )
            into = self.after[0]
            store = tensor.place
            into.append(
                nest(
                    name, tensor.buffer, value.dims, (), lambda s, _, value=value: value.read(s),  # type: ignore[misc]
                    lambda s, store=store, first=first: store(  # type: ignore[misc]
                        (*(Var(it.var) for it in first), *(i.whole for i in s))
                    ), outer=first,
                )
            )  # fmt: skip
        self.owner.regions.append(self.region())
        for name, parts_, final, kinds in combined:
            self.owner.regions.append(combine_parts(f"{name}_combine", parts_, final, kinds))

    def check_omap(self, name: str, value: Value, output: BlockOutput) -> None:
        """Tiles are put side by side along the dimensions that the grid cut, for elements stay where they were."""
        for d, dim in enumerate(value.dims):
            beside = tuple(axis.name for axis, to in zip(self.block.grid, output.omap, strict=True) if to == d)
            if beside != dim.cut:
                raise cannot(name, f"dimension {d} is cut by {listed(dim.cut) or 'no axis'} and put together along "
                                   f"{listed(beside) or 'none'}")  # fmt: skip

    def region(self) -> Stmt:
        """The parallel loop over the grid around the nest of sequential loops around everything else."""
        levels = len(self.block.loops)
        body: Stmt | None = None
        for level in range(levels, -1, -1):
            inside: list[Stmt] = list(self.before[level])
            if body is not None:
                axis = self.block.loops[level]
                inside.append(Loop((LoopAxis(self.loop_var(axis.name), self.extents[axis.name]),), body))
            inside += self.after[level]
            body = sequence(inside)
            for buffer in reversed(self.scratch[level]):
                body = Alloc(buffer, body)
        assert body is not None
        total = sum((product(list(b.shape)) for level in self.scratch for b in level), Poly.of(0))
        if not total.is_constant:
            limit = (self.owner.target.cache(2) or 1 << 18) * 3 // 4 // 4
            self.owner.constraints.append(AtMost(f"{self.name} scratch", total, limit))
        axes = tuple(LoopAxis(self.loop_var(axis.name), self.extents[axis.name]) for axis in self.block.grid)
        if not axes:
            axes = (LoopAxis(f"{self.name}_once", Poly.of(1)),)
        return Loop(axes, body, "parallel")


def combine_parts(name: str, parts: Tensor, final: Tensor, kinds: tuple[Combine, ...]) -> Stmt:
    """The partial results of the grid, combined: threads share the first dimension, lanes run along the last."""
    if len(set(kinds)) != 1:
        raise cannot(name, "the partial results are combined in different ways")
    kind = kinds[0]
    spatial = tuple(Dim(extent, None, extent) for extent in final.dims)
    reduced = tuple(Dim(extent, None, extent) for extent in parts.dims[: len(kinds)])

    def read(s: tuple[Index, ...], r: tuple[Index, ...]) -> Expr:
        return parts.read(tuple(i.whole for i in (*r, *s)))

    def store(s: tuple[Index, ...]) -> tuple[Expr, ...]:
        return final.place(tuple(i.whole for i in s))

    start = neutral(kind, DTYPE)
    body = sequence([
        nest(f"{name}_start", final.buffer, spatial[1:], (), lambda s, _: start, store, lead=spatial[:1], around=name),
        nest(name, final.buffer, spatial[1:], reduced, read, store, kind, lead=spatial[:1], around=name, swap=True),
    ])  # fmt: skip
    return Loop((LoopAxis(f"{name}_all", spatial[0].extent if spatial else Poly.of(1)),), body, "parallel")


# ---------------------------------------------------------------------- operators


def apply_tile_op(op: object, operands: Sequence[Value], name: str) -> Value | Summed:
    """What an operator on tiles makes of its operands."""
    match op:
        case Scalar(value):
            return Value((), lambda _: Const(value, DTYPE))
        case Map(fn):
            dims = _broadcast([operand.dims for operand in operands], name)
            kind: DType = "bool" if fn in ("eq", "ne", "lt", "le", "gt", "ge", "and", "or", "xor", "not") else DTYPE
            return Value(dims, lambda at: Op(fn, tuple(o.read(_aligned(at, o.dims)) for o in operands), kind))
        case Contract(subscripts):
            return _contract(subscripts, operands, name)
        case Fold(kind_, axes, keep):
            (operand,) = operands
            if keep != 1:
                raise cannot(name, "a fold that keeps groups is not lowered")
            rank = len(operand.dims)
            gone = sorted(axis % rank for axis in axes)
            spatial = tuple(_one() if d in gone else dim for d, dim in enumerate(operand.dims))
            reduced = tuple(operand.dims[d] for d in gone)
            return Summed(
                spatial, reduced,
                lambda s, r: operand.read(tuple(r[gone.index(d)] if d in gone else s[d] for d in range(rank))),
                kind_,
            )  # fmt: skip
        case Transpose(perm):
            (operand,) = operands
            back = [perm.index(d) for d in range(len(perm))]
            return Value(
                tuple(operand.dims[p] for p in perm), lambda at: operand.read(tuple(at[b] for b in back)), None
            )
        case Unsqueeze(axes):
            (operand,) = operands
            rank = len(operand.dims) + len(axes)
            dims_ = iter(operand.dims)
            return Value(
                tuple(_one() if d in axes else next(dims_) for d in range(rank)),
                lambda at: operand.read(tuple(i for d, i in enumerate(at) if d not in axes)),
            )
        case Squeeze(axes):
            (operand,) = operands
            if any(operand.dims[d].base is not None for d in axes):
                raise cannot(name, "a dimension that an axis cuts is taken out")
            kept = [d for d in range(len(operand.dims)) if d not in axes]
            zero = Index(ZERO, ZERO)
            return Value(
                tuple(operand.dims[d] for d in kept),
                lambda at: operand.read(
                    tuple(at[kept.index(d)] if d in kept else zero for d in range(len(operand.dims)))
                ),
            )
        case Concat():
            raise cannot(name, "a concatenation of tiles is not lowered")
        case _:
            raise cannot(name, f"{type(op).__name__} is no operator on tiles")


def _contract(subscripts: str, operands: Sequence[Value], name: str) -> Summed | Value:
    inputs, _, result = subscripts.partition("->")
    left, right = inputs.split(",")
    dims: dict[str, Dim] = {}
    for letters, operand in zip((left, right), operands, strict=True):
        for letter, dim in zip(letters, operand.dims, strict=True):
            known = dims.setdefault(letter, dim)
            if known.single and dim.extent == Poly.of(1):
                dims[letter] = dim
            elif (known.extent, known.cut) != (dim.extent, dim.cut) and not (dim.single and known.extent == Poly.of(1)):
                raise cannot(name, f"index {letter} of {subscripts} is cut in two ways")
    summed = [letter for letter in dims if letter not in result]

    def read(s: tuple[Index, ...], r: tuple[Index, ...]) -> Expr:
        at = dict(zip(result, s, strict=True)) | dict(zip(summed, r, strict=True))
        values = [
            operand.read(tuple(Index(ZERO, ZERO) if dim.single else at[letter]
                               for letter, dim in zip(letters, operand.dims, strict=True)))
            for letters, operand in zip((left, right), operands, strict=True)
        ]  # fmt: skip
        return Op("mul", tuple(values), DTYPE)

    spatial = tuple(dims[letter] for letter in result)
    if not summed:
        return Value(spatial, lambda at: read(at, ()))
    return Summed(spatial, tuple(dims[letter] for letter in summed), read, "sum")


def nest(
    name: str, buffer: str, spatial: Sequence[Dim], reduced: Sequence[Dim],
    read: Callable[[tuple[Index, ...], tuple[Index, ...]], Expr],
    store: Callable[[tuple[Index, ...]], tuple[Expr, ...]],
    combine: Combine | None = None, start: Const | None = None, outer: tuple[Iter, ...] = (),
    lead: Sequence[Dim] = (), around: str = "", swap: bool = False, over: frozenset[str] = frozenset(),
) -> Stmt:  # fmt: skip
    """A block in loops over its tile. A dimension that is cut has two iteration variables: the place in the tile, and
    the place in the whole tensor, beyond whose end nothing is done.

    lead, around  dimensions whose loop is around the nest already, under the name `<around>_all`
    swap          the loops over the reduced dimensions stand outside those of the others
    over          loops around the nest that the combination runs over, too
    """
    iters: list[Iter] = list(outer)
    loops: list[tuple[LoopAxis, bool]] = []

    def index(dim: Dim, position: str, kind: Literal["spatial", "reduce"], var: str | None = None) -> Index:
        if dim.single:
            return Index(ZERO, ZERO)
        if dim.extent == Poly.of(1) and dim.base is not None:
            combined = any(name_ in over for name_, _ in dim.base.terms)
            iters.append(Iter(f"g{position}", dim.whole, "reduce" if combined else kind, from_affine(dim.base)))
            return Index(ZERO, Var(f"g{position}"))
        loop = var or f"{name}_{position}"
        if var is None:
            loops.append((LoopAxis(loop, dim.extent), kind == "reduce"))
        iters.append(Iter(f"l{position}", dim.extent, kind, Var(loop)))
        if dim.base is None:
            return Index(Var(f"l{position}"), Var(f"l{position}"))
        whole = from_affine(dim.base + Affine(((loop, Poly.of(1)),), Poly.of(0)))
        combined = any(name_ in over for name_, _ in dim.base.terms)
        iters.append(Iter(f"g{position}", dim.whole, "reduce" if combined else kind, whole))
        return Index(Var(f"l{position}"), Var(f"g{position}"))

    s = [index(dim, f"a{d}", "spatial", f"{around}_all") for d, dim in enumerate(lead)]
    s += [index(dim, f"s{d}", "spatial") for d, dim in enumerate(spatial)]
    r = [index(dim, f"r{d}", "reduce") for d, dim in enumerate(reduced)]
    if start is not None and all(it.kind != "reduce" for it in iters):
        combine = start = None  # one term: the combination is the term itself
    block = Block(name, tuple(iters), buffer, store(tuple(s)), read(tuple(s), tuple(r)), combine, start)
    body: Stmt = block
    order = sorted(loops, key=lambda pair: not pair[1]) if swap else loops
    for axis, _ in reversed(order):
        body = Loop((axis,), body)
    return body


def _whole(tensor: Tensor) -> Value:
    dims = tuple(_one() if extent == Poly.of(1) else Dim(extent, None, extent) for extent in tensor.dims)
    return Value(dims, lambda at: tensor.read(tuple(i.whole for i in at)))


def _scratch(buffer: str, dims: tuple[Dim, ...], dtype: DType = DTYPE) -> Value:
    place = _in_tile(dims)
    return Value(dims, lambda at: Load(buffer, place(at), dtype), buffer)


def _one() -> Dim:
    return Dim(Poly.of(1), None, Poly.of(1))


def _broadcast(shapes: Sequence[tuple[Dim, ...]], name: str) -> tuple[Dim, ...]:
    rank = max((len(dims) for dims in shapes), default=0)
    result = [_one() for _ in range(rank)]
    for dims in shapes:
        for position, dim in enumerate(dims, rank - len(dims)):
            known = result[position]
            if known.single:
                result[position] = dim
            elif not dim.single and (known.extent, known.cut) != (dim.extent, dim.cut):
                raise cannot(name, f"dimension {position} of the operands is cut in two ways")
    return tuple(result)


def _aligned(at: tuple[Index, ...], dims: tuple[Dim, ...]) -> tuple[Index, ...]:
    """The index of an operand, broadcast as in NumPy."""
    kept = at[len(at) - len(dims) :]
    return tuple(Index(ZERO, ZERO) if dim.single else i for i, dim in zip(kept, dims, strict=True))


def _access(access: AffineMap, labels: tuple[int, ...]) -> Callable[[tuple[Expr, ...]], tuple[Expr, ...]]:
    """Where an element lies in memory, given an index for each label."""

    def place(at: tuple[Expr, ...]) -> tuple[Expr, ...]:
        found = []
        for dim in access:
            index: Expr = size(dim.offset)
            for label, coefficient in dim.terms:
                index = add(index, mul(at[labels.index(label)], Const(coefficient)))
            found.append(index)
        return tuple(found)

    return place


def _contiguous(tensor: Tensor, dim: int) -> bool:
    """Do neighbours along the dimension lie side by side in memory?"""
    probe = tensor.place(tuple(Var(f"d{d}") for d in range(len(tensor.dims))))
    return (bool(probe) and probe[-1] in (Var(f"d{dim}"),)) or _unit(probe, f"d{dim}")


def _unit(probe: tuple[Expr, ...], var: str) -> bool:
    from_last = probe[-1] if probe else ZERO
    return isinstance(from_last, Op) and Var(var) in from_last.args and from_last.fn == "add"


def _kept(dims: tuple[Dim, ...]) -> tuple[Poly, ...]:
    """The shape of a tile in scratch: dimensions of one element are left out."""
    return tuple(dim.extent for dim in dims if dim.extent != Poly.of(1))


def _in_tile(dims: tuple[Dim, ...]) -> Callable[[tuple[Index, ...]], tuple[Expr, ...]]:
    """Where an element of a tile lies in scratch."""
    return lambda at: tuple(i.local for i, dim in zip(at, dims, strict=True) if dim.extent != Poly.of(1))


def _same(at: tuple[Expr, ...]) -> tuple[Expr, ...]:
    return at


def _never(_: tuple[Index, ...]) -> Expr:
    raise AssertionError("a sum that an accumulator takes over is read by nobody else")
