"""The instructions that compute a small nest at once: their names, what they need of a CPU, and what they compute."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.ir.program import Block, Loop, Program
from pipeline.ir.program_parse import from_text
from pipeline.ir.target import Target
from pipeline.schedule.nest import axes_in, blocks_in


@dataclass(frozen=True, slots=True)
class Intrinsic:
    """An instruction that does what an ordinary nest does.

    name          by which `Tensorize` and the code generator know it
    features      of the target: all of one of these groups make the instruction available
    description   what it computes: a program of one nest around one block, whose buffers are the operands
    """

    name: str
    features: tuple[tuple[str, ...], ...]
    description: Program

    @property
    def loop(self) -> Loop:
        """The nest of the description."""
        (found,) = self.description.body.body
        assert isinstance(found, Loop)
        return found

    @property
    def block(self) -> Block:
        """The one block of the description."""
        (found,) = blocks_in(self.loop)
        return found

    @property
    def extents(self) -> tuple[int, ...]:
        """Those of the loops, outermost first."""
        return tuple(axis.extent.value for axis in axes_in(self.loop))

    def lacking(self, target: Target) -> str | None:
        """Why the target cannot execute it."""
        if any(set(group) <= set(target.features) for group in self.features):
            return None
        wanted = " or ".join(" ".join(group) for group in self.features)
        return f"{target.name} has not the features {wanted} that {self.name} needs"


def _dot(name: str, lanes: int, left: str, right: str, features: tuple[tuple[str, ...], ...]) -> Intrinsic:
    """In each lane four products of bytes are added to a 32-bit sum; the lanes share the left factors."""
    text = f"""program dot():
    input A: {left}[4]
    input B: {right}[{lanes}, 4]
    output C: int32[{lanes}]
    body:
        for i in serial({lanes}):
            for k in serial(4):
                block dot:
                    spatial vi in range({lanes}) = i
                    reduce vk in range(4) = k
                    C[vi] += cast(A[vk]):int32 * cast(B[vi, vk]):int32
"""
    return Intrinsic(name, features, from_text(text))


INTRINSICS: Mapping[str, Intrinsic] = {
    intrinsic.name: intrinsic
    for intrinsic in (
        _dot("avx512vnni.dot_u8i8i32", 16, "uint8", "int8", (("+avx512f", "+avx512vnni"),)),
        _dot("avxvnni.dot_u8i8i32", 8, "uint8", "int8", (("+avxvnni",), ("+avx512vl", "+avx512vnni"))),
        _dot("neon.dot_i8i8i32", 4, "int8", "int8", (("+dotprod",),)),
    )
}
