"""The step that lets a block read from a small copy of a buffer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pipeline.ir.expr import Expr, Load, Op, Var
from pipeline.ir.poly import Poly
from pipeline.ir.program import Axis, Block, Buffer, Iter, Loop, Program, Scope
from pipeline.schedule.nest import (
    axes_of,
    beside,
    block_at,
    blocks_in,
    clash,
    extents,
    find_buffer,
    loads_of,
    loop_at,
    nest,
    no_loop_around,
    no_room,
    put,
    several,
    statement_of,
    swapped_in,
    through_allocs,
    with_allocs,
)
from pipeline.schedule.reading import full, nearby
from pipeline.schedule.rewrite import bounded, constant, over_iters
from pipeline.schedule.window import Span, from_window, shifted, window


@dataclass(frozen=True, slots=True)
class CacheRead:
    """Copy the part of a buffer that a block reads inside a loop, and read the copy.

    block    name of the block
    buffer   that it reads
    scope    of the copy: shared, local, or fragment
    at       the loop around the block in whose iterations the copy is made
    name     of the copy and of the block that makes it; `<buffer>_<scope>` where it is not given
    fill     elements of the box that are outside the buffer become 0 in the copy
    early    the copy is made at the beginning of an iteration, not right before the block

    for i0: for i1: C[i0*4 + i1] = f(A[i0*4 + i1 + 1])
      ->  for i0: alloc S[4]: { for w: S[w] = A[i0*4 + 1 + w]; for i1: C[i0*4 + i1] = f(S[i1]) }

    The copy has the shape of the box that the block reads; elements outside the buffer are not copied, or, with `fill`,
    S[w] = A[i0*4 + w] if i0*4 + w < n else 0. The loops are `<name>_<dimension>`.

    Legal when nothing writes the buffer in the statement of the loop's body that the block is in, or, with `early`, in
    any of them.
    """

    block: str
    buffer: str
    scope: Scope
    at: str
    name: str | None = None
    fill: bool = False
    early: bool = False

    def why_not(self, program: Program) -> str | None:
        if (reason := no_loop_around(program, self.block, self.at)) is not None:
            return reason
        if self.scope not in ("local", "shared", "fragment"):
            return f"a read cache is a fragment, local or shared, not {self.scope}"
        block, place = block_at(program, self.block)
        loop, _ = loop_at(program, self.at)
        if (reason := no_room(loop)) is not None:
            return reason
        if not any(load.buffer == self.buffer for load in loads_of(block)):
            return f"block {self.block} does not read {self.buffer}"
        for other in blocks_in(loop.body if self.early else statement_of(loop.body, self.block)):
            if other.buffer == self.buffer:
                where = "iteration" if self.early else "statement"
                return f"block {other.name} writes {self.buffer} in the same {where}"
        source = find_buffer(program, self.buffer)
        assert source is not None
        if source.scope == "global" and (writer := nearby(program, place, self.buffer)) is not None:
            return f"block {writer} writes {self.buffer} in the same region, perhaps not yet all of the box"
        if not full(program, source):
            return f"some elements of {self.buffer} may never be written, so that they cannot be copied"
        names = [f"{self._name}_{dim}" for dim in range(len(source.shape))]
        return clash(program, variables=names, blocks=[self._name], buffers=[self._name])

    @property
    def _name(self) -> str:
        return self.name or f"{self.buffer}_{self.scope}"

    def apply(self, program: Program) -> Program:
        block, place = block_at(program, self.block)
        loop, _ = loop_at(program, self.at)
        source = find_buffer(program, self.buffer)
        assert source is not None
        ranges = extents(axes_of(place.inside(loop)))
        found = [(block, load.indices) for load in loads_of(block) if load.buffer == self.buffer]
        spans = window(found, ranges, source.shape, program.derived)
        around = extents(place.axes)
        axes = tuple(Axis(f"{self._name}_{dim}", span.extent) for dim, span in enumerate(spans))
        target = Buffer(self._name, tuple(span.extent for span in spans), source.dtype, self.scope)
        copy = self._filled(axes, spans, source, around) if self.fill else self._clipped(axes, spans, source)
        fill = nest([Loop((axis,), copy) for axis in axes], copy)
        reader = from_window(block, target, self.buffer, spans, around)
        child = statement_of(loop.body, self.block)
        new = swapped_in(child, block, reader)
        if self.early:
            buffers, below = through_allocs(beside(loop.body, child, new=new))
            body = with_allocs((target, *buffers), several((fill, below)))
        else:
            body = beside(loop.body, child, before=(fill,), new=new, allocs=(target,))
        return put(program, loop, replace(loop, body=body))

    def _clipped(self, axes: tuple[Axis, ...], spans: tuple[Span, ...], source: Buffer) -> Block:
        """The block that copies what is in the buffer."""
        iters = tuple(
            Iter(f"v_{axis.var}", extent, "spatial", shifted(span, axis.var))
            for axis, span, extent in zip(axes, spans, source.shape, strict=True)
        )
        load = Load(self.buffer, tuple(Var(it.var) for it in iters), source.dtype)
        copy, at = over_iters(Block(self._name, iters, self._name, (), load), [Var(a.var) for a in axes], extents(axes))
        return replace(copy, indices=at)

    def _filled(
        self, axes: tuple[Axis, ...], spans: tuple[Span, ...], source: Buffer, around: Mapping[str, Poly]
    ) -> Block:
        """The block that writes every element of the copy."""
        ranges = {**around, **extents(axes)}
        places = tuple(shifted(span, axis.var) for axis, span in zip(axes, spans, strict=True))
        condition: Expr | None = None
        for place, extent in zip(places, source.shape, strict=True):
            condition = bounded(condition, place, extent, ranges)
        iters = tuple(Iter(f"v_{axis.var}", axis.extent, "spatial", Var(axis.var)) for axis in axes)
        value: Expr = Load(self.buffer, places, source.dtype)
        if condition is not None:
            value = Op("guard", (condition, value, constant(0, source.dtype)), source.dtype)
        copy = Block(self._name, iters, self._name, tuple(Var(it.var) for it in iters), value)
        copy, (value,) = over_iters(copy, [value], ranges)
        return replace(copy, value=value)
