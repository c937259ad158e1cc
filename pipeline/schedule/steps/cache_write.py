"""The step that lets a block write to a small buffer first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pipeline.ir.expr import Affine, Const, Expr, Load, Var, affine, from_affine, variables
from pipeline.ir.poly import Poly
from pipeline.ir.program import Axis, Block, Buffer, Iter, Loop, Program, Scope, Stmt
from pipeline.ir.region import inner, interval
from pipeline.schedule.nest import (
    axes_of,
    beside,
    block_at,
    blocks_in,
    clash,
    extents,
    find_buffer,
    loop_at,
    nest,
    no_loop_around,
    no_room,
    put,
    reads,
    statement_of,
    swapped_in,
)
from pipeline.schedule.reading import gaps
from pipeline.schedule.rewrite import (
    clipping,
    constant_store,
    constant_store_names,
    neutral,
    over_iters,
    reduce_variables,
    spatial_variables,
    stored_iters,
)
from pipeline.schedule.steps.decompose_reduction import DecomposeReduction


@dataclass(frozen=True, slots=True)
class CacheWrite:
    """Collect what a block writes inside a loop in a small buffer, and write it back at the end of each iteration.

    block   name of the block
    scope   of the new buffer: local (a register tile), fragment (one that is spread over a warp) or shared (a core's
            scratch)
    at      the loop around the block whose iterations each have the buffer
    name    of the buffer; `<buffer>_<scope>` where it is not given

    for i0: for k: for i1: [init 0] C[i0*4 + i1] += a
      ->  for i0: alloc L[4]: { for k: for i1: [init 0] L[i1] += a; for w: C[i0*4 + w] = L[w] }

    The buffer has one dimension for each index of the store; its extent is that of the index over the loops inside
    `at`. The block that writes back is `<block>_write`, its loops are `<block>_w_<dimension>`.

    Where the block reduces over `at` or a loop around it, or has no initial value any more, the buffer holds partial
    results: block `<block>_clear` (loops `<block>_c_<name>`) sets it to the neutral value first, the write back
    combines, and an initial value becomes a block of its own before the outermost reduction loop (see
    DecomposeReduction).

    Legal when the bindings are affine, the block's conditions do not depend on spatial loops inside `at`, and no other
    block in the same statement of the loop's body uses the buffer. A cache of shared scope may have one of local scope.
    An iteration that leaves out points of the loops inside `at` must move as one that says where the block stores.
    """

    block: str
    scope: Scope
    at: str
    name: str | None = None

    def why_not(self, program: Program) -> str | None:
        if (reason := no_loop_around(program, self.block, self.at)) is not None:
            return reason
        if self.scope not in ("local", "shared", "fragment"):
            return f"a write cache is a fragment, local or shared, not {self.scope}"
        block, place = block_at(program, self.block)
        loop, _ = loop_at(program, self.at)
        ranges = extents(axes_of(place.inside(loop)))
        spatial, reduced = spatial_variables(block), reduce_variables(block)
        if any(it.kind == "scan" for it in block.iters):
            return f"block {self.block} is a scan: it reads what it wrote before"
        if block.buffer in reads(block):
            return f"block {self.block} reads {block.buffer} itself"
        buffer = find_buffer(program, block.buffer)
        if buffer is None or buffer.scope not in ("global", "global" if self.scope == "shared" else "shared"):
            return f"block {self.block} writes {block.buffer}, which is a cache already"
        if both := sorted(spatial & reduced & set(ranges)):
            return f"loop {both[0]} is spatial and reduced at once"
        for it in block.iters:
            form = affine(it.binding)
            if it.kind == "spatial" and (form is None or interval(form, ranges) is None):
                return f"the binding of {it.var} is not affine with known signs, so that its extent is not known"
        if (reason := gaps(program, block, loop)) is not None:
            return reason
        for condition in block.where:
            if found := sorted(variables(condition) & spatial & set(ranges)):
                return f"a condition of block {self.block} is on loop {found[0]}: split it into factors that divide"
        for it in clipping(block, extents(place.axes)):
            if variables(it.binding) & set(ranges) and _beside_store(block, it, ranges) is None:
                return f"iteration {it.var} of block {self.block} leaves out points: cache before the loop is split"
        if (reason := no_room(loop)) is not None:
            return reason
        child = statement_of(loop.body, self.block)
        for other in blocks_in(child):
            if other is not block and block.buffer in {other.buffer, *reads(other)}:
                return f"block {other.name} uses {block.buffer} in the same statement: cache before it gets there"
        loops = [f"{self.block}_w_{dim}" for dim in range(len(stored_iters(block)))]
        names = [f"{self.block}_write"]
        if _partial(program, self.block, self.at):
            loops += constant_store_names(place.inside(loop), block, f"{self.block}_c")
            names.append(f"{self.block}_clear")
            if (step := _decomposed(program, self.block)) is not None and (reason := step.why_not(program)) is not None:
                return reason
        return clash(program, variables=loops, blocks=names, buffers=[self._buffer(block)])

    def _buffer(self, block: Block) -> str:
        return self.name or f"{block.buffer}_{self.scope}"

    def apply(self, program: Program) -> Program:
        partial = _partial(program, self.block, self.at)
        step = _decomposed(program, self.block) if partial else None
        if step is not None:
            program = step.apply(program)
        block, place = block_at(program, self.block)
        loop, _ = loop_at(program, self.at)
        target = find_buffer(program, block.buffer)
        assert target is not None
        inside = place.inside(loop)
        ranges = extents(axes_of(inside))
        shape: list[Poly] = []
        indices: list[Expr] = []
        iters: list[Iter] = []
        axes: list[Axis] = []
        for dim, it in enumerate(stored_iters(block)):
            form = affine(it.binding)
            found = interval(form, ranges) if form is not None else None
            assert form is not None and found is not None
            base, extent = found
            axis = Axis(f"{self.block}_w_{dim}", extent)
            shape.append(extent)
            indices.append(from_affine(inner(form, ranges)))
            iters.append(replace(it, binding=from_affine(base + Affine(((axis.var, Poly.of(1)),), Poly.of(0)))))
            axes.append(axis)
        local = Buffer(self._buffer(block), tuple(shape), target.dtype, self.scope)
        cached, at = over_iters(block, indices, ranges)
        cached = replace(cached, buffer=local.name, indices=at)
        outside = set(extents(place.axes)) - set(ranges)
        where = tuple(condition for condition in block.where if variables(condition) <= outside)
        combine = block.combine if partial else None
        for it in clipping(block, extents(place.axes)):
            dim_beside = _beside_store(block, it, ranges)
            if dim_beside is not None:
                form = affine(it.binding)
                assert form is not None
                step_ = Affine(((axes[dim_beside].var, Poly.of(1)),), Poly.of(0))
                it = replace(it, binding=from_affine(form + inner(form, ranges).scale(Poly.of(-1)) + step_))
            iters.append(it)
        back = Block(f"{self.block}_write", tuple(iters), block.buffer, block.indices, Const(0), combine, where=where)
        back, at = over_iters(back, [Var(axis.var) for axis in axes], extents(axes))
        back = replace(back, value=Load(local.name, at, local.dtype))
        write = nest([Loop((axis,), back) for axis in axes], back)
        child = statement_of(loop.body, self.block)
        before: tuple[Stmt, ...] = ()
        if partial:
            assert block.combine is not None
            zero = neutral(block.combine, local.dtype)
            before = (constant_store(cached, inside, f"{self.block}_c", f"{self.block}_clear", zero),)
        new = swapped_in(child, block, cached)
        body = beside(loop.body, child, before=before, after=(write,), new=new, allocs=(local,))
        return put(program, loop, replace(loop, body=body))


def _beside_store(block: Block, it: Iter, ranges: Mapping[str, Poly]) -> int | None:
    """The number of the stored iteration that moves over the loops `ranges` as this one does: such as the place in a
    tensor beside the place in a tile of it."""
    form = affine(it.binding)
    if form is None or not variables(it.binding) & set(ranges):
        return None
    mine = inner(form, ranges)
    for number, stored in enumerate(stored_iters(block)):
        other = affine(stored.binding)
        if other is not None and inner(other, ranges) == mine:
            return number
    return None


def _partial(program: Program, name: str, at: str) -> bool:
    """Whether one iteration of the loop `at` gives a partial result only."""
    block, _ = block_at(program, name)
    if block.combine is None:
        return False
    loop, around = loop_at(program, at)
    outside = {axis.var for outer in (*around.loops, loop) for axis in outer.axes}
    return block.init is None or bool(outside & reduce_variables(block))


def _decomposed(program: Program, name: str) -> DecomposeReduction | None:
    """The step that sets the initial value before the outermost reduction loop, where there is one to set."""
    block, place = block_at(program, name)
    reduced = reduce_variables(block)
    first = [loop for loop in place.loops if any(axis.var in reduced for axis in loop.axes)]
    return None if block.init is None or not first else DecomposeReduction(name, first[0].axes[0].var)
