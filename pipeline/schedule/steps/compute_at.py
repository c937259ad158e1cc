"""The step that moves a producer into a loop of its consumers."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pipeline.ir.expr import Const, Expr, Var, variables
from pipeline.ir.lockstep import GRID, THREADS
from pipeline.ir.program import Axis, Block, Buffer, Loop, Program, Scope
from pipeline.schedule.nest import (
    Place,
    axes_in,
    beside,
    block_at,
    blocks_in,
    clash,
    extents,
    find_buffer,
    in_unit,
    loads_of,
    loop_at,
    map_blocks,
    nest,
    no_block,
    no_loop,
    no_room,
    put,
    readers,
    reads,
    statement_of,
    writers,
)
from pipeline.schedule.rewrite import (
    over_iters,
    plain_store,
    reduce_variables,
    spatial_variables,
    stored_iters,
    whole_store,
)
from pipeline.schedule.steps.parallel import carried_by
from pipeline.schedule.window import from_window, shifted, window


@dataclass(frozen=True, slots=True)
class ComputeAt:
    """Move a block into a loop around its consumers, where it computes just what they read in each iteration.

    block   name of the producer, which is a region of its own
    loop    around all the blocks that read its buffer
    scope   global: the buffer stays as it is · shared, local: it shrinks to what one iteration reads

    for i: P[i] = f(i)                                for j0:
    for j0: for j1: C[j0*4 + j1] = P[j0*4 + j1]   ->    for w: P[j0*4 + w] = f(j0*4 + w)
                                                        for j1: C[j0*4 + j1] = P[j0*4 + j1]

    The spatial loops are made anew, as `<block>_<dimension>`, over the box that the consumers read; reduction loops
    stay inside them. What several iterations read is computed in each of them.

    Legal when the producer is complete (not a decomposed reduction, no part of its buffer left out), its buffer is an
    intermediate that only blocks inside the loop read, and nothing in between writes what it reads.
    """

    block: str
    loop: str
    scope: Scope = "global"

    def why_not(self, program: Program) -> str | None:
        reason = no_block(program, self.block) or no_loop(program, self.loop)
        if reason is not None:
            return reason
        block, place = block_at(program, self.block)
        loop, there = loop_at(program, self.loop)
        if (reason := no_room(loop)) is not None:
            return reason
        if self.scope not in ("global", "shared", "local"):
            return f"the buffer becomes global, shared or local, not {self.scope}"
        if (reason := movable(program, block, place)) is not None:
            return reason
        used = readers(program, block.buffer)
        if not used:
            return f"nothing reads {block.buffer}"
        for reader, _ in used:
            if not any(reader is found for found in blocks_in(loop)):
                return f"block {reader.name} reads {block.buffer} outside loop {self.loop}"
        if there.prologue != place.prologue or there.region <= place.region:
            return f"loop {self.loop} does not come after block {self.block}"
        for name in reads(block):
            for writer, where in writers(program, name):
                if where.prologue == place.prologue and place.region < where.region <= there.region:
                    return f"block {writer.name} writes {name} between block {self.block} and loop {self.loop}"
        stored = plain_store(block)
        assert stored is not None
        names = [f"{self.block}_{dim}" for dim, it in enumerate(stored) if it is not None]
        kept = {axis.var for axis in axes_in(place.root)}
        if (reason := clash(program, variables=[name for name in names if name not in kept])) is not None:
            return reason
        if set(names) & reduce_variables(block):
            return f"a loop that block {self.block} reduces over is called as a new one"
        return races(self.apply(program), loop.axes[0].var)

    def apply(self, program: Program) -> Program:
        block, place = block_at(program, self.block)
        stored = plain_store(block)
        buffer = find_buffer(program, block.buffer)
        assert stored is not None and buffer is not None
        program = put(program, place.root, None)
        loop, there = loop_at(program, self.loop)
        ranges = extents(axes_in(loop.body))
        found = [
            (reader, load.indices)
            for reader in blocks_in(loop)
            for load in loads_of(reader)
            if load.buffer == buffer.name
        ]
        spans = window(found, ranges, buffer.shape, program.derived)
        around = {**extents(there.axes), **extents(loop.axes)}
        axes = [Axis(f"{self.block}_{dim}", span.extent) for dim, span in enumerate(spans)]
        iters = list(block.iters)
        for it, span, axis in zip(stored, spans, axes, strict=True):
            if it is not None:
                iters[iters.index(it)] = replace(it, binding=shifted(span, axis.var))
        target = buffer
        moved = replace(block, iters=tuple(iters))
        used = [axis for axis, it in zip(axes, stored, strict=True) if it is not None]
        if self.scope != "global":
            target = Buffer(buffer.name, tuple(span.extent for span in spans), buffer.dtype, self.scope)
            at: list[Expr] = [Const(0) if it is None else Var(axis.var) for axis, it in zip(axes, stored, strict=True)]
            moved, indices = over_iters(moved, at, extents(used))
            moved = replace(moved, indices=indices)
        reduced = reduce_variables(block)
        inner = [
            replace(found, kind="serial") if found.kind in GRID else found
            for found in place.loops
            if any(axis.var in reduced for axis in found.axes)
        ]
        fill = nest([*(Loop((axis,), moved) for axis in used), *inner], moved)
        child = next(statement_of(loop.body, reader.name) for reader, _ in found)
        if self.scope == "global":
            return put(program, loop, replace(loop, body=beside(loop.body, child, before=(fill,))))
        full = {**around, **ranges}

        def redirected(reader: Block) -> Block:
            return from_window(reader, target, buffer.name, spans, full) if buffer.name in reads(reader) else reader

        body = map_blocks(beside(loop.body, child, before=(fill,), allocs=(target,)), redirected)
        program = put(program, loop, replace(loop, body=body))
        return replace(program, buffers=tuple(b for b in program.buffers if b.name != buffer.name))


def movable(program: Program, block: Block, place: Place) -> str | None:
    """Why the nest of a block cannot be made anew somewhere else."""
    if (reason := in_unit(place)) is not None:
        return reason
    if len(blocks_in(place.root)) != 1:
        others = ", ".join(other.name for other in blocks_in(place.root) if other is not block)
        return f"block {block.name} is not a region of its own, but shares it with {others}"
    buffer = find_buffer(program, block.buffer)
    assert buffer is not None
    if buffer.role not in ("intermediate", "packed") or buffer.scope != "global":
        return f"{block.buffer} is {buffer.scope} and {buffer.role}, not a global intermediate"
    if block.combine is not None and block.init is None:
        return f"block {block.name} was decomposed: move it before that"
    if any(it.kind == "scan" for it in block.iters):
        return f"block {block.name} is a scan"
    if len(writers(program, block.buffer)) != 1:
        return f"block {block.name} is not the only one that writes {block.buffer}"
    if (reason := whole_store(block, buffer.shape)) is not None:
        return reason
    if len([it for it in block.iters if it.kind == "spatial"]) != len(stored_iters(block)):
        return f"block {block.name} knows the loops around it: move it before it is packed or cached"
    reduced, spatial = reduce_variables(block), spatial_variables(block)
    for loop in place.loops:
        both = {axis.var for axis in loop.axes} & reduced
        if both and any(axis.var in spatial for axis in loop.axes):
            return f"loop {loop.axes[0].var} is spatial and reduced at once"
    for condition in block.where:
        if variables(condition) & spatial:
            return f"block {block.name} has a condition on a spatial loop: move it before it is split"
    return None


def races(program: Program, name: str) -> str | None:
    """Why the parallel or bound loops around a loop, or that loop itself, cannot be so any more."""
    loop, place = loop_at(program, name)
    for outer in (*place.loops, loop):
        if outer.kind in (*GRID, *THREADS) and (reason := carried_by(outer, reductions=False)) is not None:
            return reason
    return None
