"""Loops whose copies into shared memory run some iterations ahead of what reads them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import assert_never

from pipeline.codegen.cuda.emit_state import Place
from pipeline.ir.lockstep import THREADS
from pipeline.ir.program import PRIVATE, Alloc, Block, Buffer, Loop, Seq, Stmt, sequence, walk
from pipeline.schedule.nest import reads


@dataclass(frozen=True, slots=True)
class Pipelined:
    """A serial loop taken apart.

    stages   copies of each of the buffers; at most as many as there are iterations
    buffers  the shared buffers that are filled ahead, each with the elements from one stage to the next
    copies   the nests that fill them, with which an iteration begins
    rest     what is left of an iteration
    """

    loop: Loop
    stages: int
    buffers: tuple[tuple[Buffer, int], ...]
    copies: tuple[Stmt, ...]
    rest: Stmt


def pipelines(stmt: Stmt, *, most: int, alignment: int) -> dict[int, Pipelined]:
    """The loops of a block of the grid that can run so, by id. The others are plain loops.

    most       stages there may be, whatever is asked for
    alignment  bytes of which the beginning of each stage is a multiple
    """
    return {id(found.loop): found for found in _find(stmt, most, alignment)}


def _find(stmt: Stmt, most: int, alignment: int) -> Iterator[Pipelined]:
    match stmt:
        case Block():
            return
        case Seq(body):
            for child in body:
                yield from _find(child, most, alignment)
        case Alloc(_, body):
            yield from _find(body, most, alignment)
        case Loop(_, body, kind):
            if kind in THREADS:
                return
            found = _taken_apart(stmt, most, alignment)
            if found is not None:
                yield found
            yield from _find(body if found is None else found.rest, most, alignment)
        case _:
            assert_never(stmt)


def _taken_apart(loop: Loop, most: int, alignment: int) -> Pipelined | None:
    wanted = loop.annotation("software_pipeline")
    if not isinstance(wanted, int) or len(loop.axes) != 1:
        return None
    stages = min(wanted, most, loop.axes[0].extent.value)
    if stages < 2:
        return None
    shared: dict[str, Buffer] = {}
    private: list[Buffer] = []
    body = loop.body
    while isinstance(body, Alloc):
        if body.buffer.scope in PRIVATE:
            private.append(body.buffer)
        else:
            shared[body.buffer.name] = body.buffer
        body = body.body
    if not isinstance(body, Seq):
        return None
    written = _written(body)
    copies: list[Stmt] = []
    for child in body.body:
        if not _copies(child, shared, written):
            break
        copies.append(child)
    rest = body.body[len(copies) :]
    filled = _written(sequence(copies))
    if not copies or filled & _written(sequence(rest)):
        return None
    left: Stmt = sequence(rest) if len(rest) != 1 else rest[0]
    for buffer in reversed((*private, *(b for b in shared.values() if b.name not in filled))):
        left = Alloc(buffer, left)
    buffers = tuple((b, _stage_elements(b, alignment)) for b in shared.values() if b.name in filled)
    return Pipelined(loop, stages, buffers, tuple(copies), left)


def _stage_elements(buffer: Buffer, alignment: int) -> int:
    place = Place(buffer, buffer.name)
    return -(-place.count * place.item // alignment) * alignment // place.item


def _copies(stmt: Stmt, shared: dict[str, Buffer], written: frozenset[str]) -> bool:
    """Is it a nest of threads that only fills shared buffers of this iteration, from what the loop does not write?"""
    if not (isinstance(stmt, Loop) and stmt.kind in THREADS):
        return False
    if any(isinstance(inner, Alloc) for inner in walk(stmt)):
        return False
    return all(
        block.buffer in shared and block.combine is None and reads(block).isdisjoint(written)
        for block in walk(stmt)
        if isinstance(block, Block)
    )


def _written(stmt: Stmt) -> frozenset[str]:
    return frozenset(block.buffer for block in walk(stmt) if isinstance(block, Block))
