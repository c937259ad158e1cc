"""The step that puts a producer's expression where its result is read."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.ir.expr import Expr, Load, substitute, variables
from pipeline.ir.program import Block, Program
from pipeline.schedule.nest import (
    Place,
    block_at,
    drop_buffer,
    find_buffer,
    map_program_blocks,
    no_block,
    put,
    readers,
    reads,
    writers,
)
from pipeline.schedule.rewrite import cast, plain_store, whole_store, with_loads


@dataclass(frozen=True, slots=True)
class Inline:
    """Replace every load of a block's buffer by the expression that the block stores there; block and buffer vanish.

    block   name of the producer

    for i: P[i] = f(A[i]); for j: C[j] = P[j + 1]  ->  for j: C[j] = f(A[j + 1])

    Legal when the block is not a reduction, stores at its iterations (each an index once) in a whole intermediate
    buffer that nothing else writes, and nothing writes what it reads between it and a reader.
    """

    block: str

    def why_not(self, program: Program) -> str | None:
        if (reason := no_block(program, self.block)) is not None:
            return reason
        block, place = block_at(program, self.block)
        buffer = find_buffer(program, block.buffer)
        assert buffer is not None
        if block.combine is not None:
            return f"block {self.block} is a reduction"
        if buffer.role not in ("intermediate", "packed"):
            return f"{block.buffer} is {buffer.role}: its values are wanted"
        if len(writers(program, block.buffer)) != 1:
            return f"block {self.block} is not the only one that writes {block.buffer}"
        if block.where:
            return f"block {self.block} has a condition: inline it before it is split"
        if any(it.kind == "scan" for it in block.iters) or block.buffer in reads(block):
            return f"block {self.block} is a scan"
        if (reason := whole_store(block, buffer.shape)) is not None:
            return reason
        indices = {name for index in block.indices for name in variables(index)}
        if other := sorted(variables(block.value) - indices):
            return f"block {self.block} uses {other[0]}, which is not one of its indices"
        used = readers(program, block.buffer)
        if not used:
            return f"nothing reads {block.buffer}"
        last = max((_when(where) for _, where in used), default=_when(place))
        for name in reads(block):
            for writer, where in writers(program, name):
                if _when(place) <= _when(where) <= last:
                    return f"block {writer.name} writes {name}, which block {self.block} reads, before it is read"
        return None

    def apply(self, program: Program) -> Program:
        block, _ = block_at(program, self.block)
        buffer = find_buffer(program, block.buffer)
        stored = plain_store(block)
        assert buffer is not None and stored is not None
        value = cast(block.value, buffer.dtype)

        def inlined(load: Load) -> Expr:
            pairs = zip(stored, load.indices, strict=True)
            return substitute(value, {it.var: index for it, index in pairs if it is not None})

        def visit(reader: Block) -> Block:
            return with_loads(reader, buffer.name, inlined) if buffer.name in reads(reader) else reader

        return drop_buffer(map_program_blocks(put(program, block, None), visit), buffer.name)


def _when(place: Place) -> tuple[bool, int]:
    return not place.prologue, place.region
