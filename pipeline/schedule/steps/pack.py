"""The step that copies an operand into the order in which a block reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pipeline.ir.expr import Expr, Load, Op, Var, affine, both, less, size, substitute, variables, walk
from pipeline.ir.poly import Poly
from pipeline.ir.program import Axis, Block, Buffer, Iter, Loop, Program, Scope
from pipeline.ir.region import at_least, interval
from pipeline.schedule.nest import (
    Place,
    axes_of,
    beside,
    block_at,
    blocks_in,
    clash,
    extents,
    find_buffer,
    insert_region,
    loop_at,
    nest,
    no_block,
    no_loop_around,
    no_room,
    over_loops,
    put,
    statement_of,
    swapped_in,
    writers,
)
from pipeline.schedule.reading import full, nearby
from pipeline.schedule.rewrite import bounded, clipping, constant, over_iters


@dataclass(frozen=True, slots=True)
class Pack:
    """Copy an operand of a block into a buffer whose dimensions are loops around it, so that it is read in a row.

    block    name of the block
    buffer   that it reads
    order    loops around the block: the dimensions of the new buffer, outermost first
    name     of the new buffer and of the block that fills it
    at       None: the copy is a region of its own, before the block's (in the prologue where the buffer is constant) ·
             a loop around the block: the copy is made anew in each of its iterations, into a shared buffer
    number   which of its loads of the buffer, from 0, in the order of the text; None: it has only one

    for n0: for k: for n1: C[n0*4 + n1] += B[k, n0*4 + n1]
      ->  for n0: for k: for n1: P[n0, k, n1] = B[k, n0*4 + n1] if n0*4 + n1 < n else 0
          for n0: for k: for n1: C[n0*4 + n1] += P[n0, k, n1]              with order (n0, k, n1)

    The copy holds 0 where the block does not run. A `guard` around the load is copied with it. The loops of the copy
    are `<name>_<loop>`.

    Legal when the block has that load, `order` names exactly the loops (inside `at`) that the index depends on,
    and nothing writes the buffer between the copy and the block.
    """

    block: str
    buffer: str
    order: tuple[str, ...]
    name: str
    at: str | None = None
    number: int | None = None

    def why_not(self, program: Program) -> str | None:
        if (reason := no_block(program, self.block)) is not None:
            return reason
        if self.at is not None and (reason := no_loop_around(program, self.block, self.at)) is not None:
            return reason
        if self.at is not None and (reason := no_room(loop_at(program, self.at)[0])) is not None:
            return reason
        block, place = block_at(program, self.block)
        operand = _operand(block, self.buffer, self.number)
        if isinstance(operand, str):
            return operand
        around = {axis.var: axis.extent for axis in place.axes}
        if missing := [name for name in self.order if name not in around]:
            return f"loop {missing[0]} is not around block {self.block}: those are {', '.join(around)}"
        if len(set(self.order)) != len(self.order):
            return f"the loops {', '.join(self.order)} are not all different"
        inside = self._inside(program, place)
        if outside := [name for name in self.order if name not in inside]:
            return f"loop {outside[0]} is not inside loop {self.at}: leave it out of the order"
        used = variables(over_loops(block, operand))
        if extra := [name for name in self.order if name not in used]:
            return f"the index of {self.buffer} does not depend on loop {extra[0]}: leave it out of the order"
        if missing := sorted((used & set(inside)) - set(self.order)):
            return f"the index of {self.buffer} depends on loop {missing[0]}: put it into the order"
        if any(affine(index) is None for load in _loads(operand, self.buffer) for index in load.indices):
            return f"the index of {self.buffer} is not affine"
        others = {load.buffer for load in _loads(operand)} - {self.buffer}
        if others:
            return f"the operand reads {', '.join(sorted(others))}, too"
        scope = place.root if self.at is None else loop_at(program, self.at)[0]
        for writer, _ in writers(program, self.buffer):
            if any(writer is found for found in blocks_in(scope)):
                return f"block {writer.name} writes {self.buffer} inside the same nest"
        buffer = find_buffer(program, self.buffer)
        assert buffer is not None
        partly = bool(block.where or clipping(block, around))
        if partly and buffer.scope == "global" and (near := nearby(program, place, self.buffer)) is not None:
            return f"block {near} writes {self.buffer} in the same region, and a condition leaves out points"
        if buffer.scope != "global":
            if self.at is None:
                return f"{self.buffer} lives inside a loop only: give that loop as `at`"
            if not full(program, buffer):
                return f"some elements of {self.buffer} may never be written, so that they cannot be copied"
        names = [f"{self.name}_{var}" for var in self.order]
        return clash(program, variables=names, blocks=[self.name], buffers=[self.name])

    def _inside(self, program: Program, place: Place) -> dict[str, Poly]:
        """The loops that the copy runs over, as far as the index depends on them."""
        if self.at is None:
            return extents(place.axes)
        return extents(axes_of(place.inside(loop_at(program, self.at)[0])))

    def apply(self, program: Program) -> Program:
        block, place = block_at(program, self.block)
        operand = _operand(block, self.buffer, self.number)
        source = find_buffer(program, self.buffer)
        assert source is not None and not isinstance(operand, str)
        around = extents(place.axes)
        axes = tuple(Axis(f"{self.name}_{var}", around[var]) for var in self.order)
        renamed: dict[str, Expr] = {var: Var(axis.var) for var, axis in zip(self.order, axes, strict=True)}
        early = self.at is None and (place.prologue or source.role in ("constant", "packed"))
        shape = tuple(axis.extent for axis in axes)
        scope: Scope = "global" if self.at is None else "shared"
        target = Buffer(self.name, shape, source.dtype, scope, "packed" if early else "intermediate")
        value: Expr = over_loops(block, operand)
        condition = _runs(block, operand, source, around)
        if condition is not None:
            value = Op("guard", (condition, value, constant(0, source.dtype)), source.dtype)
        value = substitute(value, renamed)
        iters = tuple(Iter(f"v_{axis.var}", axis.extent, "spatial", Var(axis.var)) for axis in axes)
        copy = Block(self.name, iters, self.name, tuple(Var(it.var) for it in iters), value)
        outer = {var: extent for var, extent in around.items() if var not in self.order}
        copy, (value,) = over_iters(copy, [value], {**outer, **extents(axes)})
        fill = nest([Loop((axis,), copy) for axis in axes], replace(copy, value=value))
        reader, indices = over_iters(block, [Var(var) for var in self.order], around)
        reader = replace(reader, value=_replaced(reader.value, operand, Load(self.name, indices, source.dtype)))
        if self.at is not None:
            loop, _ = loop_at(program, self.at)
            child = statement_of(loop.body, self.block)
            new = swapped_in(child, block, reader)
            body = beside(loop.body, child, before=(fill,), new=new, allocs=(target,))
            return put(program, loop, replace(loop, body=body))
        program = put(program, block, reader)
        program = replace(program, buffers=(*program.buffers, target))
        return insert_region(program, None if early and not place.prologue else place, fill)


def _loads(expr: Expr, buffer: str | None = None) -> list[Load]:
    return [node for node in walk(expr) if isinstance(node, Load) and buffer in (None, node.buffer)]


def _operand(block: Block, buffer: str, number: int | None) -> Expr | str:
    """One load of a buffer, with a guard that is right around it; or why there is not that one."""
    found = _loads(block.value, buffer)
    if number is None and len(found) != 1:
        return f"block {block.name} reads {buffer} {len(found)} times in its value, not once"
    if number is not None and not 0 <= number < len(found):
        return f"block {block.name} reads {buffer} {len(found)} times in its value: there is no load {number}"
    for expr in (*block.indices, *block.where):
        if _loads(expr, buffer):
            return f"block {block.name} reads {buffer} in an index or a condition"
    load = found[number or 0]
    for node in walk(block.value):
        if isinstance(node, Op) and node.fn == "guard" and node.args[1] is load and not _loads(node.args[0]):
            return node
    return load


def _replaced(expr: Expr, old: Expr, new: Expr) -> Expr:
    """The expression with one subexpression (found by identity) replaced."""
    if expr is old:
        return new
    match expr:
        case Op(fn, args, dtype):
            return Op(fn, tuple(_replaced(arg, old, new) for arg in args), dtype)
        case Load(buffer, indices, dtype):
            return Load(buffer, tuple(_replaced(index, old, new) for index in indices), dtype)
        case _:
            return expr


def _runs(block: Block, operand: Expr, source: Buffer, around: Mapping[str, Poly]) -> Expr | None:
    """Where an operand is in bounds and needed: a condition over the loops, None where that is everywhere."""
    used = variables(operand)
    condition: Expr | None = None
    inner: dict[str, Poly] = {}
    for it in block.iters:
        if it.var in used:
            inner[it.var] = it.extent
            condition = bounded(condition, it.binding, it.extent, around)
    if isinstance(operand, Op):  # a guard keeps its own load in bounds
        return condition
    for load in _loads(operand, source.name):
        for index, extent in zip(load.indices, source.shape, strict=True):
            form = affine(index)
            found = interval(form, inner) if form is not None else None
            if found is None or found[0].terms:
                condition = bounded(condition, over_loops(block, index), extent, around)
                continue
            low, reach = found[0].constant, found[1]
            if not at_least(low, Poly.of(0)):
                condition = both(condition, Op("ge", (over_loops(block, index), size(0)), "bool"))
            if not at_least(extent, low + reach):
                condition = both(condition, less(over_loops(block, index), size(extent)))
    return condition
