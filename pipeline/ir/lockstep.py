"""Which loops of a concrete program may run in lockstep: one statement at all iterations, then the next statement.

A loop may where no iteration depends on another: each element of a buffer that lives outside the loop and is written in
it is touched by one iteration only, or by nothing but the combination of one block (whose order lockstep keeps).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import assert_never

from pipeline.ir.expr import Affine, Expr, affine, loads, substitute
from pipeline.ir.program import PRIVATE, Alloc, Axis, Block, Loop, Program, Seq, Stmt, walk

BLOCKS = ("blockIdx.x", "blockIdx.y", "blockIdx.z")
GRID = ("parallel", *BLOCKS)
THREADS = ("threadIdx.x", "threadIdx.y", "threadIdx.z")


@dataclass(frozen=True, slots=True)
class Access:
    """One load or store below a loop, its indices over loop variables, and the loops between the two."""

    buffer: str
    block: Block
    combines: bool
    reads: bool
    indices: tuple[Affine | None, ...]
    inner: tuple[Axis, ...]
    between: tuple[Loop, ...]


def loop_class(loop: Loop) -> int:
    """2: iterations are threads of one core · 1: iterations run on different cores · 0: iterations run in order."""
    return 2 if loop.kind in THREADS else 1 if loop.kind in GRID else 0


def lockstep_loops(program: Program) -> frozenset[int]:
    """The ids of the loop objects."""
    found: set[int] = set()
    for region in (*program.prologue.body, *program.body.body):
        _visit(region, {}, found)
    return frozenset(found)


def volume(stmt: Stmt, lockstep: frozenset[int]) -> int:
    """The most points or buffer elements that one execution of the statement holds at a time."""
    match stmt:
        case Block():
            return 1
        case Seq(body):
            return max((volume(child, lockstep) for child in body), default=1)
        case Alloc(buffer, body):
            size = math.prod(extent.value for extent in buffer.shape)
            return max(1, volume(body, lockstep), size * math.prod(thread_extents(body).values()))
        case Loop(axes, body, _):
            inside = volume(body, lockstep)
            return max(1, math.prod(a.extent.value for a in axes)) * inside if id(stmt) in lockstep else inside
        case _:
            assert_never(stmt)


def thread_extents(stmt: Stmt) -> dict[str, int]:
    """The largest extent of each kind of thread loop below."""
    match stmt:
        case Block():
            return {}
        case Seq(body):
            found: dict[str, int] = {}
            for child in body:
                for kind, extent in thread_extents(child).items():
                    found[kind] = max(extent, found.get(kind, 1))
            return found
        case Alloc(_, body):
            return thread_extents(body)
        case Loop(axes, body, kind):
            found = thread_extents(body)
            if kind in THREADS:
                found[kind] = max(found.get(kind, 1), math.prod(axis.extent.value for axis in axes))
            return found
        case _:
            assert_never(stmt)


def _visit(stmt: Stmt, scopes: dict[str, str], found: set[int]) -> None:
    """Inner loops first: the combination of a block keeps its order only where all loops down to it are in lockstep."""
    match stmt:
        case Block():
            return
        case Seq(body):
            for child in body:
                _visit(child, scopes, found)
        case Alloc(buffer, body):
            _visit(body, {**scopes, buffer.name: buffer.scope}, found)
        case Loop():
            _visit(stmt.body, scopes, found)
            if _independent(stmt, scopes, found):
                found.add(id(stmt))
        case _:
            assert_never(stmt)


def _independent(loop: Loop, scopes: dict[str, str], found: set[int]) -> bool:
    if not _classes(loop.body) <= {0, loop_class(loop)}:
        return False  # races are recorded for one nest of parallel loops at a time
    accesses = list(_accesses(loop.body, (), (), frozenset()))
    for buffer in {access.buffer for access in accesses if not access.reads}:
        if scopes.get(buffer) in PRIVATE and loop.kind in THREADS:
            continue  # each thread has its own
        touching = [access for access in accesses if access.buffer == buffer]
        alone = len(touching) == 1 and touching[0].combines and all(id(inner) in found for inner in touching[0].between)
        if not alone and not all(_separates(loop, position, touching) for position in range(len(loop.axes))):
            return False
    return True


def _classes(stmt: Stmt) -> set[int]:
    return {loop_class(inner) for inner in walk(stmt) if isinstance(inner, Loop)}


def _accesses(stmt: Stmt, inner: tuple[Axis, ...], between: tuple[Loop, ...],
              private: frozenset[str]) -> Iterator[Access]:  # fmt: skip
    match stmt:
        case Block():
            bindings: dict[str, Expr] = {it.var: it.binding for it in stmt.iters}

            def forms(indices: tuple[Expr, ...]) -> tuple[Affine | None, ...]:
                return tuple(affine(substitute(index, bindings)) for index in indices)

            for expr in (*(it.binding for it in stmt.iters), *stmt.where):
                for load in loads(expr):
                    if load.buffer not in private:
                        yield Access(load.buffer, stmt, False, True, (None,) * len(load.indices), inner, between)
            for expr in (stmt.value, *stmt.indices):
                for load in loads(expr):
                    if load.buffer not in private:
                        yield Access(load.buffer, stmt, False, True, forms(load.indices), inner, between)
            if stmt.buffer not in private:
                yield Access(stmt.buffer, stmt, stmt.combine is not None, False, forms(stmt.indices), inner, between)
        case Seq(body):
            for child in body:
                yield from _accesses(child, inner, between, private)
        case Alloc(buffer, body):
            yield from _accesses(body, inner, between, private | {buffer.name})
        case Loop(axes, body, _):
            yield from _accesses(body, inner + axes, (*between, stmt), private)
        case _:
            assert_never(stmt)


def _separates(loop: Loop, position: int, accesses: list[Access]) -> bool:
    """Do two values of this axis, those before it being equal, always mean two different elements?"""
    axis, later = loop.axes[position], loop.axes[position + 1 :]
    if axis.extent.value <= 1:
        return True
    return any(_separated_by(axis.var, later, dimension, accesses) for dimension in range(len(accesses[0].indices)))


def _separated_by(var: str, later: tuple[Axis, ...], dimension: int, accesses: list[Access]) -> bool:
    steps: set[tuple[int, tuple[tuple[str, int], ...]]] = set()
    lows, highs = [], []
    for access in accesses:
        form = access.indices[dimension] if dimension < len(access.indices) else None
        if form is None:
            return False
        inner = {axis.var: axis.extent.value for axis in (*later, *access.inner)}
        low = high = form.constant.value
        step, fixed = 0, []
        for name, poly in form.terms:
            coefficient = poly.value
            if name == var:
                step = coefficient
            elif name in inner:
                end = coefficient * max(0, inner[name] - 1)
                low, high = low + min(0, end), high + max(0, end)
            else:
                fixed.append((name, coefficient))
        steps.add((step, tuple(fixed)))
        lows.append(low)
        highs.append(high)
    return len(steps) == 1 and max(highs) - min(lows) < abs(next(iter(steps))[0])
