"""The step that executes a unit by one instruction."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pipeline.ir.program import Buffer, Program
from pipeline.schedule.intrinsics import INTRINSICS
from pipeline.schedule.nest import find_buffer, loop_at, no_loop, put
from pipeline.schedule.tensor_match import TensorMatch, match_intrinsic, row_major
from pipeline.schedule.unit_match import UnitMatch, match_unit


@dataclass(frozen=True, slots=True)
class Tensorize:
    """Execute a unit by one instruction that computes the same.

    loop        name of the unit: of its outermost loop (see Blockize)
    intrinsic   name of the instruction (see `intrinsics`)

    for i in range(16) with blockize="i": for k in range(4) with blockize="i": C[i] += u8 A[k] * s8 B[i, k]
      ->  for i in range(16) with blockize="i", tensorize="avx512vnni.dot_u8i8i32": …

    The program stays the ordinary nest, so that its meaning cannot change; the code generator emits the instruction
    for it, and the nest itself where conditions leave out some of its points. It refuses a target that lacks the
    instruction.

    Legal when the unit is what the instruction computes: the same extents, the same value of the same dtypes, and
    operands that lie in memory as it wants them. Units that a warp computes together (mma., warp.) take from fragments
    and write to fragments what their descriptions do; the others of their operands may lie anywhere.
    """

    loop: str
    intrinsic: str

    def why_not(self, program: Program) -> str | None:
        if (reason := no_loop(program, self.loop)) is not None:
            return reason
        if self.intrinsic not in INTRINSICS:
            return f"there is no intrinsic {self.intrinsic}: the intrinsics are {', '.join(INTRINSICS)}"
        loop, _ = loop_at(program, self.loop)
        if (unit := loop.annotation("blockize")) != self.loop:
            return (f"loop {self.loop} is no unit: blockize it first" if unit is None else
                    f"loop {self.loop} is inside the unit {unit}: name that")  # fmt: skip
        if (other := loop.annotation("tensorize")) is not None:
            return f"loop {self.loop} is executed by {other} already"

        def buffer_of(name: str) -> Buffer:
            buffer = find_buffer(program, name)
            assert buffer is not None
            return buffer

        intrinsic = INTRINSICS[self.intrinsic]
        found: TensorMatch | UnitMatch | str
        if intrinsic.kind is None:
            found = match_intrinsic(loop, intrinsic, lambda name: row_major(buffer_of(name)))
        else:
            found = match_unit(loop, intrinsic, buffer_of)
        return found if isinstance(found, str) else None

    def apply(self, program: Program) -> Program:
        loop, _ = loop_at(program, self.loop)
        return put(program, loop, replace(loop, annotations=(*loop.annotations, ("tensorize", self.intrinsic))))
