"""The step that merges an elementwise consumer into the store of its producer."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pipeline.ir.expr import Const, Expr, affine, substitute
from pipeline.ir.program import Program
from pipeline.schedule.nest import block_at, drop_buffer, find_buffer, no_block, put, reads, writers
from pipeline.schedule.reading import conditions_at, element_of, elementwise, hoistable, iteration_at, private
from pipeline.schedule.rewrite import cast, map_loads


@dataclass(frozen=True, slots=True)
class ReverseInline:
    """Merge a consumer into the block that stores what it reads; its loops and the buffer between them vanish.

    block    name of the consumer
    buffer   that is to vanish; it need not be given where only one can

    for w: T[w] = L[w]; for j: C[j + 3] = f(T[j], B[j])  ->  for w: C[w + 3] = f(L[w], B[w])

    Its other operands are loaded at the iteration that stores the element.

    Legal when the consumer is not a reduction and reads the buffer always at the same place, each index one of its
    iterations (plus a number) and each iteration one index; the buffer is an intermediate that nothing else reads,
    stored by one block that does not combine; the consumer's other operands are complete before that block's region.
    """

    block: str
    buffer: str | None = None

    def why_not(self, program: Program) -> str | None:
        if (reason := no_block(program, self.block)) is not None:
            return reason
        if self.buffer is not None:
            return _why_not(program, self.block, self.buffer)
        block, _ = block_at(program, self.block)
        reasons = [_why_not(program, self.block, name) for name in sorted(reads(block))]
        if not reasons:
            return f"block {self.block} reads nothing"
        if None in reasons:
            return None
        return "; ".join(dict.fromkeys(reason for reason in reasons if reason is not None))

    def apply(self, program: Program) -> Program:
        block, _ = block_at(program, self.block)
        name = self.buffer or next(n for n in sorted(reads(block)) if _why_not(program, self.block, n) is None)
        ((producer, _),) = writers(program, name)
        buffer, element = find_buffer(program, name), element_of(block, name)
        assert buffer is not None and not isinstance(element, str)
        value = cast(producer.value, buffer.dtype)
        at: dict[str, Expr] = {it.var: Const(0) for it in block.iters}
        at |= iteration_at(element, producer.indices)

        def moved(expr: Expr) -> Expr:
            return map_loads(substitute(expr, at), name, lambda _: value)

        merged = replace(
            producer,
            buffer=block.buffer,
            indices=tuple(moved(index) for index in block.indices),
            value=moved(block.value),
            where=(*producer.where, *conditions_at(producer, element, producer.indices)),
        )
        return drop_buffer(put(put(program, block, None), producer, merged), name)


def _why_not(program: Program, name: str, buffer: str) -> str | None:
    block, place = block_at(program, name)
    if buffer not in reads(block):
        return f"block {name} does not read {buffer}"
    if (reason := elementwise(block) or private(program, block, buffer)) is not None:
        return reason
    element = element_of(block, buffer)
    if isinstance(element, str):
        return element
    found = writers(program, buffer)
    if len(found) != 1:
        return f"{buffer} is stored by {len(found)} blocks ({', '.join(b.name for b, _ in found)}), not by one"
    ((producer, there),) = found
    if producer.combine is not None:
        return f"block {producer.name} combines into {buffer}: cache its writes first"
    if any(affine(index) is None for index in producer.indices):
        return f"block {producer.name} does not store in {buffer} at affine indices"
    together = (place.prologue, place.region) == (there.prologue, there.region)
    if together and len([at for at in element if at.it is not None]) != len(block.iters):
        return f"block {name} has iterations that are no index of {buffer}, in the same nest as block {producer.name}"
    return hoistable(program, block, place, buffer, there)
