"""The step that moves a consumer into a loop of its producer."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pipeline.ir.expr import Affine, Var, from_affine, variables
from pipeline.ir.poly import Poly
from pipeline.ir.program import Axis, Block, Loop, Program
from pipeline.ir.region import interval
from pipeline.schedule.nest import (
    affine_over_loops,
    axes_of,
    beside,
    block_at,
    clash,
    extents,
    find_buffer,
    in_unit,
    loop_at,
    nest,
    no_block,
    no_loop,
    no_room,
    put,
    reads,
    statement_of,
    writers,
)
from pipeline.schedule.reading import At, element_of, elementwise, gaps, hoistable
from pipeline.schedule.rewrite import clipping, loop_variables, reduce_variables, stored_iters, whole_store
from pipeline.schedule.steps.compute_at import races


@dataclass(frozen=True, slots=True)
class ReverseComputeAt:
    """Move an elementwise consumer into a loop of its producer, where it handles what one iteration has just produced.

    block   name of the consumer
    loop    around the block that stores what the consumer reads

    for i0: for i1: P[i0*4 + i1] = f      for i0: for i1: P[i0*4 + i1] = f
    for j: C[j] = g(P[j])             ->          for w: C[i0*4 + w] = g(P[i0*4 + w])

    Its loops are made anew, as `<block>_<number of the iteration>`.

    Legal when the consumer is not a reduction and reads the buffer always at the same place, each index one of its
    iterations (plus a number); one iteration of the loop produces a whole box of the buffer, with no reduction around
    the loop; and the consumer's other operands are complete before the producer's region.
    """

    block: str
    loop: str

    def why_not(self, program: Program) -> str | None:
        reason = no_block(program, self.block) or no_loop(program, self.loop)
        if reason is not None:
            return reason
        block, place = block_at(program, self.block)
        loop, there = loop_at(program, self.loop)
        if (reason := no_room(loop) or elementwise(block)) is not None:
            return reason
        if (reason := in_unit(place)) is not None:
            return reason
        if place.region == there.region and place.prologue == there.prologue:
            return f"block {self.block} is in the region of loop {self.loop} already"
        stored = {it.var for it in stored_iters(block)}
        if any(it.var not in stored and it.extent != Poly.of(1) for it in block.iters):
            return f"block {self.block} knows the loops around it: move it before it is packed or cached"
        producer = _producer(program, block, loop)
        if producer is None:
            return f"nothing in loop {self.loop} writes what block {self.block} reads"
        if (reason := complete_box(program, producer, loop)) is not None:
            return reason
        element = element_of(block, producer.buffer)
        if isinstance(element, str):
            return element
        if (reason := hoistable(program, block, place, producer.buffer, there)) is not None:
            return reason
        names = [f"{self.block}_{number}" for number in range(len(block.iters))]
        old = {axis.var for axis in place.axes}
        if (reason := clash(program, variables=[name for name in names if name not in old])) is not None:
            return reason
        return races(self.apply(program), self.loop)

    def apply(self, program: Program) -> Program:
        block, _ = block_at(program, self.block)
        loop, _ = loop_at(program, self.loop)
        producer = _producer(program, block, loop)
        assert producer is not None
        element = element_of(block, producer.buffer)
        assert not isinstance(element, str)
        inside = extents(axes_of(block_at(program, producer.name)[1].inside(loop)))
        by_iter: dict[str, tuple[At, Affine, Poly]] = {}
        for at, index in zip(element, producer.indices, strict=True):
            form = affine_over_loops(producer, index)
            found = None if form is None else interval(form, inside)
            assert found is not None
            if at.it is not None:
                by_iter[at.it.var] = (at, *found)
        axes, iters = [], []
        for number, it in enumerate(block.iters):
            name = f"{self.block}_{number}"
            var = Affine(((name, Poly.of(1)),), Poly.of(0))
            if it.var in by_iter:
                at, base, extent = by_iter[it.var]
                axes.append(Axis(name, extent))
                iters.append(replace(it, binding=from_affine(base + var + Affine((), at.offset * -1))))
            else:
                axes.append(Axis(name, it.extent))
                iters.append(replace(it, binding=Var(name)))
        moved = replace(block, iters=tuple(iters), where=producer.where)
        after = nest([Loop((axis,), moved) for axis in axes], moved)
        child = statement_of(loop.body, producer.name)
        body = beside(loop.body, child, after=(after,))
        return put(put(program, block, None), loop, replace(loop, body=body))


def _producer(program: Program, block: Block, loop: Loop) -> Block | None:
    """The last block inside the loop that writes something that `block` reads."""
    found = [
        writer
        for name in sorted(reads(block))
        for writer, where in writers(program, name)
        if any(outer is loop for outer in where.loops)
    ]
    return found[-1] if found else None


def complete_box(program: Program, producer: Block, loop: Loop) -> str | None:
    """Why one iteration of a loop does not produce a whole box of the buffer, complete and for itself."""
    buffer = find_buffer(program, producer.buffer)
    assert buffer is not None
    _, place = block_at(program, producer.name)
    inside = extents(axes_of(place.inside(loop)))
    if (reason := whole_store(producer, buffer.shape)) is not None:
        return reason
    for writer, where in writers(program, buffer.name):
        outer = {axis.var for axis in where.axes}
        if any(found is loop for found in where.loops):
            outer -= {axis.var for axis in axes_of(where.inside(loop))}
        elif where.region > place.region:
            return f"block {writer.name} writes {buffer.name} after loop {loop.axes[0].var}"
        reduced = outer & reduce_variables(writer)
        reduced |= outer & loop_variables(writer, [it.binding for it in writer.iters if it.kind == "scan"])
        if reduced:
            return f"block {writer.name} is not complete in one iteration: it reduces over {min(reduced)}"
        if writer.combine is not None and outer - loop_variables(writer, [it.binding for it in writer.iters]):
            return f"block {writer.name} runs again in loops that it does not iterate over"
    if found := clipping(producer, extents(place.axes)):
        return f"iteration {found[0].var} of block {producer.name} leaves out points: move blocks before it is split"
    for condition in producer.where:
        if variables(condition) & set(inside):
            return f"a condition of block {producer.name} leaves out part of what an iteration produces"
    return gaps(program, producer, loop)
