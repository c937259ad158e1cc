"""The step that keeps the partial results of a reduction loop apart and combines them at the end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pipeline.ir.expr import Expr, Load, Op, Var, affine, less, size, substitute
from pipeline.ir.poly import Poly
from pipeline.ir.program import Axis, Block, Buffer, Iter, Loop, Program, Stmt
from pipeline.ir.region import at_least, interval
from pipeline.schedule.nest import (
    block_at,
    blocks_in,
    clash,
    extents,
    find_buffer,
    in_unit,
    loop_at,
    nest,
    no_loop_around,
    put,
    several,
    swapped_in,
)
from pipeline.schedule.rewrite import neutral, reduce_variables, spatial_variables, stored_iters, whole_store


@dataclass(frozen=True, slots=True)
class Rfactor:
    """Reduce each iteration of a reduction loop into an element of its own, and reduce those afterwards.

    block         name of the reduction block
    loop          one of its reduction loops, of one axis
    factor_axis   which dimension of the new buffer counts the iterations of the loop

    for i: for k0: for k1: [init 0] C[i] += a(i, k0, k1)
      ->  for i: for k0: for k1: [init 0] R[k1, i] += a(i, k0, k1)
          for i: for k1: [init 0] C[i] += R[k1, i]                          with loop k1

    The buffer and the block that fills it are `<block>_rf`; the block keeps its name, its loops are
    `<block>_f_<dimension>` and `<block>_f_<loop>`. The sum is reassociated.

    Legal when the block is a complete reduction, alone in its region, whose reduced loops are used by reductions only.
    """

    block: str
    loop: str
    factor_axis: int = 0

    def why_not(self, program: Program) -> str | None:
        if (reason := no_loop_around(program, self.block, self.loop)) is not None:
            return reason
        block, place = block_at(program, self.block)
        loop, _ = loop_at(program, self.loop)
        if block.combine is None:
            return f"block {self.block} is not a reduction"
        if block.init is None:
            return f"block {self.block} was decomposed: factor it before that"
        if (reason := in_unit(place)) is not None:
            return reason
        if len(blocks_in(place.root)) != 1:
            return f"block {self.block} is not alone in its region"
        if len(loop.axes) != 1:
            return f"loop {self.loop} is fused of {', '.join(a.var for a in loop.axes)}: factor before fusing"
        reduced, spatial = reduce_variables(block), spatial_variables(block)
        if self.loop not in reduced:
            return f"loop {self.loop} is not a reduction loop of block {self.block}"
        if both := sorted(reduced & spatial):
            return f"loop {both[0]} is spatial and reduced at once"
        if block.where:
            return f"block {self.block} has a condition: split into factors that divide"
        buffer = find_buffer(program, block.buffer)
        assert buffer is not None
        if buffer.scope != "global":
            return f"{block.buffer} is not global: factor before its writes are cached"
        if (reason := whole_store(block, buffer.shape)) is not None:
            return reason
        if len(stored_iters(block)) != len([it for it in block.iters if it.kind == "spatial"]):
            return f"block {self.block} knows the loops around it: factor it before it is packed"
        for it in block.iters:
            if it.kind == "reduce" and affine(it.binding) is None:
                return f"the binding of {it.var} is not affine"
        if not 0 <= self.factor_axis <= len(buffer.shape):
            return f"the new dimension is one of 0 to {len(buffer.shape)}, not {self.factor_axis}"
        names = [axis.var for axis in self._final_axes(block, loop.axes[0], buffer)]
        return clash(program, variables=names, blocks=[f"{self.block}_rf"], buffers=[f"{self.block}_rf"])

    def _final_axes(self, block: Block, factor: Axis, buffer: Buffer) -> list[Axis]:
        axes = [Axis(f"{self.block}_f_{dim}", extent) for dim, extent in enumerate(buffer.shape)]
        return [*axes, Axis(f"{self.block}_f_{factor.var}", factor.extent)]

    def apply(self, program: Program) -> Program:
        block, place = block_at(program, self.block)
        loop, _ = loop_at(program, self.loop)
        buffer = find_buffer(program, block.buffer)
        assert buffer is not None and block.combine is not None
        factor, reduced = loop.axes[0], reduce_variables(block)
        ranges = extents(place.axes)
        name = f"{self.block}_rf"
        axis = self.factor_axis
        shape = (*buffer.shape[:axis], factor.extent, *buffer.shape[axis:])
        partial = Buffer(name, shape, buffer.dtype)
        # Every reduction loop becomes an iteration by itself, the factored one a spatial one.
        new = [
            Iter(f"v_{var}", ranges[var], "spatial" if var == self.loop else "reduce", Var(var))
            for var in ranges
            if var in reduced
        ]
        at: dict[str, Expr] = {it.binding.name: Var(it.var) for it in new if isinstance(it.binding, Var)}
        values: dict[str, Expr] = {}
        value = block.value
        inside: list[Expr] = []
        for it in block.iters:
            if it.kind == "reduce":
                values[it.var] = substitute(it.binding, at)
                inside.extend(_clipped(values[it.var], it.extent, {it.var: it.extent for it in new}))
        value = substitute(value, values)
        for condition in inside:
            value = Op("guard", (condition, value, neutral(block.combine, buffer.dtype)), buffer.dtype)
        spatial = tuple(it for it in block.iters if it.kind == "spatial")
        counted = Var(f"v_{self.loop}")
        indices = (*block.indices[:axis], counted, *block.indices[axis:])
        zero = neutral(block.combine, buffer.dtype)
        filler = replace(block, name=name, iters=(*spatial, *new), buffer=name, indices=indices, value=value, init=zero)
        final = _final(block, partial, self._final_axes(block, factor, buffer), axis)
        first = swapped_in(place.root, block, filler)
        assert first is not None
        program = put(program, place.root, several((first, final)))
        return replace(program, buffers=(*program.buffers, partial))


def _clipped(index: Expr, extent: Poly, ranges: Mapping[str, Poly]) -> list[Expr]:
    """That an index is in [0, extent), as far as that is not certain."""
    form = affine(index)
    found = interval(form, ranges) if form is not None else None
    known = found is not None and not found[0].terms
    conditions: list[Expr] = []
    if found is None or not known or not at_least(found[0].constant, Poly.of(0)):
        conditions.append(Op("ge", (index, size(0)), "bool"))
    if found is None or not known or not at_least(extent, found[0].constant + found[1]):
        conditions.append(less(index, size(extent)))
    return conditions


def _final(block: Block, partial: Buffer, axes: list[Axis], factor: int) -> Stmt:
    """The nest that reduces the partial results."""
    iters = [Iter(f"v_{axis.var}", axis.extent, "spatial", Var(axis.var)) for axis in axes]
    iters[-1] = replace(iters[-1], kind="reduce")
    indices = tuple(Var(it.var) for it in iters[:-1])
    load = Load(partial.name, (*indices[:factor], Var(iters[-1].var), *indices[factor:]), partial.dtype)
    final = replace(block, iters=tuple(iters), indices=indices, value=load)
    return nest([Loop((axis,), final) for axis in axes], final)
