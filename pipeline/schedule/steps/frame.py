"""The step that makes a product one of matrices whose sides are whole numbers of tiles."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Literal

from pipeline.ir.expr import (
    Const,
    Expr,
    Load,
    Op,
    Var,
    both,
    dtype_of,
    floordiv,
    less,
    loads,
    mod,
    size,
    substitute,
    variables,
)
from pipeline.ir.graph import DType
from pipeline.ir.poly import Poly
from pipeline.ir.program import Axis, Block, Buffer, Derived, Iter, Loop, Program
from pipeline.ir.region import at_least
from pipeline.schedule.nest import (
    block_at,
    clash,
    find_buffer,
    insert_region,
    nest,
    no_block,
    over_loops,
    put,
    reads,
    unknown_symbols,
)
from pipeline.schedule.rewrite import constant, whole_store


@dataclass(frozen=True, slots=True)
class Frame:
    """Make a product one of matrices, each in a buffer of its own whose sides are multiples of a tile, with 0 beyond
    what there is.

    block     name of the product
    rows      its loops that count the rows of the result, outermost first: they become one, `<block>_m`
    columns   those that count the columns: `<block>_n`
    sums      those of the sum: `<block>_k`
    tile      of which number of rows, of columns, and of terms of the sum are made multiples: numbers or parameters
    left      mk or km: which index of the left operand's buffer comes last
    right     kn or nk: the same of the right operand's

    for i: for j: for k: C[i, j] += cast(A[i, k]) * cast(B[k, j])
      ->  for m: for k: L[m, k] = A[m, k] if m < rows and k < terms else 0
          for k: for n: R[k, n] = B[k, n] if k < terms and n < columns else 0
          for m: for n: for k: T[m, n] += cast(L[m, k]) * cast(R[k, n])
          for i: for j: C[i, j] = T[i, j]

    Loops that are named nowhere stay, and each matrix has a dimension for those that it depends on. Where several loops
    become one, their indices are had by division: a window of a convolution becomes a matrix. Blocks and buffers are
    `<block>_left`, `<block>_right`, `<block>` and `<block>_tile`, and `<block>_out`; the numbers of tiles are
    `n_<block>_m` and so on where the tile is a parameter. Nothing of it need ever be stored: ComputeAt,
    ReverseComputeAt and SetScope put each part where its tile is needed.

    Legal when the block is a complete sum of products of two operands, alone in its nest, of loops whose extents are
    numbers; the left operand depends on `rows` and not on `columns`, the right one the other way round; each is read in
    one place (perhaps behind a guard) and they are of one dtype.
    """

    block: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    sums: tuple[str, ...]
    tile: tuple[Poly | int, Poly | int, Poly | int]
    left: Literal["mk", "km"] = "mk"
    right: Literal["kn", "nk"] = "kn"

    def why_not(self, program: Program) -> str | None:
        if (reason := no_block(program, self.block)) is not None:
            return reason
        block, place = block_at(program, self.block)
        if block.combine != "sum" or block.init is None or any(it.kind == "scan" for it in block.iters):
            return f"block {self.block} is not a complete sum"
        if len(place.path) != len(place.loops) or any(len(x.axes) != 1 or x.kind != "serial" for x in place.loops):
            return f"block {self.block} is not alone in a nest of serial loops: frame it before it is scheduled"
        if any(x.annotations for x in place.loops) or block.where:
            return f"block {self.block} is scheduled already: frame it before that"
        extents = {axis.var: axis.extent for axis in place.axes}
        bound = {it.binding.name: it for it in block.iters if isinstance(it.binding, Var)}
        if sorted(bound) != sorted(extents) or any(extents[name] != it.extent for name, it in bound.items()):
            return f"the iterations of block {self.block} are not those of its loops, one for one"
        if not all(extent.is_constant for extent in extents.values()):
            return (
                f"the extents of the loops around block {self.block} are not all numbers: frame it before it is split"
            )
        named = (*self.rows, *self.columns, *self.sums)
        if len(set(named)) != len(named) or not (self.rows and self.columns and self.sums):
            return "rows, columns and sums are different loops, at least one of each"
        if missing := [name for name in named if name not in extents]:
            return f"loop {missing[0]} is not around block {self.block}: those are {', '.join(extents)}"
        for name, it in bound.items():
            if (it.kind == "reduce") != (name in self.sums):
                what = "is summed over" if it.kind == "reduce" else "is not summed over"
                return f"loop {name} {what}: it does not belong there"
        buffer = find_buffer(program, block.buffer)
        assert buffer is not None
        if (reason := whole_store(block, buffer.shape)) is not None:
            return reason
        operands = self._operands(block)
        if isinstance(operands, str):
            return operands
        if block.buffer in reads(block):
            return f"block {self.block} reads {block.buffer}, which it writes"
        polys = [Poly.of(side) for side in self.tile]
        for side in polys:
            if not at_least(side, Poly.of(1)):
                return f"the side {side} of the tile is not known to be at least 1"
        reason = unknown_symbols(program, {name for side in polys for name in side.symbols()})
        letters = [f"{self.block}_{letter}" for letter in "mnk"]
        made = [f"{self.block}_{part}" for part in ("left", "right", "out")]
        loops = [f"{name}_{axis}" for name in made for axis in self._axes(block, name)]
        derived = [f"n_{name}" for name in letters]
        buffers = [f"{self.block}_{part}" for part in ("left", "right", "tile")]
        fresh = [name for name in (*letters, *loops, *derived) if name not in named]
        return reason or clash(program, variables=fresh, blocks=made, buffers=buffers)

    def _axes(self, block: Block, name: str) -> tuple[str, ...]:
        """What comes after the block's name in the names of the loops of a part."""
        if name.endswith("_out"):
            return tuple(str(number) for number in range(len(block.indices)))
        operands = self._operands(block)
        assert not isinstance(operands, str)
        kept = self._kept(block, operands[name.endswith("_right")])
        return (*(str(number) for number in range(len(kept))), *(self.right if name.endswith("_right") else self.left))

    def _kept(self, block: Block, operand: Expr) -> tuple[str, ...]:
        """The loops that an operand depends on and that stay, in the order of the block's iterations."""
        used = variables(over_loops(block, operand)) - {*self.rows, *self.columns, *self.sums}
        return tuple(it.binding.name for it in block.iters if isinstance(it.binding, Var) and it.binding.name in used)

    def _operands(self, block: Block) -> tuple[Expr, Expr] | str:
        """The left and the right operand, without the casts to the dtype of the sum; or why there are none."""
        value = block.value
        if not isinstance(value, Op) or value.fn != "mul":
            return f"block {self.block} does not sum up products"
        first, second = (_uncast(arg) for arg in value.args)
        used = [variables(over_loops(block, operand)) for operand in (first, second)]
        if set(self.rows) & used[1]:
            first, second, used = second, first, used[::-1]
        for name, wanted, other in (("rows", self.rows, used[1]), ("columns", self.columns, used[0])):
            if found := sorted(set(wanted) & other):
                return f"loop {found[0]} cannot count the {name}: both operands depend on it"
        if missing := sorted((set(self.rows) - used[0]) | (set(self.columns) - used[1])):
            return f"loop {missing[0]} belongs to no operand"
        for operand in (first, second):
            if len(loads(operand)) != 1:
                return f"block {self.block} has a factor with {len(loads(operand))} loads, not one"
        kinds = [dtype_of(operand) for operand in (first, second)]
        if kinds[0] != kinds[1]:
            return f"the operands of block {self.block} are {kinds[0]} and {kinds[1]}, not of one dtype"
        return first, second

    def apply(self, program: Program) -> Program:
        block, place = block_at(program, self.block)
        buffer = find_buffer(program, block.buffer)
        operands = self._operands(block)
        assert buffer is not None and not isinstance(operands, str)
        extents = {axis.var: axis.extent for axis in place.axes}
        groups = {"m": self.rows, "n": self.columns, "k": self.sums}
        wholes = {letter: prod(extents[name].value for name in group) for letter, group in groups.items()}
        lengths: dict[str, Poly] = {}
        index: dict[str, Expr] = {}
        for (letter, group), side in zip(groups.items(), self.tile, strict=True):
            whole = Poly.of(wholes[letter])
            lengths[letter], program = _rounded(program, whole, Poly.of(side), f"n_{self.block}_{letter}")
            below = 1
            for number, name in reversed(list(enumerate(group))):
                at = floordiv(Var(letter), below)
                index[name] = at if number == 0 else mod(at, extents[name].value)
                if extents[name] == Poly.of(1):
                    index[name] = Const(0)
                below *= extents[name].value
        made: dict[str, Buffer] = {}
        for part, operand, order in (("left", operands[0], self.left), ("right", operands[1], self.right)):
            kept = self._kept(block, operand)
            name = f"{self.block}_{part}"
            sizes = (*(extents[loop] for loop in kept), *(lengths[letter] for letter in order))
            axes = tuple(
                Axis(f"{name}_{suffix}", extent) for suffix, extent in zip(self._axes(block, name), sizes, strict=True)
            )
            made[part] = Buffer(name, sizes, dtype_of(operand))
            value = substitute(over_loops(block, operand), index)
            fresh: dict[str, Expr] = {
                old: Var(f"v_{axis.var}") for old, axis in zip((*kept, *order), axes, strict=True)
            }
            condition: Expr | None = None
            for letter in order:
                if not at_least(Poly.of(wholes[letter]), lengths[letter]):
                    condition = both(condition, less(Var(letter), size(wholes[letter])))
            filled = substitute(_guarded(condition, value, made[part].dtype), fresh)
            iters = tuple(Iter(f"v_{axis.var}", axis.extent, "spatial", Var(axis.var)) for axis in axes)
            copy = Block(name, iters, name, tuple(Var(it.var) for it in iters), filled)
            fill = nest([Loop((axis,), copy) for axis in axes], copy)
            program = insert_region(program, block_at(program, self.block)[1], fill)
        return self._multiplied(program, block, buffer, made, lengths, operands)

    def _multiplied(
        self, program: Program, block: Block, buffer: Buffer, made: dict[str, Buffer], lengths: dict[str, Poly],
        operands: tuple[Expr, Expr],
    ) -> Program:  # fmt: skip
        """The program with the product of the matrices in place of the block, and its result taken over."""
        _, place = block_at(program, self.block)
        named = {*self.rows, *self.columns, *self.sums}
        others = [it for it in block.iters if isinstance(it.binding, Var) and it.binding.name not in named]
        by_loop = {it.binding.name: it.var for it in others if isinstance(it.binding, Var)}
        iters = [*others]
        for letter in "mnk":
            kind: Literal["spatial", "reduce"] = "reduce" if letter == "k" else "spatial"
            iters.append(Iter(f"v_{self.block}_{letter}", lengths[letter], kind, Var(f"{self.block}_{letter}")))
        values: list[Expr] = []
        for part, operand, order in (("left", operands[0], self.left), ("right", operands[1], self.right)):
            at = [Var(by_loop[loop]) for loop in self._kept(block, operand)]
            at += [Var(f"v_{self.block}_{letter}") for letter in order]
            load: Expr = Load(made[part].name, tuple(at), made[part].dtype)
            assert block.init is not None
            if made[part].dtype != block.init.dtype:
                load = Op("cast", (load,), block.init.dtype)
            values.append(load)
        shape = (*(it.extent for it in others), lengths["m"], lengths["n"])
        tile = Buffer(f"{self.block}_tile", shape, buffer.dtype)
        indices = tuple(Var(it.var) for it in iters[:-1])
        assert block.init is not None
        product = Op("mul", tuple(values), block.init.dtype)
        multiply = replace(block, iters=tuple(iters), buffer=tile.name, indices=indices, value=product)
        axes = [Axis(it.binding.name, it.extent) for it in iters if isinstance(it.binding, Var)]
        body = nest([Loop((axis,), multiply) for axis in axes], multiply)
        program = put(program, place.root, body)
        program = replace(program, buffers=(*program.buffers, *made.values(), tile))
        _, place = block_at(program, self.block)
        out = self._taken(block, tile)
        seat = replace(place, region=place.region + 1)
        return insert_region(program, seat, out)

    def _taken(self, block: Block, tile: Buffer) -> Loop:
        """The nest that stores the result where it belongs."""
        name = f"{self.block}_out"
        stored = [it for it in block.iters if it.kind == "spatial"]
        order = {index.name: number for number, index in enumerate(block.indices) if isinstance(index, Var)}
        stored.sort(key=lambda it: order.get(it.var, -1))
        by_loop = {it.binding.name: it for it in stored if isinstance(it.binding, Var)}
        taken = {*self.rows, *self.columns}
        at: list[Expr] = [
            Var(it.var) for it in block.iters if it.kind == "spatial" and not taken & {*variables(it.binding)}
        ]
        for group in (self.rows, self.columns):
            index: Expr = Const(0)
            for loop in group:
                index = Op("add", (Op("mul", (index, size(by_loop[loop].extent))), Var(by_loop[loop].var)))
            at.append(substitute(index, {it.var: Var(f"v_{name}_{n}") for n, it in enumerate(stored)}))
        renamed: dict[str, Expr] = {it.var: Var(f"v_{name}_{n}") for n, it in enumerate(stored)}
        iters = tuple(replace(it, var=f"v_{name}_{n}", binding=Var(f"{name}_{n}")) for n, it in enumerate(stored))
        load = Load(tile.name, tuple(substitute(index, renamed) for index in at), tile.dtype)
        indices = tuple(substitute(index, renamed) for index in block.indices)
        copy = Block(name, iters, block.buffer, indices, load)
        made = nest([Loop((Axis(f"{name}_{n}", it.extent),), copy) for n, it in enumerate(iters)], copy)
        assert isinstance(made, Loop)
        return made


def _uncast(expr: Expr) -> Expr:
    """A factor without the cast to the dtype of the sum."""
    return expr.args[0] if isinstance(expr, Op) and expr.fn == "cast" else expr


def _rounded(program: Program, whole: Poly, side: Poly, name: str) -> tuple[Poly, Program]:
    """The next multiple of a side, and the program with the symbol that it needs."""
    if side.is_constant:
        return Poly.of(-(-whole.value // side.value) * side.value), program
    if whole == Poly.of(1):
        return side, program
    new = Derived(name, whole, side)
    return Poly.symbol(name) * side, replace(program, derived=(*program.derived, new))


def _guarded(condition: Expr | None, value: Expr, dtype: DType) -> Expr:
    """The value where the condition holds, else 0; one guard where the value has one of its own."""
    zero = constant(0, dtype)
    if condition is None:
        return value
    if isinstance(value, Op) and value.fn == "guard" and value.args[2] == zero:
        return Op("guard", (both(condition, value.args[0]), value.args[1], zero), dtype)
    return Op("guard", (condition, value, zero), dtype)
