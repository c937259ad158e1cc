"""Where the threads of a block must wait for one another: between nests of which one may touch what another wrote."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import assert_never

from pipeline.codegen.cuda.pipelines import Pipelined
from pipeline.ir.expr import Affine, Expr, loads
from pipeline.ir.lockstep import THREADS
from pipeline.ir.program import PRIVATE, Alloc, Block, Loop, Seq, Stmt, walk
from pipeline.schedule.nest import affine_over_loops

Extent = tuple[int, int]  # first byte and the one after the last


@dataclass(frozen=True, slots=True)
class Access:
    """What one nest does to one buffer in one place.

    thread   the variables of its thread loops, in order, with the kind of loop and the extent
    inner    the extents of its other loop variables
    """

    buffer: str
    writes: bool
    indices: tuple[Affine | None, ...]
    thread: tuple[tuple[str, str, int], ...]
    inner: Mapping[str, int]


class Meeting(IntEnum):
    """Who has to meet: nobody, the lanes of each warp, or all threads of a block."""

    NONE = 0
    WARP = 1
    BLOCK = 2


Pending = Mapping[int, Meeting]  # the nests since all threads last met, and who has met since each


def is_leaf(stmt: Stmt) -> bool:
    """Does the statement run without a meeting of threads: a nest of threads, or code for one thread alone?"""
    threads = [inner for inner in walk(stmt) if isinstance(inner, Loop) and inner.kind in THREADS]
    return not threads or stmt is threads[0]


def barriers(
    region: Stmt, shared: Mapping[str, Extent], pipelines: Mapping[int, Pipelined], *, warps: bool, alone: bool
) -> dict[int, Meeting]:
    """Who has to meet before which nests, by their ids.

    region     the body of a block of the grid
    shared     where the shared buffers lie: those that lie in one place at different times are one buffer here
    pipelines  the loops whose iterations begin with a meeting of all threads anyway, by id
    warps      do the threads along x form a warp?
    alone      is that warp the only one?
    """
    return _Meetings(region, shared, pipelines, warps, alone).meetings


class _Meetings:
    """Runs over a region in order, and over each loop twice, as what its end wrote its beginning may read."""

    def __init__(
        self, region: Stmt, shared: Mapping[str, Extent], pipelines: Mapping[int, Pipelined], warps: bool, alone: bool
    ) -> None:
        self.shared, self.pipelines, self.warps, self.alone = shared, pipelines, warps, alone
        self.found: dict[int, tuple[Access, ...]] = {}
        self.repeated: set[str] = set()  # variables of the loops around the nests
        written = {stmt.buffer for stmt in walk(region) if isinstance(stmt, Block)}
        own = {s.buffer.name for s in walk(region) if isinstance(s, Alloc) and s.buffer.name not in shared}
        self.watched = written - own
        self.meetings: dict[int, Meeting] = {}
        self.visit(region, {})

    def visit(self, stmt: Stmt, pending: Pending) -> Pending:
        """What has run since the last meeting once the statement has."""
        if is_leaf(stmt):
            return self.leaf(stmt, pending)
        match stmt:
            case Seq(body):
                for child in body:
                    pending = self.visit(child, pending)
                return pending
            case Alloc(_, body):
                return self.visit(body, pending)
            case Loop() if id(stmt) in self.pipelines:
                return self.pipelined(self.pipelines[id(stmt)], pending)
            case Loop(axes, body, _):
                count = math.prod(axis.extent.value for axis in axes)
                if not count:
                    return pending
                self.repeated |= {axis.var for axis in axes}
                after = self.visit(body, pending)
                return after if count == 1 else self.visit(body, after)
            case Block():
                return pending
            case _:
                assert_never(stmt)

    def leaf(self, stmt: Stmt, pending: Pending) -> Pending:
        if id(stmt) not in self.found:
            self.found[id(stmt)] = tuple(a for a in accesses(stmt) if a.buffer in self.watched)
        wanted = [self.conflict(earlier, id(stmt)) for earlier in pending]
        missing = [need for need, met in zip(wanted, pending.values(), strict=True) if need > met]
        meeting = max([*missing, self.meetings.get(id(stmt), Meeting.NONE)])
        if meeting:
            self.meetings[id(stmt)] = meeting
        if meeting == Meeting.BLOCK:
            pending = {}
        elif meeting == Meeting.WARP:
            pending = dict.fromkeys(pending, Meeting.WARP)
        return {**pending, id(stmt): Meeting.NONE}

    def pipelined(self, parts: Pipelined, pending: Pending) -> Pending:
        """The copies fill a stage that no thread reads until the next meeting."""
        for copy in parts.copies:
            pending = self.visit(copy, pending)
        self.repeated |= {axis.var for axis in parts.loop.axes}
        return {**self.visit(parts.rest, {}), **{id(copy): Meeting.NONE for copy in parts.copies}}

    def conflict(self, earlier: int, later: int) -> Meeting:
        """Who has to meet so that the later nest may touch what the earlier one touched, one of them writing."""
        return max(
            (
                self.apart(a, b)
                for a in self.found[earlier]
                for b in self.found[later]
                if (a.writes or b.writes) and self.meet(a.buffer, b.buffer)
            ),
            default=Meeting.NONE,
        )

    def apart(self, a: Access, b: Access) -> Meeting:
        """How far apart the threads can be that touch one element. The lanes of a warp that works as one are not told
        apart."""
        if a.buffer != b.buffer:
            return Meeting.WARP if self.alone else Meeting.BLOCK
        mine, others = [t[1:] for t in a.thread], [t[1:] for t in b.thread]
        lanes = not a.thread or any(kind == "threadIdx.x" for kind, _ in mine)
        decided = _decided(a, b, self.repeated)
        if mine == others and lanes and all(n in decided for n, (_, extent) in enumerate(mine) if extent > 1):
            return Meeting.NONE
        if self.alone:
            return Meeting.WARP
        rows = [[(n, t) for n, t in enumerate(side) if t[0] != "threadIdx.x"] for side in (mine, others)]
        if self.warps and rows[0] == rows[1] and rows[0] and all(n in decided for n, (_, e) in rows[0] if e > 1):
            return Meeting.WARP
        return Meeting.BLOCK

    def meet(self, a: str, b: str) -> bool:
        if a == b or a not in self.shared or b not in self.shared:
            return a == b
        return self.shared[a][0] < self.shared[b][1] and self.shared[b][0] < self.shared[a][1]


def accesses(stmt: Stmt) -> Iterator[Access]:
    """Of a nest, by its thread variables."""

    def visit(stmt: Stmt, thread: tuple[tuple[str, str, int], ...], inner: dict[str, int]) -> Iterator[Access]:
        match stmt:
            case Block():

                def forms(indices: tuple[Expr, ...]) -> tuple[Affine | None, ...]:
                    return tuple(affine_over_loops(stmt, index) for index in indices)

                for expr in (*(it.binding for it in stmt.iters), *stmt.where, stmt.value, *stmt.indices):
                    for load in loads(expr):
                        yield Access(load.buffer, False, forms(load.indices), thread, inner)
                yield Access(stmt.buffer, True, forms(stmt.indices), thread, inner)
            case Seq(body):
                for child in body:
                    yield from visit(child, thread, inner)
            case Alloc(buffer, body):
                skipped = buffer.name if buffer.scope in PRIVATE else None
                yield from (access for access in visit(body, thread, inner) if access.buffer != skipped)
            case Loop(axes, body, kind):
                sizes = {axis.var: axis.extent.value for axis in axes}
                if kind in THREADS:
                    thread = (*thread, *((name, kind, extent) for name, extent in sizes.items()))
                    yield from visit(body, thread, inner)
                else:
                    yield from visit(body, thread, {**inner, **sizes})
            case _:
                assert_never(stmt)

    yield from visit(stmt, (), {})


def _decided(a: Access, b: Access, repeated: set[str]) -> frozenset[int]:
    """The positions of the thread variables that are the same in both wherever they touch one element: those of which
    other values are other places in some dimension, once those that are known to be the same are left out."""
    found: set[int] = set()
    while True:
        more = {
            position
            for position, (x, y) in enumerate(zip(a.thread, b.thread, strict=False))
            if position not in found and x[1:] == y[1:] and _decides(position, a, b, repeated, found)
        }
        if not more:
            return frozenset(found)
        found |= more


def _decides(position: int, a: Access, b: Access, repeated: set[str], same: set[int]) -> bool:
    """Is there a dimension in which different values of this thread variable are different places, in both alike?"""
    for x, y in zip(a.indices, b.indices, strict=True):
        first, second = _span(position, x, a, same), _span(position, y, b, same)
        if first is None or second is None:
            continue
        (step, fixed, low, high), (other, also, least, most) = first, second
        if any(name in repeated for name, _ in fixed):
            continue  # the two may belong to different iterations
        if step == other and fixed == also and max(high, most) - min(low, least) < abs(step):
            return True
    return False


Fixed = tuple[tuple[str | int, int], ...]


def _span(position: int, form: Affine | None, access: Access, same: set[int]) -> tuple[int, Fixed, int, int] | None:
    """The step of the thread variable, the terms that are the same in all threads (by name, or by the position of a
    thread variable), and the range of the rest."""
    if form is None:
        return None
    step = 0
    fixed: list[tuple[str | int, int]] = []
    low = high = form.constant.value
    threads = {name: (number, extent) for number, (name, _, extent) in enumerate(access.thread)}
    for name, poly in form.terms:
        coefficient = poly.value
        if name in threads and threads[name][0] == position:
            step = coefficient
        elif name in threads and threads[name][0] in same:
            fixed.append((threads[name][0], coefficient))
        elif name in threads or name in access.inner:
            extent = threads[name][1] if name in threads else access.inner[name]
            end = coefficient * max(0, extent - 1)
            low, high = low + min(0, end), high + max(0, end)
        else:
            fixed.append((name, coefficient))  # of a loop around the nest
    return (step, tuple(sorted(fixed, key=str)), low, high) if step else None
