"""Element for element: how a consumer's iterations and the elements of a buffer that it reads belong together."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.ir.expr import Affine, Const, Expr, Op, Var, affine, from_affine, less, size
from pipeline.ir.poly import Poly
from pipeline.ir.program import Block, Buffer, Iter, Loop, Program
from pipeline.ir.region import at_least, dense, interval
from pipeline.schedule.nest import (
    Place,
    all_blocks,
    axes_of,
    block_at,
    extents,
    find_buffer,
    loads_of,
    over_loops,
    reads,
    writers,
)
from pipeline.schedule.rewrite import clipping, stored_iters, whole_store


@dataclass(frozen=True, slots=True)
class At:
    """One index of the load: it + offset; a constant where there is no iteration."""

    it: Iter | None
    offset: Poly


def element_of(block: Block, buffer: str) -> tuple[At, ...] | str:
    """The one place at which a block reads a buffer, where each iteration is an index once; or why it is not so."""
    found = {load.indices for load in loads_of(block) if load.buffer == buffer}
    if len(found) != 1:
        return f"block {block.name} reads {buffer} at {len(found)} places, not at one"
    iters = {it.var: it for it in block.iters}
    places: list[At] = []
    for index in next(iter(found)):
        form = affine(index)
        one = form is not None and len(form.terms) == 1 and form.terms[0][1] == Poly.of(1)
        if form is None or (form.terms and not (one and form.terms[0][0] in iters)):
            return f"block {block.name} does not read {buffer} at one of its iterations in each index"
        places.append(At(iters.pop(form.terms[0][0]) if form.terms else None, form.constant))
    for it in iters.values():
        if it.extent != Poly.of(1) or not isinstance(it.binding, (Const, Var)):
            return f"iteration {it.var} of block {block.name} is no index of {buffer}"
    return tuple(places)


def iteration_at(element: tuple[At, ...], indices: tuple[Expr, ...]) -> dict[str, Expr]:
    """The iterations that read the element at `indices`."""
    found: dict[str, Expr] = {}
    for place, index in zip(element, indices, strict=True):
        form = affine(index)
        if place.it is not None:
            shifted = None if form is None else from_affine(form + Affine((), place.offset * -1))
            found[place.it.var] = shifted or Op("sub", (index, size(place.offset)))
    return found


def conditions_at(producer: Block, element: tuple[At, ...], indices: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """Where the producer's element is read at all: conditions over loops, as far as they are not certain."""
    ranges = {it.var: it.extent for it in producer.iters}
    where: list[Expr] = []
    for place, index in zip(element, indices, strict=True):
        form = affine(index)
        span = interval(form, ranges) if form is not None else None
        low = None if span is None or span[0].terms else span[0].constant
        high = None if span is None or low is None else low + span[1]
        loops = over_loops(producer, index)
        if place.it is None:
            if low is None or high is None or (low, high) != (place.offset, place.offset + 1):
                where.append(Op("eq", (loops, size(place.offset)), "bool"))
            continue
        if low is None or not at_least(low, place.offset):
            where.append(Op("ge", (loops, size(place.offset)), "bool"))
        end = place.offset + place.it.extent
        if high is None or not at_least(end, high):
            where.append(less(loops, size(end)))
    return tuple(where)


def elementwise(block: Block) -> str | None:
    """Why a block is not a plain function of the elements that it reads, which can run anywhere."""
    if block.combine is not None:
        return f"block {block.name} is a reduction"
    if any(it.kind != "spatial" for it in block.iters) or block.buffer in reads(block):
        return f"block {block.name} is a scan"
    if block.where:
        return f"block {block.name} has a condition: move it before it is split"
    return None


def hoistable(program: Program, block: Block, place: Place, buffer: str, to: Place) -> str | None:
    """Why a consumer cannot run right after the element of `buffer` is stored, in the region of `to`."""
    if to.prologue != place.prologue or to.region > place.region:
        return f"{buffer} is not stored before block {block.name}, in the same part of the program"
    for name in reads(block) - {buffer}:
        for writer, where in writers(program, name):
            if where.prologue == to.prologue and where.region >= to.region:
                return f"block {writer.name} writes {name}, which block {block.name} reads, too late"
    for other, where in all_blocks(program):
        if other is block or where.prologue != to.prologue or not to.region <= where.region <= place.region:
            continue
        if block.buffer == other.buffer or block.buffer in reads(other):
            return f"block {other.name} uses {block.buffer} before block {block.name} is done"
    return None


def private(program: Program, block: Block, buffer: str) -> str | None:
    """Why a buffer cannot vanish once `block` needs it no more."""
    found = find_buffer(program, buffer)
    if found is None or found.role not in ("intermediate", "packed"):
        return f"{buffer} is {'unknown' if found is None else found.role}: its values are wanted"
    for other, _ in all_blocks(program):
        if other is not block and buffer in reads(other):
            return f"block {other.name} reads {buffer}, too"
    return None


def gaps(program: Program, block: Block, loop: Loop) -> str | None:
    """Why the elements that a block stores in one iteration of a loop are not a box, each point of it once."""
    _, place = block_at(program, block.name)
    inside = extents(axes_of(place.inside(loop)))
    taken: set[str] = set()
    for it in stored_iters(block):
        form = affine(it.binding)
        if form is None or interval(form, inside) is None:
            return f"the binding of {it.var} is not affine with known signs, so that its extent is not known"
        if not dense(form, inside):
            return f"one iteration of loop {loop.axes[0].var} leaves gaps along {it.var}: reorder first"
        mine = {name for name, _ in form.terms} & set(inside)
        if mine & taken:
            return f"loop {min(mine & taken)} moves along two dimensions of {block.buffer}"
        taken |= mine
    return None


def full(program: Program, buffer: Buffer) -> bool:
    """Whether every element of a buffer is certainly written before it is read."""
    if buffer.role in ("input", "constant"):
        return True
    return any(
        whole_store(writer, buffer.shape) is None and not writer.where and not clipping(writer, extents(place.axes))
        for writer, place in writers(program, buffer.name)
    )


def nearby(program: Program, place: Place, buffer: str) -> str | None:
    """The name of a block in the same region that writes a buffer."""
    for writer, where in writers(program, buffer):
        if (where.prologue, where.region) == (place.prologue, place.region):
            return writer.name
    return None
