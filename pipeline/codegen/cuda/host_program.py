"""A program for a GPU as one for a CPU: blocks of the grid are tasks of cores, and threads are iterations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import assert_never

from pipeline.ir.expr import Const, Expr, Load, Var, add, map_children, mul
from pipeline.ir.lockstep import BLOCKS, THREADS, thread_extents
from pipeline.ir.poly import Poly
from pipeline.ir.program import PRIVATE, Alloc, Block, Buffer, Iter, Loop, Program, Seq, Stmt

Extents = Mapping[str, int]  # by kind of thread loop
Places = Mapping[str, Expr]  # the number of this thread along each kind of thread loop


def host_program(program: Program) -> Program:
    """The same program without threads, registers, tensor units and hints of a GPU; a CPU's is left as it is.

    The outermost loop of the grid becomes parallel and all other loops serial. What each thread has of its own becomes
    one buffer with an element for each thread in front."""
    body, prologue = (Seq(tuple(_region(region) for region in part.body)) for part in (program.body, program.prologue))
    return replace(program, body=body, prologue=prologue)


def _region(region: Stmt) -> Stmt:
    if not isinstance(region, Loop) or region.kind not in BLOCKS:
        return region if isinstance(region, Loop) and region.kind == "parallel" else _serial(region, {}, {})
    return replace(_inside(region, {}, {}), kind="parallel", annotations=())


def _inside(loop: Loop, expanded: Mapping[str, Extents], places: Places) -> Loop:
    if loop.kind in THREADS:
        here = places.get(loop.kind)
        for axis in loop.axes:
            step = Const(axis.extent.value)
            here = Var(axis.var) if here is None else add(mul(here, step), Var(axis.var))
        assert here is not None
        places = {**places, loop.kind: here}
    return replace(loop, body=_serial(loop.body, expanded, places), kind="serial", annotations=())


def _serial(stmt: Stmt, expanded: Mapping[str, Extents], places: Places) -> Stmt:
    match stmt:
        case Loop():
            return _inside(stmt, expanded, places)
        case Seq(body):
            return Seq(tuple(_serial(child, expanded, places) for child in body))
        case Alloc(buffer, body):
            extents = thread_extents(body) if buffer.scope in PRIVATE else {}
            dims = tuple(Poly.of(extents[kind]) for kind in THREADS if kind in extents)
            plain = Buffer(buffer.name, (*dims, *buffer.shape), buffer.dtype, "shared", buffer.role)
            return Alloc(plain, _serial(body, {**expanded, buffer.name: extents}, places))
        case Block():
            return _block(stmt, expanded, places)
        case _:
            assert_never(stmt)


def _block(block: Block, expanded: Mapping[str, Extents], places: Places) -> Block:
    """Indices in front for every buffer that each thread has its own of. Bindings and conditions see the loops around;
    indices and value see iteration variables of the block."""
    kinds: dict[str, Iter] = {}

    def own(kind: str) -> Expr:
        name = f"of_{block.name}_{kind[-1]}"
        extent = max(extents[kind] for extents in expanded.values() if kind in extents)
        kinds.setdefault(kind, Iter(name, Poly.of(extent), "spatial", places[kind]))
        return Var(name)

    def front(buffer: str, number: Callable[[str], Expr]) -> tuple[Expr, ...]:
        here = [kind for kind in THREADS if kind in expanded.get(buffer, {})]
        return tuple(number(kind) if kind in places else Const(0) for kind in here)

    def outside(expr: Expr) -> Expr:
        new = map_children(expr, outside)
        if not isinstance(new, Load):
            return new
        return replace(new, indices=(*front(new.buffer, places.__getitem__), *new.indices))

    def inside(expr: Expr) -> Expr:
        new = map_children(expr, inside)
        return replace(new, indices=(*front(new.buffer, own), *new.indices)) if isinstance(new, Load) else new

    iters = tuple(replace(it, binding=outside(it.binding)) for it in block.iters)
    changed = replace(
        block,
        indices=(*front(block.buffer, own), *(inside(index) for index in block.indices)),
        value=inside(block.value),
        where=tuple(outside(condition) for condition in block.where),
    )
    return replace(changed, iters=(*kinds.values(), *iters))
