"""The step that chooses where an intermediate buffer lives."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pipeline.ir.expr import Const, Expr
from pipeline.ir.poly import Poly
from pipeline.ir.program import Alloc, Block, Buffer, Loop, Program, Scope, Seq, Stmt, map_statements
from pipeline.ir.region import at_least
from pipeline.schedule.nest import (
    all_blocks,
    axes_in,
    blocks_in,
    extents,
    find_buffer,
    loads_of,
    loop_at,
    map_blocks,
    no_buffer,
    no_loop,
    put,
    reads,
)
from pipeline.schedule.rewrite import over_iters
from pipeline.schedule.steps.reverse_compute_at import complete_box
from pipeline.schedule.window import Span, from_window, window


@dataclass(frozen=True, slots=True)
class SetScope:
    """Let an intermediate buffer live in another place.

    buffer   its name
    scope    shared, local or fragment
    at       None: the buffer is allocated inside a loop already, and only its scope changes ·
             a loop: a global buffer shrinks to what one iteration of the loop stores, and lives in there

    for i0: { for i1: P[i0*4 + i1] = f; for j: C[i0*4 + j] = g(P[i0*4 + j]) }
      ->  for i0: alloc P[4]: { for i1: P[i1] = f; for j: C[i0*4 + j] = g(P[j]) }      at loop i0

    Legal when the buffer is an intermediate, and, where it shrinks, only blocks inside the loop use it, one iteration
    stores a whole box of it, and reads nothing but that box.
    """

    buffer: str
    scope: Scope
    at: str | None = None

    def why_not(self, program: Program) -> str | None:
        found = find_buffer(program, self.buffer)
        if found is None:
            return no_buffer(program, self.buffer)
        if self.scope not in ("shared", "local", "fragment"):
            return f"the new scope is fragment, shared or local, not {self.scope}"
        if self.at is None:
            if found.scope == "global":
                return f"{self.buffer} is global: say at which loop it shall live"
            return f"{self.buffer} is {found.scope} already" if found.scope == self.scope else None
        if found.scope != "global":
            return f"{self.buffer} is {found.scope} already: its place is known"
        if found.role != "intermediate":
            return f"{self.buffer} is {found.role}: it must stay global"
        if (reason := no_loop(program, self.at)) is not None:
            return reason
        loop, _ = loop_at(program, self.at)
        inside = blocks_in(loop)
        for block, _ in all_blocks(program):
            if self.buffer in {block.buffer, *reads(block)} and not any(block is other for other in inside):
                return f"block {block.name} uses {self.buffer} outside loop {self.at}"
        writing = [block for block in inside if block.buffer == self.buffer]
        for block in writing:
            if block.where:
                return f"block {block.name} has a condition: choose the scope before it is split"
            if (reason := complete_box(program, block, loop)) is not None:
                return reason
        stored = self._spans(program, loop, reading=False)
        everything = self._spans(program, loop, reading=True)
        for ours, all_ in zip(stored, everything, strict=True):
            if ours.base != all_.base or not at_least(ours.extent, all_.extent, program.derived):
                return f"one iteration of loop {self.at} reads more of {self.buffer} than it stores"
        return None

    def _spans(self, program: Program, loop: Loop, *, reading: bool) -> tuple[Span, ...]:
        found = find_buffer(program, self.buffer)
        assert found is not None
        accesses: list[tuple[Block, tuple[Expr, ...]]] = []
        for block in blocks_in(loop):
            if block.buffer == self.buffer:
                accesses.append((block, block.indices))
            elif reading:
                accesses += [(block, load.indices) for load in loads_of(block) if load.buffer == self.buffer]
        return window(accesses, extents(axes_in(loop.body)), found.shape, program.derived)

    def apply(self, program: Program) -> Program:
        found = find_buffer(program, self.buffer)
        assert found is not None
        if self.at is None:
            new = replace(found, scope=self.scope)

            def visit(stmt: Stmt) -> Stmt:
                if isinstance(stmt, Alloc) and stmt.buffer.name == self.buffer:
                    return replace(stmt, buffer=new)
                return map_statements(stmt, visit)

            body, prologue = visit(program.body), visit(program.prologue)
            assert isinstance(body, Seq) and isinstance(prologue, Seq)
            return replace(program, body=body, prologue=prologue)
        loop, place = loop_at(program, self.at)
        spans = self._spans(program, loop, reading=True)
        target = Buffer(self.buffer, tuple(span.extent for span in spans), found.dtype, self.scope)
        around = {**extents(place.axes), **extents(loop.axes), **extents(axes_in(loop.body))}

        def moved(block: Block) -> Block:
            if self.buffer in reads(block):
                return from_window(block, target, self.buffer, spans, around)
            return _stored(block, spans, around) if block.buffer == self.buffer else block

        body = Alloc(target, map_blocks(loop.body, moved))
        program = put(program, loop, replace(loop, body=body))
        return replace(program, buffers=tuple(b for b in program.buffers if b.name != self.buffer))


def _stored(block: Block, spans: tuple[Span, ...], around: dict[str, Poly]) -> Block:
    """The block storing in a window."""
    pairs = list(zip(spans, block.indices, strict=True))
    wanted = [Const(0) if span.whole else span.rebased(block, index) for span, index in pairs]
    block, at = over_iters(block, wanted, around)
    return replace(block, indices=tuple(i if span.whole else new for (span, i), new in zip(pairs, at, strict=True)))
