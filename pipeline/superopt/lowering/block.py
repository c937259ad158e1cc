"""One block graph as one region: its tiles in scratch, its accumulators, and the loops around them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pipeline.errors import listed
from pipeline.ir.expr import Const, Expr, Load, Op, Var, dtype_of, loads
from pipeline.ir.graph import ITEM_BYTES, DType
from pipeline.ir.poly import Poly, product
from pipeline.ir.program import Alloc, Buffer, Combine, Iter, Loop, Stmt, sequence, walk
from pipeline.ir.program import Axis as LoopAxis
from pipeline.ir.target import Target
from pipeline.schedule.constraint import AtMost
from pipeline.schedule.rewrite import neutral
from pipeline.superopt.lowering.cuts import Cuts
from pipeline.superopt.lowering.nest import combine_parts, nest
from pipeline.superopt.lowering.operators import apply_tile_op
from pipeline.superopt.lowering.tile import (
    DTYPE,
    Dim,
    Index,
    Placing,
    Summed,
    Tensor,
    Value,
    aligned,
    cannot,
    contiguous,
    in_tile,
    kept,
    never,
    origin,
    rounded,
    same,
    scratch_value,
)
from pipeline.superopt.many_cores import scratch_bytes
from pipeline.superopt.mugraph.graph import (
    Accumulate,
    BlockGraph,
    BlockNode,
    BlockOutput,
    Contract,
    LoopOp,
    Map,
    RescaledSum,
    Running,
    Squeeze,
    TileOp,
    Transpose,
    Unsqueeze,
    depths,
)

CHEAP = frozenset({"add", "sub", "mul", "neg", "max", "min", "identity", "cast", "abs"})
LOWEST = Const(-3.4028234663852886e38, DTYPE)  # a running maximum begins here: exp of a difference with it is no NaN


class KernelLowering(Protocol):
    """What a block graph needs of the kernel graph around it."""

    target: Target
    buffers: list[Buffer]
    regions: list[Stmt]
    constraints: list[AtMost]

    @property
    def factors(self) -> DType:
        """Of tiles that only products read."""
        ...

    def place(self, result: tuple[str, Placing | None], dims: tuple[Poly, ...]) -> Tensor:
        """The tensor of a result, now that its dimensions are known."""
        ...


@dataclass(slots=True)
class BlockLowering:
    """One block graph into one region (and one more for each output that is combined over the grid)."""

    owner: KernelLowering
    block: BlockGraph
    name: str
    operands: list[Tensor]
    results: list[tuple[str, Placing | None]]
    cuts: Cuts
    before: list[list[Stmt]] = field(default_factory=list)
    after: list[list[Stmt]] = field(default_factory=list)
    scratch: list[list[Buffer]] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    late: list[bool] = field(default_factory=list)  # value depends on an accumulator that leaves the loop at its depth
    uses: list[int] = field(default_factory=list)
    depth: tuple[int, ...] = ()
    rescales: dict[int, str] = field(default_factory=dict)  # running maximum -> scratch of exp(before - now)
    orders: dict[str, tuple[int, ...]] = field(default_factory=dict)  # of the dimensions of a tile in scratch
    pending: dict[int, Summed] = field(default_factory=dict)  # sums that only an accumulator wants

    def run(self) -> None:
        block = self.block
        levels = len(block.loops) + 1
        self.before, self.after = [[] for _ in range(levels)], [[] for _ in range(levels)]
        self.scratch = [[] for _ in range(levels)]
        self.count_uses()
        depth = self.depth = depths(block)
        for tile, tensor in zip(block.inputs, self.operands, strict=True):
            self.values.append(self.load(tile.imap, tile.fmap, tensor))
            self.late.append(False)
        for number, node in enumerate(block.nodes, len(block.inputs)):
            self.node(number, node, depth)
        self.outputs(depth)

    # ------------------------------------------------------------------ values

    def count_uses(self) -> None:
        self.uses = [0] * (len(self.block.inputs) + len(self.block.nodes))
        for node in self.block.nodes:
            for i in node.inputs:
                self.uses[i] += 1
        for output in self.block.outputs:
            self.uses[output.value] += 1

    def load(self, imap: Sequence[int | None], fmap: Sequence[int | None], tensor: Tensor) -> Value:
        dims = tuple(self.cuts.dim(self.cuts.axes_of(imap, fmap, d), extent) for d, extent in enumerate(tensor.dims))
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
                into = (self.after if late else self.before)[here]
                if isinstance(node.op, Contract):
                    operands = self.of_one_kind(operands, name, here, into)
                made = apply_tile_op(node.op, operands, name)
                self.values.append(self.kept(number, node, made, name, here, into))
                self.late.append(late)

    def of_one_kind(self, operands: list[Value], name: str, depth: int, into: list[Stmt]) -> list[Value]:
        """The factors of a product on a GPU: beside a factor of halves a tile is of halves too, for tensor cores."""
        kind = self.owner.factors
        reads = [operand.read(origin(operand.dims)) for operand in operands]
        halves = [isinstance(read, Op) and read.fn == "cast" and loads(read)[0].dtype == kind for read in reads]
        if self.owner.target.gpu is None or kind == DTYPE or not any(halves):
            return operands
        made = []
        for number, (operand, read) in enumerate(zip(operands, reads, strict=True)):
            if isinstance(read, Load) and operand.buffer is not None and read.dtype == DTYPE:
                narrow = self.tile(f"{name}_factor{number}", operand.dims, depth, "", kind)
                assert narrow.buffer is not None
                into.append(narrowed(narrow.buffer, operand, kind))
                operand = narrow
            made.append(operand)
        return made

    def readers(self, number: int) -> list[BlockNode]:
        return [node for node in self.block.nodes if number in node.inputs]

    def kept(
        self, number: int, node: BlockNode, made: Value | Summed, name: str, depth: int, into: list[Stmt]
    ) -> Value:
        """The value as a tile in scratch, or as it is where it is computed as cheaply by whoever reads it."""
        readers = self.readers(number)
        if isinstance(made, Summed):
            only = readers[0] if len(readers) == 1 and self.uses[number] == 1 else None
            if only is not None and only.inputs[0] == number and _continues(only.op, made.combine):
                self.pending[number] = made
                return Value(made.spatial, never)
            wanted = self.order(number, len(made.spatial))
            found = self.found_order(node, wanted)
            value = self.tile(name, made.spatial, depth, order=found)
            assert value.buffer is not None
            place, first = self.place(value), neutral(made.combine, DTYPE)
            begin: Const | None = first
            if any(dim.cut for dim in made.reduced):
                # the sum begins anew in each iteration of a loop that cuts it, not only in the first one
                into.append(nest(f"{name}_start", value.buffer, made.spatial, (), lambda s, _: first, place))
                begin = None
            into.append(nest(name, value.buffer, made.spatial, made.reduced, made.read, place, made.combine, begin))
            return value if found == wanted else self.turned(value, name, depth, wanted, into)
        if not isinstance(node.op, Map) or self.inlined(number, node, readers, made):
            return made
        kind = dtype_of(made.read(origin(made.dims)))
        if kind == DTYPE and all(isinstance(reader.op, Contract) for reader in readers):
            kind = self.owner.factors  # only products read it
        value = self.in_place(number, made, kind) or self.tile(name, made.dims, depth, dtype=kind)
        assert value.buffer is not None
        into.append(
            nest(name, value.buffer, made.dims, (), lambda s, _: rounded(made.read(s), kind), self.place(value))
        )
        wanted = self.order(number, len(made.dims))
        if wanted is None or self.orders.get(value.buffer) is not None or kind != DTYPE:
            return value
        return self.turned(value, name, depth, wanted, into)

    def inlined(self, number: int, node: BlockNode, readers: list[BlockNode], made: Value) -> bool:
        """Is the operator computed where it is used? Where each of its elements is read once, or is cheap to make."""
        assert isinstance(node.op, Map)
        if any(isinstance(reader.op, Contract) for reader in readers):
            return False  # a product reads its operands many times
        if any(self.values[i].buffer is not None and self.sum_of(i) for i in node.inputs):
            return self.uses[number] == 1 and not readers  # the end of a product's register tile, kept apart for it
        if self.uses[number] == 1:
            return not readers or not self.widened(readers[0], made)
        return node.op.fn in CHEAP and all(self.values[i].buffer is None for i in node.inputs)

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

    def in_place(self, number: int, made: Value, kind: DType) -> Value | None:
        """The tile of an operand that nobody reads later, where it has the same dimensions and dtype."""
        at = tuple(Index(Var(f"l{d}"), Var(f"g{d}")) for d in range(len(made.dims)))
        found = loads(made.read(at))
        for load in found:
            owner = next((i for i, value in enumerate(self.values) if value.buffer == load.buffer), None)
            if owner is None or self.values[owner].dims != made.dims or load.buffer.endswith("_acc"):
                continue
            mine = in_tile(made.dims, self.orders.get(load.buffer))(at)
            elsewhere = any(other.buffer == load.buffer and other.indices != mine for other in found)
            if elsewhere or self.depth[owner] != self.depth[number] or load.dtype != kind:
                continue  # read at other places too, or again in the next iteration, or of another kind
            if not self.read_later(load.buffer, number):
                return scratch_value(load.buffer, made.dims, load.dtype, self.orders.get(load.buffer))
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
            if value.buffer is None and value.read is not never and _reads(value.read(origin(value.dims)), buffer):
                return True
        waiting = self.pending.values()
        return any(_reads(made.read(origin(made.spatial), origin(made.reduced)), buffer) for made in waiting)

    def turn(self, number: int) -> int:
        """When a node has its turn: the deeper the later before the loops further in, the earlier after them."""
        node = self.block.nodes[number - len(self.block.inputs)]
        depth = max((self.depth[i] for i in node.inputs), default=0)
        late = any(self.late[i] and self.depth[i] == depth for i in node.inputs)
        return 2 * len(self.block.loops) + 1 - depth if late else depth

    def tile(
        self, name: str, dims: tuple[Dim, ...], depth: int, suffix: str = "_tile", dtype: DType = DTYPE,
        order: tuple[int, ...] | None = None,
    ) -> Value:  # fmt: skip
        buffer = f"{name}{suffix}"
        if order is not None:
            self.orders[buffer] = order
        self.scratch[depth].append(Buffer(buffer, kept(dims, order), dtype, "shared"))
        return scratch_value(buffer, dims, dtype, order)

    def place(self, value: Value) -> Callable[[tuple[Index, ...]], tuple[Expr, ...]]:
        """Where its elements lie in scratch."""
        assert value.buffer is not None
        return in_tile(value.dims, self.orders.get(value.buffer))

    def found_order(self, node: BlockNode, wanted: tuple[int, ...] | None) -> tuple[int, ...] | None:
        """The order in which a product is made: as it is wanted, or with the dimension last along which an operand lies
        side by side in memory. The product is turned then, once, which its operand would be in each use."""
        if not isinstance(node.op, Contract):
            return wanted
        inputs, _, result = node.op.subscripts.partition("->")
        side_by_side = {
            letter
            for letters, i in zip(inputs.split(","), node.inputs, strict=True) if i < len(self.operands)
            for dim, letter in enumerate(letters) if letter in result and contiguous(self.operands[i], dim)
        }  # fmt: skip
        last = wanted[-1] if wanted else len(result) - 1
        if not side_by_side or not result or result[last] in side_by_side:
            return wanted
        own = max(result.index(letter) for letter in side_by_side)
        return (*(d for d in range(len(result)) if d != own), own)

    def turned(
        self, value: Value, name: str, depth: int, order: tuple[int, ...] | None, into: list[Stmt]
    ) -> Value:  # fmt: skip
        made = self.tile(name, value.dims, depth, "_turned", order=order)
        assert made.buffer is not None
        into.append(nest(f"{name}_turn", made.buffer, value.dims, (), lambda s, _: value.read(s), self.place(made)))
        return made

    def order(self, number: int, rank: int) -> tuple[int, ...] | None:
        """Of the dimensions of a product's tile, where another product reads it with lanes along one that is not the
        last: that one goes to the end. None: as they are."""
        readers = [
            (position, node) for position, node in enumerate(self.block.nodes, len(self.block.inputs))
            if number in node.inputs
        ]  # fmt: skip
        if len(readers) != 1:
            return None
        ((position, reader),) = readers
        match reader.op:
            case Contract(subscripts):
                letters, _, result = subscripts.partition("->")
                own = letters.split(",")[reader.inputs.index(number)]
                if not result or result[-1] not in own or len(own) != rank:
                    return None
                last = own.index(result[-1])
                return None if last == rank - 1 else (*(d for d in range(rank) if d != last), last)
            case Map() | Accumulate() | RescaledSum():
                return self.order(position, rank)
            case _:
                return None

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
        over = frozenset(self.cuts.loop_var(loop) for loop in own)
        order = self.order(number, len(dims))  # of all tiles that are stored into here
        value = self.tile(name, dims, op.level, "_acc", order=order)
        assert value.buffer is not None
        buffer, store = value.buffer, self.place(value)
        start: Const = LOWEST if isinstance(op, Running) and combine == "max" else neutral(combine, DTYPE)
        self.before[op.level].append(nest(f"{name}_start", buffer, dims, (), lambda s, _: start, store))
        if isinstance(op, RescaledSum):
            factor = self.rescale(node.inputs[1], name)

            def scaled(s: tuple[Index, ...], _: tuple[Index, ...]) -> Expr:
                return Op("mul", (Load(buffer, store(s), DTYPE), factor.read(aligned(s, factor.dims))), DTYPE)

            outer = self.depth[node.inputs[1]]  # where the maximum changes; its operand may live further in
            rescaling = into if outer == inner else self.before[outer]
            rescaling.append(nest(f"{name}_rescale", buffer, dims, (), scaled, store))
        if isinstance(op, Running):
            before = self.tile(name, dims, inner, "_before", order=order)
            change = self.tile(name, dims, inner, "_change", order=order)
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
            change = self.rescales[number]
            return scratch_value(change, self.values[number].dims, order=self.orders.get(change))
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
            lead = tuple(self.cuts.extents[axis.name] for axis in stacked)
            tensor = self.owner.place(result, (*lead, *dims)) if not folded else None
            if folded:
                parts = tuple(self.cuts.extents[axis.name] for axis, _ in folded)
                buffer = f"{name}_parts"
                self.owner.buffers.append(Buffer(buffer, (*parts, *lead, *dims), DTYPE))
                tensor = Tensor((*parts, *lead, *dims), buffer, same)
                final = self.owner.place(result, (*lead, *dims))
                combined.append((name, tensor, final, tuple(to for _, to in folded)))  # type: ignore[misc]
            assert tensor is not None
            first = tuple(
                Iter(f"p{k}", self.cuts.extents[axis.name], "spatial", Var(self.cuts.loop_var(axis.name)))
                for k, axis in enumerate([*(axis for axis, _ in folded), *stacked])
            )
            into = self.after[0]
            store = tensor.place
            into.append(
                nest(
                    name, tensor.buffer, value.dims, (),
                    lambda s, _, value=value, dtype=tensor.dtype: rounded(value.read(s), dtype),  # type: ignore[misc]
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
        rows = self.cuts.row_blocks()
        if rows is not None:
            for level in range(levels + 1):
                if level < levels:
                    self.before[level], self.after[level] = (
                        rows.fused(self.before[level]),
                        rows.fused(self.after[level]),
                    )
                else:
                    self.before[level], self.after[level] = rows.fused([*self.before[level], *self.after[level]]), []
            every = [buffer for level in self.scratch for buffer in level]
            for part in (self.before, self.after):
                part[:] = [[rows.at_rows(stmt, every) for stmt in level] for level in part]
            self.scratch = [[buffer for buffer in level if not rows.short(buffer)] for level in self.scratch]
        body: Stmt | None = None
        for level in range(levels, -1, -1):
            inside: list[Stmt] = list(self.before[level])
            if body is not None:
                axis = self.block.loops[level]
                inside.append(Loop((LoopAxis(self.cuts.loop_var(axis.name), self.cuts.extents[axis.name]),), body))
            inside += self.after[level]
            # without a sequence around it, a loop that is alone is in one nest with what is in it
            body = inside[0] if len(inside) == 1 else sequence(inside)
            for buffer in reversed(self.scratch[level]):
                body = Alloc(buffer, body)
        assert body is not None
        tiles = [stmt.buffer for stmt in walk(body) if isinstance(stmt, Alloc)]
        sizes = [product(list(b.shape)) * ITEM_BYTES[b.dtype] for b in tiles]
        total = sum(sizes, Poly.of(0))
        if not total.is_constant:
            self.owner.constraints.append(AtMost(f"{self.name} scratch", total, scratch_bytes(self.owner.target)))
        axes = tuple(LoopAxis(self.cuts.loop_var(axis.name), self.cuts.extents[axis.name]) for axis in self.block.grid)
        if not axes:
            axes = (LoopAxis(f"{self.name}_once", Poly.of(1)),)
        return Loop(axes, body, "parallel")


def narrowed(buffer: str, value: Value, dtype: DType) -> Stmt:
    """The nest that stores a value in a tile of another dtype."""
    place = in_tile(value.dims)
    return nest(buffer, buffer, value.dims, (), lambda s, _: rounded(value.read(s), dtype), place)


def _continues(op: TileOp | LoopOp, combine: Combine) -> bool:
    """Does an accumulator combine in the same way, so that the sum needs no tile of its own?"""
    match op:
        case RescaledSum():
            return combine == "sum"
        case Accumulate(kind=kind) | Running(kind=kind):
            return kind == combine
        case _:
            return False


def _reads(value: Expr, buffer: str) -> bool:
    return any(load.buffer == buffer for load in loads(value))
